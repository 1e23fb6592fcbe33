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
    load_with(context, specialised, || code_of(context, specialised))
}

/// Loads those of several kernels that are not yet loaded, and compiles them at the same time: one after the other, they would
/// take as long as all of them together. What fails is left to [`load`], which tells why.
pub(super) fn load_together(context: &'static Context, kernels: &[&dyn SpecialisedKernel]) {
    let is_missing = |specialised: &&&dyn SpecialisedKernel| {
        slot_of(&key_of(context, **specialised)).get().is_none()
    };
    let missing: Vec<_> = kernels.iter().filter(is_missing).copied().collect();
    if missing.len() < 2 {
        return;
    }
    // Only the code is made on other threads: what a thread may ask of the driver depends on what it captures.
    let codes: Vec<_> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for &kernel in &missing {
            let code = move || code_of(context, kernel);
            threads.push(std::thread::Builder::new().spawn_scoped(scope, code));
        }
        let ended = threads
            .into_iter()
            .map(|thread| thread.ok()?.join().ok()?.ok());
        ended.collect()
    });
    for (kernel, code) in missing.into_iter().zip(codes) {
        if let Some(code) = code {
            let _ = load_with(context, kernel, || Ok(code));
        }
    }
}

fn key_of(context: &'static Context, specialised: &dyn SpecialisedKernel) -> Key {
    let recipe = specialised.recipe();
    let ordinal = context.device().ordinal();
    (ordinal, recipe.entry(), options(&*recipe))
}

fn load_with(
    context: &'static Context,
    specialised: &dyn SpecialisedKernel,
    code: impl FnOnce() -> Result<Code, CudaError>,
) -> Result<Kernel, CudaError> {
    let key = key_of(context, specialised);
    let slot = slot_of(&key);
    let loaded = slot.get_or_init(|| build(context, specialised, code()?));
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

/// Machine code of a kernel, and where it came from.
struct Code {
    program: Program,
    bytes: Vec<u8>,
    origin: Origin,
}

/// The machine code of a kernel for a device. Nothing is asked of the driver.
///
/// Packs come first, for the device's own architecture, and no compiler is looked for: loading one takes longer than loading
/// the kernel.
fn code_of(context: &Context, specialised: &dyn SpecialisedKernel) -> Result<Code, CudaError> {
    let (major, minor) = context.device().compute_capability();
    let program = specialised.program(Architecture::of_device(major, minor));
    match jit::packed(&program)? {
        Some(bytes) => Ok(Code {
            program,
            bytes,
            origin: Origin::Pack,
        }),
        None => compiled(context, specialised),
    }
}

fn compiled(context: &Context, specialised: &dyn SpecialisedKernel) -> Result<Code, CudaError> {
    let (major, minor) = context.device().compute_capability();
    let program = specialised.program(jit::architecture_for(major, minor)?);
    let (bytes, origin) = jit::compiled(&program)?;
    Ok(Code {
        program,
        bytes,
        origin,
    })
}

fn build(
    context: &'static Context,
    specialised: &dyn SpecialisedKernel,
    mut code: Code,
) -> Result<Kernel, CudaError> {
    let device = context.device();
    let mut loaded = on_device(context, specialised, &code);
    // A driver may be older than the compiler of the pack.
    if let (Err(error), Origin::Pack) = (&loaded, code.origin) {
        print_warning(&format!(
            "kernel {} is compiled instead: the driver does not load it from a pack: {error}",
            code.program.name
        ));
        code = compiled(context, specialised)?;
        loaded = on_device(context, specialised, &code);
    }
    let kernel = loaded?;
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
            "fourtap: cuda:{}: {} for {}: {:?}",
            device.ordinal(),
            code.program.name,
            code.program.architecture,
            code.origin
        );
    }
    Ok(kernel)
}

fn on_device(
    context: &'static Context,
    specialised: &dyn SpecialisedKernel,
    code: &Code,
) -> Result<Kernel, CudaError> {
    let kernel = Library::load(&code.bytes)?.kernel(specialised.entry())?;
    // Loaded now and not at the first launch, which may be inside a graph capture.
    kernel.prepare(context)?;
    Ok(kernel)
}
