//! Gradients of dense attention on a GPU.

mod hostile;
mod oracle;
mod reproducible;
mod sanitizer;

use fourtap::DType;
use fourtap::cuda::Cuda;

use crate::gpu;

/// The types there are kernels for.
const TYPES: [DType; 2] = [DType::F16, DType::BF16];

fn kernels() -> Vec<&'static str> {
    let mut kernels = gpu::kernels("dense_gradient_");
    kernels.extend(gpu::kernels("dense_prepare_mask"));
    kernels
}

/// Every way to compute the gradients: sums of biases whole, and in many parts.
fn ways(cuda: &Cuda) -> Vec<Cuda> {
    let cuts = [1, 132, 10_000].map(|multiprocessors| cuda.for_multiprocessors(multiprocessors));
    cuts.to_vec()
}
