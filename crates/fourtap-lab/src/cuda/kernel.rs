//! The lab's own kernels: compiled when needed, and launched.

use std::ffi::c_void;
use std::marker::PhantomData;

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{
    DriverError, Kernel, KernelFacts, Launch, Library, TensorMap, active_clusters, launch,
};
use fourtap::cuda::jit::{self, Architecture, Program};

use crate::error::Result;

const MEMORY: &str = include_str!("../../kernels/common/memory.cuh");
const HOPPER: &str = include_str!("../../kernels/common/hopper.cuh");

/// The driver's number for a cluster that the device cannot have.
const INVALID_CLUSTER_SIZE: i32 = 912;

/// A kernel of the lab's own, before it is compiled.
#[derive(Clone, Debug)]
pub struct Source {
    /// The kernel's name in the code.
    pub entry: &'static str,
    /// What several kernels share, before the text.
    header: &'static str,
    text: &'static str,
    defines: Vec<(&'static str, u32)>,
    /// Uses what only Hopper and later have.
    hopper: bool,
}

impl Source {
    /// One that every supported device can run.
    pub fn new(entry: &'static str, text: &'static str, defines: &[(&'static str, u32)]) -> Self {
        Source {
            entry,
            header: "",
            text,
            defines: defines.to_vec(),
            hopper: false,
        }
    }

    /// The same with clusters and copies of boxes at hand.
    pub fn for_hopper(self) -> Self {
        Source {
            hopper: true,
            ..self
        }
    }

    /// The same with a header before its text.
    pub fn after(self, header: &'static str) -> Self {
        Source { header, ..self }
    }

    /// What to compile.
    pub fn program(&self, architecture: Architecture) -> Program {
        let hopper = if self.hopper { HOPPER } else { "" };
        Program {
            name: format!("lab-{}", self.entry.replace('_', "-")),
            source: [MEMORY, hopper, self.header, self.text].concat(),
            options: self
                .defines
                .iter()
                .map(|(name, value)| format!("-D{name}={value}"))
                .collect(),
            architecture,
        }
    }

    /// Compiles it for a device, if that was not done before, and takes it there.
    pub fn load(&self, cuda: &Cuda) -> Result<LoadedKernel> {
        let (major, minor) = cuda.device().compute_capability();
        let program = self.program(jit::architecture_for(major, minor)?);
        let (code, _) = jit::machine_code(&program)?;
        let kernel = Library::load(&code)?.kernel(self.entry)?;
        kernel.prepare(cuda.context())?;
        Ok(LoadedKernel { kernel })
    }
}

/// A kernel ready to launch.
#[derive(Clone, Debug)]
pub struct LoadedKernel {
    kernel: Kernel,
}

/// How many of what a launch has.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Blocks of the launch.
    pub blocks: u32,
    /// Threads per block.
    pub threads: u32,
    /// Dynamic shared memory per block.
    pub shared_bytes: u32,
    /// Blocks per cluster; none for a launch without.
    pub cluster: Option<u32>,
}

impl Default for Grid {
    fn default() -> Self {
        Grid {
            blocks: 1,
            threads: 1,
            shared_bytes: 0,
            cluster: None,
        }
    }
}

impl Grid {
    /// Of blocks of so many threads, without shared memory.
    pub fn of_threads(threads: u32) -> Self {
        Grid {
            threads,
            ..Grid::default()
        }
    }
}

/// What a kernel is given.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// Of device memory.
    Address(u64),
    /// A 64-bit number.
    Count(u64),
    /// A 32-bit number, or the bits of a float.
    Word(u32),
    /// By value.
    Map(&'a TensorMap),
    /// Any struct, by value.
    Struct(*const c_void, PhantomData<&'a ()>),
}

impl<'a> Argument<'a> {
    /// A struct that the kernel declares alike.
    pub fn of<T: Copy>(value: &'a T) -> Self {
        Argument::Struct((&raw const *value).cast(), PhantomData)
    }

    fn pointer(&self) -> *mut c_void {
        let pointer: *const c_void = match self {
            Argument::Address(number) | Argument::Count(number) => (&raw const *number).cast(),
            Argument::Word(number) => (&raw const *number).cast(),
            Argument::Map(map) => (&raw const **map).cast(),
            Argument::Struct(pointer, _) => *pointer,
        };
        pointer.cast_mut()
    }
}

impl LoadedKernel {
    /// What the compiler made of it.
    pub fn facts(&self, cuda: &Cuda) -> Result<KernelFacts> {
        Ok(self.kernel.facts(cuda.device())?)
    }

    /// Asks for so many percent of a multiprocessor's fast memory as shared memory, the rest as first-level cache.
    pub fn carve_out(&self, cuda: &Cuda, percent: u32) -> Result<()> {
        Ok(self.kernel.set_shared_carveout(cuda.device(), percent)?)
    }

    /// Lets it have more than the usual 48 KiB of shared memory, and clusters of any size.
    pub fn allow(&self, cuda: &Cuda, grid: Grid) -> Result<()> {
        let device = cuda.device();
        if grid.shared_bytes > 0 {
            self.kernel
                .set_max_dynamic_shared(device, grid.shared_bytes)?;
        }
        if grid.cluster.is_some_and(|blocks| blocks > 8) {
            self.kernel.allow_large_clusters(device)?;
        }
        Ok(())
    }

    /// As many blocks as the device runs at once.
    pub fn filling(&self, cuda: &Cuda, grid: Grid) -> Result<Grid> {
        self.allow(cuda, grid)?;
        let each = self
            .kernel
            .occupancy(cuda.context(), grid.threads, grid.shared_bytes)?;
        let blocks = cuda.device().facts().multiprocessors * each.max(1);
        Ok(Grid { blocks, ..grid })
    }

    /// How many clusters of such a launch the device runs at once.
    pub fn clusters(&self, cuda: &Cuda, grid: Grid) -> Result<u32> {
        self.allow(cuda, grid)?;
        match active_clusters(&self.kernel, cuda.context(), &shape(cuda, grid)) {
            // No cluster of that size is none that fits.
            Err(DriverError::Call { code, .. }) if code == INVALID_CLUSTER_SIZE => Ok(0),
            result => Ok(result?),
        }
    }

    /// Queues a launch.
    ///
    /// # Safety
    /// The arguments are of the kernel's parameters' types, in order, and memory they lead to is of the size the kernel
    /// expects until the stream has done the work.
    pub unsafe fn queue(&self, cuda: &Cuda, grid: Grid, arguments: &[Argument<'_>]) -> Result<()> {
        let mut pointers: Vec<_> = arguments.iter().map(Argument::pointer).collect();
        let _entered = cuda.context().enter()?;
        // SAFETY: as the caller promises; the values the pointers lead to outlive the call, which copies them.
        Ok(unsafe { launch(&self.kernel, &shape(cuda, grid), &mut pointers) }?)
    }
}

fn shape(cuda: &Cuda, grid: Grid) -> Launch<'_> {
    Launch {
        grid: [grid.blocks, 1, 1],
        block: [grid.threads, 1, 1],
        shared_bytes: grid.shared_bytes,
        stream: cuda.stream(),
        cluster: grid.cluster.map(|blocks| [blocks, 1, 1]),
        ..Launch::default()
    }
}
