//! One kernel of a plan, and its launch.

use std::ffi::c_void;

use super::driver::{self, Kernel, Launch};
use super::error::CudaError;
use super::handle::Cuda;
use super::kernels;
use super::recipe::SpecialisedKernel;

/// A kernel and how it is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<KernelVariant> {
    /// The kernel.
    pub kernel: KernelVariant,
    /// Blocks to launch, in x and y.
    pub blocks: [u32; 2],
    /// Threads per block.
    pub threads: u32,
    /// Dynamic shared memory per block.
    pub shared_bytes: u32,
}

impl<KernelVariant: SpecialisedKernel> Step<KernelVariant> {
    /// Loads its kernel on this device, compiling it if necessary.
    pub(super) fn load(&self, cuda: &Cuda) -> Result<LoadedStep, CudaError> {
        Ok(LoadedStep {
            kernel: kernels::load(cuda.context(), &self.kernel)?,
            blocks: self.blocks,
            threads: self.threads,
            shared_bytes: self.shared_bytes,
        })
    }
}

/// Loads the kernels of these steps, and compiles at the same time those that must be. What fails is left to [`Step::load`].
pub(super) fn load_together<'a, KernelVariant: SpecialisedKernel + 'a>(
    cuda: &Cuda,
    steps: impl IntoIterator<Item = &'a Step<KernelVariant>>,
) {
    let kernels = steps.into_iter().map(|step| &step.kernel as _);
    kernels::load_together(cuda.context(), &kernels.collect::<Vec<_>>());
}

/// A step that can be launched, on the device it was loaded for.
pub(super) struct LoadedStep {
    kernel: Kernel,
    blocks: [u32; 2],
    threads: u32,
    shared_bytes: u32,
}

impl LoadedStep {
    /// Queues the kernel without allocating or waiting.
    ///
    /// # Safety
    /// The parameters match the kernel's declaration in type and layout, and the memory they point to is as it expects
    /// until the stream has done the work. The device is the one it was loaded for.
    pub unsafe fn launch(
        &self,
        cuda: &Cuda,
        parameters: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        // SAFETY: as the caller promises.
        unsafe { self.launch_overlapping(cuda, parameters, false) }
    }

    /// The same; with `overlap_previous` the kernel may begin while the one before it in the stream still runs.
    ///
    /// # Safety
    /// As for [`LoadedStep::launch`]. With `overlap_previous`, the kernel waits for the one before it by itself, as
    /// kernels/common/overlap.cuh says, and was compiled for an architecture that can.
    pub unsafe fn launch_overlapping(
        &self,
        cuda: &Cuda,
        parameters: &mut [*mut c_void],
        overlap_previous: bool,
    ) -> Result<(), CudaError> {
        let entered = cuda.context().enter()?;
        let [x, y] = self.blocks;
        let how = Launch {
            grid: [x, y, 1],
            block: [self.threads, 1, 1],
            shared_bytes: self.shared_bytes,
            stream: cuda.stream(),
            overlap_previous,
            ..Launch::default()
        };
        // SAFETY: as the caller promises.
        let launched = unsafe { driver::launch(&self.kernel, &how, parameters) };
        drop(entered);
        Ok(launched?)
    }
}

/// A pointer to a kernel parameter.
pub(super) fn parameter<T>(parameter: &T) -> *mut c_void {
    (&raw const *parameter).cast_mut().cast()
}
