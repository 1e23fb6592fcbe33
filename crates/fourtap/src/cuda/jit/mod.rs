//! From kernel source to machine code: compiled by NVRTC once, then kept on disk.
//!
//! Start at [`machine_code`]. It tries, in this order, packs of precompiled kernels ([`packed`]), the [`Cache`] on disk, and
//! [`Nvrtc`].

mod architecture;
mod bytes;
mod cache;
mod error;
mod folder;
mod nvrtc;
mod pack;
mod pack_builder;
mod packs;
mod program;
mod resources;

use std::sync::OnceLock;
use std::time::Instant;

use crate::warning::print_warning;

pub use architecture::{Architecture, Feature};
pub use cache::{Cache, ClearSummary, Entry, PruneLimits, State};
pub use error::JitError;
pub use folder::{PackFolder, Release};
pub use nvrtc::{CompiledProgram, Nvrtc, NvrtcBuild, NvrtcVersion};
pub use pack::{Pack, PackEntry};
pub use pack_builder::PackBuilder;
pub use packs::{pack_folder, packed, set_pack, set_pack_folder};
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

/// The machine code of a program: of a pack, as [`packed`] finds it, else from the cache, else compiled.
pub fn machine_code(program: &Program) -> Result<(Vec<u8>, Origin), JitError> {
    match packed(program)? {
        Some(code) => Ok((code, Origin::Pack)),
        None => compiled(program),
    }
}

/// The machine code of a program: from the cache, else compiled.
pub fn compiled(program: &Program) -> Result<(Vec<u8>, Origin), JitError> {
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
        Some(cache) => cache.get_or_build(&program.cache_key(nvrtc.build()), &mut build)?,
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
