//! The kernels a device has loaded: each compiled, or found, once a process.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock, RwLock};

use super::driver::{Context, Kernel, Library};
use super::jit::{self, Architecture, Origin, Program};
use super::{CudaError, msda};

/// A kernel ready to be launched.
#[derive(Debug)]
pub struct Loaded {
    /// To launch.
    pub kernel: Kernel,
    /// Where its machine code came from.
    pub origin: Origin,
}

/// What is known of a kernel: being loaded, or loaded, or why not. Threads that ask meanwhile wait for the first.
type Slot = Arc<OnceLock<Result<Loaded, CudaError>>>;

/// By device and specialisation. Kernels are as many as kinds of problems, a few; they are kept for the process.
static SLOTS: RwLock<Option<HashMap<(usize, msda::Specialised), Slot>>> = RwLock::new(None);

thread_local! {
    /// Kernels this thread has used, last come first served: most threads use a handful, again and again, and looking
    /// here takes a fraction of what hashing does.
    static RECENT: RefCell<VecDeque<(usize, msda::Specialised, Kernel)>> = const { RefCell::new(VecDeque::new()) };
}

/// How many of them: those of forward and backward of two kinds of problem.
const MOST_RECENT: usize = 16;

/// The kernel on the device of `context`.
pub(super) fn load(
    context: &'static Context,
    specialised: &msda::Specialised,
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

fn look_up(
    context: &'static Context,
    specialised: &msda::Specialised,
) -> Result<Kernel, CudaError> {
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

fn forget(ordinal: usize, specialised: &msda::Specialised, slot: &Slot) {
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

fn slot_of(ordinal: usize, specialised: &msda::Specialised) -> Slot {
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

fn build(context: &'static Context, specialised: &msda::Specialised) -> Result<Loaded, CudaError> {
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
    if let Some(bytes) = specialised.shared_at_most() {
        // No more than that, or first-level cache would be lost for nothing.
        let device = context.device();
        let all = device.facts().shared_bytes_per_multiprocessor.max(1);
        kernel.set_shared_carveout(device, (100 * bytes / all).min(100))?;
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

/// What `specialised` compiles from, for `architecture`.
pub(super) fn program(
    name: String,
    parts: &[&str],
    defines: &[(&str, String)],
    architecture: Architecture,
) -> Program {
    let option = |(name, value): &(&str, String)| format!("-D{name}={value}");
    Program {
        name,
        source: parts.concat(),
        options: defines.iter().map(option).collect(),
        architecture,
    }
}
