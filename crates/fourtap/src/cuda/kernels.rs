//! The kernels a device has loaded: each compiled, or found, once a process.

use std::collections::HashMap;
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

/// The kernel on the device of `context`.
pub(super) fn load(
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
