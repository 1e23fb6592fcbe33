//! The kernels loaded on each device: each is compiled, or found, once per process.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, RwLock};

use super::driver::{Context, Kernel, Library};
use super::error::CudaError;
use super::jit::{self, Architecture, Origin, Program};
use super::recipe::{DynamicShared, SpecialisedKernel, options};
use crate::warning::print_warning;

/// A kernel being loaded, loaded, or the reason why not. Threads that ask meanwhile wait for the first.
type Slot = Arc<OnceLock<Result<Kernel, CudaError>>>;

/// A device, a function, and its compiler options.
type Key = (usize, &'static str, Vec<String>);

/// There are a few kernels per kind of problem; they stay loaded for the life of the process.
static SLOTS: RwLock<Option<HashMap<Key, Slot>>> = RwLock::new(None);

/// The kernel on the device of `context`. Plans keep what this returns, so it need not be fast.
pub(super) fn load(
    context: &'static Context,
    specialised: &dyn SpecialisedKernel,
) -> Result<Kernel, CudaError> {
    let recipe = specialised.recipe();
    let key = (
        context.device().ordinal(),
        recipe.entry(),
        options(&*recipe),
    );
    let slot = slot_of(&key);
    let loaded = slot.get_or_init(|| build(context, specialised));
    if loaded.is_err() {
        // A failure may be temporary: a full disk, a library not yet installed.
        forget(&key, &slot);
    }
    loaded.clone()
}

fn forget(key: &Key, slot: &Slot) {
    let mut slots = SLOTS
        .write()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(slots) = slots.as_mut()
        && slots.get(key).is_some_and(|found| Arc::ptr_eq(found, slot))
    {
        slots.remove(key);
    }
}

fn slot_of(key: &Key) -> Slot {
    let slots = SLOTS
        .read()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(slot) = slots.as_ref().and_then(|slots| slots.get(key)) {
        return slot.clone();
    }
    drop(slots);
    let mut slots = SLOTS
        .write()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let slots = slots.get_or_insert_with(HashMap::new);
    slots.entry(key.clone()).or_default().clone()
}

fn build(
    context: &'static Context,
    specialised: &dyn SpecialisedKernel,
) -> Result<Kernel, CudaError> {
    let device = context.device();
    let (kernel, program, origin) = match from_pack(context, specialised)? {
        Some(found) => found,
        None => {
            let (major, minor) = device.compute_capability();
            let program = specialised.program(jit::architecture_for(major, minor)?);
            let (code, origin) = jit::compiled(&program)?;
            (on_device(context, specialised, &code)?, program, origin)
        }
    };
    let dynamic = specialised.recipe().dynamic_shared();
    if dynamic != DynamicShared::None {
        // The device's maximum: each launch decides how much it takes.
        let declared = kernel.facts(device)?.shared_bytes;
        let most = device.facts().shared_bytes_per_block_opt_in;
        kernel.set_max_dynamic_shared(device, most.saturating_sub(declared))?;
    }
    let all = device.facts().shared_bytes_per_multiprocessor.max(1);
    let percent = match dynamic {
        DynamicShared::None | DynamicShared::Some => None,
        DynamicShared::AtMost(bytes) => Some((100 * bytes / all).min(100)),
        DynamicShared::All => Some(100),
    };
    if let Some(percent) = percent {
        kernel.set_shared_carveout(device, percent)?;
    }
    if std::env::var_os("FOURTAP_TRACE").is_some_and(|value| !value.is_empty() && value != "0") {
        eprintln!(
            "fourtap: cuda:{}: {} for {}: {origin:?}",
            device.ordinal(),
            program.name,
            program.architecture
        );
    }
    Ok(kernel)
}

/// The kernel from a pack, if one has it for the device's own architecture. No compiler is looked for: loading one takes longer
/// than loading the kernel.
fn from_pack(
    context: &'static Context,
    specialised: &dyn SpecialisedKernel,
) -> Result<Option<(Kernel, Program, Origin)>, CudaError> {
    let (major, minor) = context.device().compute_capability();
    let program = specialised.program(Architecture::of_device(major, minor));
    let Some(code) = jit::packed(&program)? else {
        return Ok(None);
    };
    match on_device(context, specialised, &code) {
        Ok(kernel) => Ok(Some((kernel, program, Origin::Pack))),
        // A driver may be older than the compiler of the pack.
        Err(error) => {
            print_warning(&format!(
                "kernel {} is compiled instead: the driver does not load it from a pack: {error}",
                program.name
            ));
            Ok(None)
        }
    }
}

fn on_device(
    context: &'static Context,
    specialised: &dyn SpecialisedKernel,
    code: &[u8],
) -> Result<Kernel, CudaError> {
    let kernel = Library::load(code)?.kernel(specialised.entry())?;
    // Loaded now and not at the first launch, which may be inside a graph capture.
    kernel.prepare(context)?;
    Ok(kernel)
}
