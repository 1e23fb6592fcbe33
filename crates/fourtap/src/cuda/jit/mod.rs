//! From kernel source to machine code: compiled by NVRTC once, then kept on disk.
//!
//! Start at [`machine_code`]. It tries, in this order, a [`Pack`] of precompiled kernels, the [`Cache`] on disk, and
//! [`Nvrtc`].

mod architecture;
mod bytes;
mod cache;
mod error;
mod nvrtc;
mod pack;
mod program;
mod resources;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Instant;

use crate::warning::print_warning;

pub use architecture::{Architecture, Feature};
pub use cache::{Cache, ClearSummary, Entry, PruneLimits, State};
pub use error::JitError;
pub use nvrtc::{CompiledProgram, Nvrtc, NvrtcVersion};
pub use pack::{Pack, PackBuilder, PackEntry};
pub use program::{CacheKey, Fingerprint, Program};
pub use resources::{KernelResources, Resources};

/// Where machine code came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A pack of precompiled kernels.
    Pack,
    /// The cache on disk.
    Cache,
    /// Compiled just now.
    Compiled {
        /// Time it took.
        milliseconds: u64,
    },
}

/// The machine code of a program: from the pack named by `FOURTAP_PACK`, else from the pack given to [`set_pack`],
/// else from the cache, else compiled.
pub fn machine_code(program: &Program) -> Result<(Vec<u8>, Origin), JitError> {
    let registered = REGISTERED
        .read()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
        .clone();
    for pack in [named_pack()?, registered.as_deref()].into_iter().flatten() {
        if let Some(code) = pack.find(program)? {
            return Ok((code.to_vec(), Origin::Pack));
        }
    }
    let nvrtc = Nvrtc::get()?;
    let mut origin = Origin::Cache;
    let mut build = || {
        let start = Instant::now();
        let compiled = nvrtc.compile(program)?;
        origin = Origin::Compiled {
            milliseconds: start.elapsed().as_millis() as u64,
        };
        Ok(compiled.code)
    };
    let code = match standard_cache() {
        Some(cache) => cache.get_or_build(&program.cache_key(nvrtc.version()), &mut build)?,
        None => build()?,
    };
    Ok((code, origin))
}

/// What to compile for on a device of this compute capability, with the NVRTC this process has.
///
/// Without NVRTC only packs can be used, and those are compiled for [`Architecture::of_device`].
pub fn architecture_for(major: u32, minor: u32) -> Result<Architecture, JitError> {
    match Nvrtc::get() {
        Ok(nvrtc) => nvrtc.best_for(major, minor),
        Err(_) => Ok(Architecture::of_device(major, minor)),
    }
}

/// Makes [`machine_code`] look into a pack before it compiles. Replaces the pack of an earlier call.
pub fn set_pack(pack: Option<Arc<Pack>>) {
    *REGISTERED
        .write()
        .unwrap_or_else(|poisoned| poisoned.into_inner()) = pack;
}

static REGISTERED: RwLock<Option<Arc<Pack>>> = RwLock::new(None);

/// The pack `FOURTAP_PACK` names. If that pack cannot be read, that is an error, not a reason to compile.
fn named_pack() -> Result<Option<&'static Pack>, JitError> {
    static NAMED: OnceLock<Result<Option<Pack>, JitError>> = OnceLock::new();
    let open = || match std::env::var_os("FOURTAP_PACK").filter(|path| !path.is_empty()) {
        Some(path) => Pack::open(&PathBuf::from(path)).map(Some),
        None => Ok(None),
    };
    match NAMED.get_or_init(open) {
        Ok(pack) => Ok(pack.as_ref()),
        Err(error) => Err(error.clone()),
    }
}

/// The user's cache; without one every process compiles its kernels again, which is slow but correct.
fn standard_cache() -> Option<&'static Cache> {
    static STANDARD: OnceLock<Option<Cache>> = OnceLock::new();
    let open = || match Cache::standard() {
        Ok(cache) => cache,
        Err(error) => {
            print_warning(&format!(
                "kernels are compiled again in each process: {error}"
            ));
            None
        }
    };
    STANDARD.get_or_init(open).as_ref()
}
