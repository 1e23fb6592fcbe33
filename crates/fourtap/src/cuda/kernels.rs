//! The kernels a device has loaded: each compiled, or found, once a process.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, OnceLock, RwLock};

use super::driver::{self, Context, DeviceFacts, Kernel, Launch, Library};
use super::jit::{self, Architecture, Origin, Program};
use super::{Cuda, CudaError, dense, msda};

/// A kernel ready to be launched.
#[derive(Debug)]
pub struct Loaded {
    /// To launch.
    pub kernel: Kernel,
    /// Where its machine code came from.
    pub origin: Origin,
}

/// A kernel compiled for a kind of problem, of either operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Specialised {
    Msda(msda::Specialised),
    Dense(dense::Specialised),
}

impl From<msda::Specialised> for Specialised {
    fn from(kernel: msda::Specialised) -> Self {
        Specialised::Msda(kernel)
    }
}

impl From<dense::Specialised> for Specialised {
    fn from(kernel: dense::Specialised) -> Self {
        Specialised::Dense(kernel)
    }
}

impl Specialised {
    fn entry(&self) -> &'static str {
        match self {
            Specialised::Msda(kernel) => kernel.entry(),
            Specialised::Dense(kernel) => kernel.entry(),
        }
    }

    fn program(&self, architecture: Architecture) -> Program {
        match self {
            Specialised::Msda(kernel) => kernel.program(architecture),
            Specialised::Dense(kernel) => kernel.program(architecture),
        }
    }

    /// Whether launches ask for shared memory beyond what the source declares.
    fn has_dynamic_shared(&self) -> bool {
        match self {
            Specialised::Msda(kernel) => kernel.has_dynamic_shared(),
            Specialised::Dense(kernel) => kernel.has_dynamic_shared(),
        }
    }

    /// How much of a multiprocessor's fast memory should be set aside as shared memory, in percent; the driver's guess
    /// if not said.
    fn carveout(&self, device: &DeviceFacts) -> Option<u32> {
        let all = device.shared_bytes_per_multiprocessor.max(1);
        match self {
            // No more than that, or first-level cache would be lost for nothing.
            Specialised::Msda(kernel) => kernel.shared_at_most().map(|bytes| 100 * bytes / all),
            // What passes through it is read past the cache.
            Specialised::Dense(kernel) => kernel.has_dynamic_shared().then_some(100),
        }
    }
}

/// What is known of a kernel: being loaded, or loaded, or why not. Threads that ask meanwhile wait for the first.
type Slot = Arc<OnceLock<Result<Loaded, CudaError>>>;

/// By device and specialisation. Kernels are as many as kinds of problems, a few; they are kept for the process.
static SLOTS: RwLock<Option<HashMap<(usize, Specialised), Slot>>> = RwLock::new(None);

thread_local! {
    /// Kernels this thread has used, last come first served: most threads use a handful, again and again, and looking
    /// here takes a fraction of what hashing does.
    static RECENT: RefCell<VecDeque<(usize, Specialised, Kernel)>> = const { RefCell::new(VecDeque::new()) };
}

/// How many of them: those of forward and backward of two kinds of problem.
const MOST_RECENT: usize = 16;

/// The kernel on the device of `context`.
pub(super) fn load(
    context: &'static Context,
    specialised: &Specialised,
) -> Result<Kernel, CudaError> {
    let ordinal = context.device().ordinal();
    // While a thread ends its own variables may be gone already; then the kernel is looked up as if for the first time.
    let recent = RECENT.try_with(|recent| {
        let recent = recent.borrow();
        let mut kernels = recent.iter();
        let found = kernels.find(|(device, it, _)| *device == ordinal && it == specialised);
        found.map(|(_, _, kernel)| kernel.clone())
    });
    if let Ok(Some(kernel)) = recent {
        return Ok(kernel);
    }
    let kernel = look_up(context, specialised)?;
    let _ = RECENT.try_with(|recent| {
        let mut recent = recent.borrow_mut();
        recent.truncate(MOST_RECENT - 1);
        recent.push_front((ordinal, *specialised, kernel.clone()));
    });
    Ok(kernel)
}

fn look_up(context: &'static Context, specialised: &Specialised) -> Result<Kernel, CudaError> {
    let ordinal = context.device().ordinal();
    let slot = slot_of(ordinal, specialised);
    match slot.get_or_init(|| build(context, specialised)) {
        Ok(loaded) => Ok(loaded.kernel.clone()),
        Err(error) => {
            // What failed may succeed later: a full disk, a library not yet installed.
            forget(ordinal, specialised, &slot);
            Err(error.clone())
        }
    }
}

fn forget(ordinal: usize, specialised: &Specialised, slot: &Slot) {
    let mut slots = SLOTS
        .write()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let key = (ordinal, *specialised);
    if let Some(slots) = slots.as_mut()
        && slots
            .get(&key)
            .is_some_and(|found| Arc::ptr_eq(found, slot))
    {
        slots.remove(&key);
    }
}

fn slot_of(ordinal: usize, specialised: &Specialised) -> Slot {
    let key = (ordinal, *specialised);
    let slots = SLOTS
        .read()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(slot) = slots.as_ref().and_then(|slots| slots.get(&key)) {
        return slot.clone();
    }
    drop(slots);
    let mut slots = SLOTS
        .write()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let slots = slots.get_or_insert_with(HashMap::new);
    slots.entry(key).or_default().clone()
}

fn build(context: &'static Context, specialised: &Specialised) -> Result<Loaded, CudaError> {
    let (major, minor) = context.device().compute_capability();
    let program = specialised.program(jit::architecture_for(major, minor)?);
    let (code, origin) = jit::machine_code(&program)?;
    let kernel = Library::load(&code)?.kernel(specialised.entry())?;
    // Now, so that nothing is loaded behind the first launch, which may be inside a graph capture.
    kernel.prepare(context)?;
    if specialised.has_dynamic_shared() {
        // As much as there is: how much a launch takes is its own affair.
        let device = context.device();
        let declared = kernel.facts(device)?.shared_bytes;
        let most = device.facts().shared_bytes_per_block_opt_in;
        kernel.set_max_dynamic_shared(device, most.saturating_sub(declared))?;
    }
    if let Some(percent) = specialised.carveout(context.device().facts()) {
        kernel.set_shared_carveout(context.device(), percent.min(100))?;
    }
    if std::env::var_os("FOURTAP_TRACE").is_some_and(|value| !value.is_empty() && value != "0") {
        let device = context.device();
        eprintln!(
            "fourtap: cuda:{}: {} for {}: {origin:?}",
            device.ordinal(),
            program.name,
            program.architecture
        );
    }
    Ok(Loaded { kernel, origin })
}

/// Queues a kernel on a grid of `blocks`. Nothing is allocated and nobody waits, once it is loaded.
///
/// # Safety
/// The parameters are what the kernel declares, laid out as it does, and the memory they lead to is as it expects until
/// the stream has done the work.
pub(super) unsafe fn launch(
    cuda: &Cuda,
    kernel: &Specialised,
    [blocks, layers]: [u32; 2],
    threads: u32,
    shared_bytes: u32,
    parameters: &mut [*mut c_void],
) -> Result<(), CudaError> {
    let kernel = load(cuda.context, kernel)?;
    // SAFETY: as the caller promises.
    unsafe {
        launch_loaded(
            cuda,
            &kernel,
            [blocks, layers],
            threads,
            shared_bytes,
            parameters,
        )
    }
}

/// The same with a kernel that was loaded before, on this device.
///
/// # Safety
/// As of [`launch`].
pub(super) unsafe fn launch_loaded(
    cuda: &Cuda,
    kernel: &Kernel,
    [blocks, layers]: [u32; 2],
    threads: u32,
    shared_bytes: u32,
    parameters: &mut [*mut c_void],
) -> Result<(), CudaError> {
    let entered = cuda.context.enter()?;
    let how = Launch {
        grid: [blocks, layers, 1],
        block: [threads, 1, 1],
        shared_bytes,
        stream: cuda.stream(),
        ..Launch::default()
    };
    // SAFETY: as the caller promises.
    let launched = unsafe { driver::launch(kernel, &how, parameters) };
    drop(entered);
    Ok(launched?)
}
