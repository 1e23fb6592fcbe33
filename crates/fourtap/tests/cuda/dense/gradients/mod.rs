//! Gradients of dense attention on a GPU.

mod hostile;
mod oracle;
mod reproducible;
mod sanitizer;

use fourtap::DType;
use fourtap::cuda::Cuda;
use fourtap::cuda::dense::{GradientKernels, Options};
use fourtap::verify::{DenseBackwardCase, DenseGradientSelection, DenseGradientsOnCuda};

use crate::gpu;

/// The types there are kernels for.
const TYPES: [DType; 2] = [DType::F16, DType::BF16];

fn kernels() -> Vec<&'static str> {
    let mut kernels = gpu::kernels("dense_gradient_");
    kernels.extend(gpu::kernels("dense_prepare_mask"));
    kernels
}

/// Every way to compute the gradients of a case: by the kernels that every device has, with sums of biases whole and in many parts,
/// and by those for Hopper, where they serve it.
fn ways(cuda: &Cuda, case: &DenseBackwardCase) -> Vec<Cuda> {
    let with = |kernels, multiprocessors| {
        let options = Options {
            backward: Some(kernels),
            ..Options::default()
        };
        cuda.for_multiprocessors(multiprocessors)
            .with_dense(options)
    };
    let all = DenseGradientSelection::ALL;
    let serves = |cuda: &Cuda| {
        let mut on_device = DenseGradientsOnCuda::new(case, *cuda, all).unwrap();
        on_device.plan().is_ok()
    };
    let ways = [
        with(GradientKernels::Mma, 1),
        with(GradientKernels::Mma, 10_000),
        with(GradientKernels::Wgmma, 132),
    ];
    ways.into_iter().filter(serves).collect()
}
