//! Dense attention on a GPU.

mod calls;
mod channels;
mod gradients;
mod hostile;
mod large;
mod oracle;
mod reproducible;
mod sanitizer;

use fourtap::DType;
use fourtap::cuda::Cuda;
use fourtap::cuda::dense::{Options, Tuning};
use fourtap::verify::{DenseCase, DenseOnCuda};

use crate::gpu;

/// The types there are kernels for.
const TYPES: [DType; 4] = DType::ALL;

/// The kernels of forward.
fn forward_kernels() -> Vec<&'static str> {
    let mut kernels = gpu::kernels("dense_");
    kernels.retain(|kernel| !kernel.starts_with("dense_gradient_"));
    kernels
}

/// The device, using this kernel (`Tuning::kernel`), with work cut for that many multiprocessors.
fn with_kernel(cuda: &Cuda, kernel: u32, multiprocessors: u32) -> Cuda {
    let forward = Some(Tuning {
        kernel,
        ..Tuning::default()
    });
    let options = Options {
        forward,
        ..Options::default()
    };
    cuda.for_multiprocessors(multiprocessors)
        .with_dense(options)
}

/// By the kernel that every device has, work cut in every form it can be: large tiles, ever smaller ones, keys divided among
/// blocks.
fn cuts(cuda: &Cuda) -> [Cuda; 5] {
    [1, 8, 40, 200, 100_000].map(|multiprocessors| with_kernel(cuda, 1, multiprocessors))
}

/// By the kernel for Hopper: all work by one block, by some, each part by another. None on other devices.
fn hopper_cuts(cuda: &Cuda) -> Vec<Cuda> {
    let is_hopper = cuda.device().compute_capability() == (9, 0);
    let cuts = [1, 5, 10_000].map(|multiprocessors| with_kernel(cuda, 2, multiprocessors));
    cuts.into_iter().filter(|_| is_hopper).collect()
}

/// All of them that serve a case.
fn serving(cuda: &Cuda, case: &DenseCase) -> Vec<Cuda> {
    let serves = |cuda: &Cuda| DenseOnCuda::new(case, *cuda).unwrap().plan().is_ok();
    let hopper = hopper_cuts(cuda).into_iter().filter(serves);
    cuts(cuda).into_iter().chain(hopper).collect()
}
