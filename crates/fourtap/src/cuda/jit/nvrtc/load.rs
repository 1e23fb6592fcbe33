//! Finding NVRTC and loading it.

use std::path::{Path, PathBuf};

use libloading::Library;

use super::functions::Functions;
use super::locate::{self, Candidate, LoadTarget, ProcessEnvironment};
use super::{JitError, Nvrtc, NvrtcVersion, build};

/// The NVRTC `FOURTAP_NVRTC` names, else the first usable one of the usual places.
pub(super) fn find() -> Result<Nvrtc, JitError> {
    if let Some(path) = std::env::var_os("FOURTAP_NVRTC").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return file(&path, "named by FOURTAP_NVRTC").map_err(|error| JitError::NvrtcUnusable {
            path,
            reason: error.to_string(),
        });
    }
    let (candidates, without) = ProcessEnvironment::of_process().candidates();
    let mut tried = without;
    for candidate in candidates {
        match open(&candidate) {
            Ok(nvrtc) => return Ok(nvrtc),
            // Most processes have none loaded; that is not worth one line per name.
            Err(JitError::NvrtcLoad { .. }) if matches!(candidate.place, LoadTarget::Loaded(_)) => {
            }
            Err(error) => tried.push(format!("{}: {error}", candidate.found)),
        }
    }
    Err(JitError::NvrtcNotFound { tried })
}

/// The NVRTC in a file; a bare name is for the loader to find, as it is to `dlopen`.
pub(super) fn file(path: &Path, found: &str) -> Result<Nvrtc, JitError> {
    let path = match path.components().count() {
        0 | 1 => path.to_path_buf(),
        _ => std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()),
    };
    open(&Candidate {
        place: LoadTarget::File(path),
        found: found.to_owned(),
    })
}

fn open(candidate: &Candidate) -> Result<Nvrtc, JitError> {
    if let LoadTarget::File(path) = &candidate.place {
        load_builtins(path);
    }
    let before = locate::loaded_libraries();
    let library = load(&candidate.place)?;
    let path = match &candidate.place {
        LoadTarget::File(path) => path.clone(),
        LoadTarget::Loaded(name) if name.is_absolute() => name.clone(),
        // Found by name: the file is the one that has appeared, or the only one there is.
        place => {
            let mut after = locate::loaded_libraries();
            if after.len() > 1 {
                after.retain(|path| !before.contains(path));
            }
            match (place, after.pop()) {
                (_, Some(path)) => path,
                (LoadTarget::Name(name), None) => PathBuf::from(name),
                (LoadTarget::Loaded(path) | LoadTarget::File(path), None) => path.clone(),
            }
        }
    };
    load_builtins(&path);
    let functions = Functions::of(&library, &path)?;
    let version = functions.version()?;
    if version < NvrtcVersion::OLDEST {
        return Err(JitError::NvrtcTooOld {
            path,
            found: version,
            needed: NvrtcVersion::OLDEST,
        });
    }
    let known = functions.known()?;
    let identifiers = build::identify(functions.address(), &path, &locate::builtins_of(&path));
    // Never unloaded: NVRTC starts threads and registers exit handlers.
    std::mem::forget(library);
    Ok(Nvrtc {
        functions,
        version,
        identifiers,
        path,
        found: candidate.found.clone(),
        known,
    })
}

/// Best effort: an NVRTC that finds its built-ins by itself does not need it.
#[cfg(unix)]
fn load_builtins(library: &Path) {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    // A bare name would name a file of the current directory.
    if !library.is_absolute() {
        return;
    }
    for path in locate::builtins_of(library) {
        // SAFETY: tables and code of NVIDIA's compiler; loading them runs no code of consequence.
        if let Ok(builtins) = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) } {
            std::mem::forget(builtins);
        }
    }
}

#[cfg(not(unix))]
fn load_builtins(_library: &Path) {}

#[cfg(unix)]
fn load(place: &LoadTarget) -> Result<Library, JitError> {
    use libloading::os::unix::{Library as Unix, RTLD_LOCAL, RTLD_NOW};
    // The same number in glibc, musl and bionic; elsewhere there is no NVRTC.
    const RTLD_NOLOAD: std::ffi::c_int = if cfg!(target_os = "linux") { 4 } else { 0 };
    let (name, flags) = match place {
        LoadTarget::Loaded(_) if RTLD_NOLOAD == 0 => {
            return Err(refused(place, "not supported on this system".into()));
        }
        LoadTarget::Loaded(path) => (path.as_path(), RTLD_NOW | RTLD_NOLOAD),
        LoadTarget::File(path) => (path.as_path(), RTLD_NOW | RTLD_LOCAL),
        LoadTarget::Name(name) => (Path::new(name), RTLD_NOW | RTLD_LOCAL),
    };
    // SAFETY: loading NVRTC runs its initialisers only, which have no preconditions.
    match unsafe { Unix::open(Some(name), flags) } {
        Ok(library) => Ok(library.into()),
        Err(_) if matches!(place, LoadTarget::Loaded(_)) => {
            Err(refused(place, "not loaded".into()))
        }
        Err(error) => Err(refused(place, words(&error))),
    }
}

#[cfg(not(unix))]
fn load(place: &LoadTarget) -> Result<Library, JitError> {
    let name = match place {
        LoadTarget::Loaded(path) | LoadTarget::File(path) => path.as_path(),
        LoadTarget::Name(name) => Path::new(name),
    };
    // SAFETY: loading NVRTC runs its initialisers only, which have no preconditions.
    unsafe { Library::new(name) }.map_err(|error| refused(place, words(&error)))
}

/// The loader's own words are the cause of the error.
fn words(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

fn refused(place: &LoadTarget, reason: String) -> JitError {
    let path = match place {
        LoadTarget::Loaded(path) | LoadTarget::File(path) => path.clone(),
        LoadTarget::Name(name) => PathBuf::from(name),
    };
    JitError::NvrtcLoad { path, reason }
}
