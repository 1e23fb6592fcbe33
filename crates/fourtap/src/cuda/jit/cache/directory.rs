//! The cache directory, and whether it can be trusted.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::super::JitError;

/// The cache directory according to the environment; `None` if the cache is disabled or there is nowhere to put it.
pub(super) fn standard(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(chosen) = variable("FOURTAP_CACHE_DIR") {
        return (!chosen.is_empty() && chosen != "off").then(|| chosen.into());
    }
    // The XDG specification says to ignore relative paths: they would depend on the current directory.
    let absolute = |name| {
        variable(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    let caches = if cfg!(windows) {
        absolute("LOCALAPPDATA")
    } else {
        absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
    };
    Some(caches?.join("fourtap").join("kernels"))
}

/// Creates the directory, for this user only, unless it exists; refuses one that other users can write to, because its
/// contents will be executed.
pub(super) fn prepare(directory: &Path) -> Result<(), JitError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
        .create(directory)
        .map_err(|error| JitError::io(directory, "create the kernel cache", &error))?;
    check(directory)
}

/// Whether the directory exists, in which case it must be one that can be trusted. Creates nothing.
pub(super) fn look(directory: &Path) -> Result<bool, JitError> {
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => check(directory).map(|()| true),
        Ok(_) => {
            let error = io::ErrorKind::NotADirectory.into();
            Err(JitError::io(directory, "open the kernel cache", &error))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(JitError::io(directory, "open the kernel cache", &error)),
    }
}

#[cfg(unix)]
fn check(directory: &Path) -> Result<(), JitError> {
    use std::os::unix::fs::MetadataExt;
    unsafe extern "C" {
        // Takes no arguments and cannot fail.
        safe fn geteuid() -> u32;
    }
    let metadata = fs::metadata(directory)
        .map_err(|error| JitError::io(directory, "read the kernel cache's owner", &error))?;
    let (owner, user) = (metadata.uid(), geteuid());
    let found = if owner != user {
        format!("owned by user {owner}, not by user {user}")
    } else if metadata.mode() & 0o022 != 0 {
        let mode = metadata.mode() & 0o7777;
        format!("writable by its group or by everyone (mode {mode:04o})")
    } else {
        return Ok(());
    };
    Err(JitError::CacheUnsafe {
        path: directory.to_path_buf(),
        found,
    })
}

#[cfg(not(unix))]
fn check(_directory: &Path) -> Result<(), JitError> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn directory(variables: &[(&str, &str)]) -> Option<PathBuf> {
        standard(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_environment_names_the_directory() {
        let home = ("HOME", "/home/me");
        let xdg = ("XDG_CACHE_HOME", "/xdg");
        let own = |value| ("FOURTAP_CACHE_DIR", value);
        let path = |path: &str| Some(PathBuf::from(path));
        assert_eq!(directory(&[own("/mine"), xdg, home]), path("/mine"));
        assert_eq!(directory(&[own("off"), xdg, home]), None);
        assert_eq!(directory(&[own(""), xdg, home]), None);
        assert_eq!(directory(&[xdg, home]), path("/xdg/fourtap/kernels"));
        let expected = path("/home/me/.cache/fourtap/kernels");
        assert_eq!(directory(&[home]), expected);
        assert_eq!(directory(&[("XDG_CACHE_HOME", "x"), home]), expected);
        assert_eq!(directory(&[]), None);
    }
}
