//! The kernel cache: machine code on disk, so that a kernel is compiled once per machine and not once per process.
//!
//! Any number of processes use one directory at once, and any of them may be killed at any moment. An entry appears
//! atomically by a rename, and everything read is checked against its checksum first.

mod directory;
mod entry;
mod lock;
mod upkeep;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use self::entry::Kind;
use self::lock::Lock;
use super::{CacheKey, JitError};
use crate::warning::print_warning;
pub use upkeep::{ClearSummary, Entry, PruneLimits, State};

/// A file larger than this is not a kernel and is not read.
const LARGEST: u64 = 1 << 30;

/// How long to wait for another process that is building the same kernel before building it here too.
const PATIENCE: Duration = Duration::from_secs(180);

/// A directory of compiled kernels.
#[derive(Debug)]
pub struct Cache {
    directory: PathBuf,
    warn: fn(&str),
    patience: Duration,
    /// Whether the directory was there and found to be safe.
    prepared: AtomicBool,
    /// Whether the warning about an unwritable cache was printed: once, not once per kernel.
    complained: AtomicBool,
}

impl Cache {
    /// The user's cache: `FOURTAP_CACHE_DIR`, else `fourtap/kernels` under `XDG_CACHE_HOME` or `~/.cache`
    /// (`LOCALAPPDATA` on Windows). `None` if `FOURTAP_CACHE_DIR` is empty or `off`, or there is no home.
    pub fn standard() -> Result<Option<Cache>, JitError> {
        directory::standard(|name| std::env::var_os(name))
            .map(|directory| Cache::at(&directory))
            .transpose()
    }

    /// The cache in a directory. One that does not exist is created when the first kernel is to be cached, not before.
    ///
    /// Refuses a directory that belongs to another user or that others may write to: its contents will be executed.
    pub fn at(directory: &Path) -> Result<Cache, JitError> {
        let exists = directory::look(directory)?;
        Ok(Cache {
            prepared: AtomicBool::new(exists),
            directory: directory.to_path_buf(),
            warn: print_warning,
            patience: PATIENCE,
            complained: AtomicBool::new(false),
        })
    }

    /// Sends warnings, each of one line, to `warn` instead of standard error.
    pub fn with_warnings(mut self, warn: fn(&str)) -> Cache {
        self.warn = warn;
        self
    }

    /// Waits for other processes that build the same kernel for at most `patience` instead of three minutes.
    pub fn with_patience(mut self, patience: Duration) -> Cache {
        self.patience = patience;
        self
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The cached code of `key`; if there is none, or it is damaged, the result of `build`, which is then cached.
    ///
    /// If several threads and processes need a key at once, one builds and the others wait for it. An unwritable cache
    /// causes a warning, not an error.
    pub fn get_or_build(
        &self,
        key: &CacheKey,
        build: impl FnOnce() -> Result<Vec<u8>, JitError>,
    ) -> Result<Vec<u8>, JitError> {
        // Before anything is read: what is read will be executed.
        if let Err(error) = self.prepare() {
            self.complain("create", &io::Error::other(error));
            return build();
        }
        let stem = entry::stem_of(key);
        let path = entry::path_of(&self.directory, &stem, Kind::Entry);
        if let Lookup::Sound(code) = look(&path, key) {
            return Ok(code);
        }
        let lock = match self.lock(&stem) {
            Ok(lock) => Some(lock),
            Err(error) => {
                self.complain("lock", &error);
                None
            }
        };
        // Another process may have built it while this one waited.
        match look(&path, key) {
            Lookup::Sound(code) => return Ok(code),
            Lookup::Missing => {}
            Lookup::Damaged(reason) => {
                let name = &key.name;
                (self.warn)(&format!(
                    "cached kernel {name} is damaged ({reason}) and compiled again: {}",
                    path.display()
                ));
                // Without the lock, another process may have replaced it by a valid entry.
                if lock.is_some() {
                    let _ = fs::remove_file(&path);
                }
            }
        }
        let code = build()?;
        if lock.is_some() {
            upkeep::remove_parts(&self.directory, &stem);
        }
        if let Err(error) = self.store(&stem, &path, &entry::encode(key, &code, SystemTime::now()))
        {
            self.complain("write to", &error);
        }
        Ok(code)
    }

    fn prepare(&self) -> Result<(), JitError> {
        if !self.prepared.load(Ordering::Relaxed) {
            directory::prepare(&self.directory)?;
            self.prepared.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn lock(&self, stem: &str) -> io::Result<Lock> {
        let path = entry::path_of(&self.directory, stem, Kind::Lock);
        match Lock::take(&path, self.patience) {
            // Somebody removed the whole directory since it was opened.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                directory::prepare(&self.directory).map_err(io::Error::other)?;
                Lock::take(&path, self.patience)
            }
            result => result,
        }
    }

    /// Writes a temporary file and renames it, so that no reader sees half an entry, not even after a power failure.
    fn store(&self, stem: &str, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let (prefix, suffix) = entry::part_name(stem);
        let mut part = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(suffix)
            .tempfile_in(&self.directory)?;
        part.write_all(bytes)?;
        part.as_file().sync_all()?;
        part.persist(path)?;
        // Not every file system supports this; the entry is then only less durable.
        #[cfg(unix)]
        let _ = File::open(&self.directory).and_then(|directory| directory.sync_all());
        Ok(())
    }

    fn complain(&self, action: &str, error: &io::Error) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            (self.warn)(&format!(
                "cannot {action} the kernel cache {}, so kernels are compiled again next time: {error}",
                self.directory.display()
            ));
        }
    }
}

/// The result of looking up a key.
enum Lookup {
    Sound(Vec<u8>),
    Missing,
    Damaged(String),
}

fn look(path: &Path, key: &CacheKey) -> Lookup {
    let (file, bytes) = match read(path) {
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Lookup::Missing,
        Err(error) => return Lookup::Damaged(error.to_string()),
    };
    match entry::decode(&bytes) {
        Ok(contents) if contents.hash != key.hash => {
            Lookup::Damaged("it holds another kernel".into())
        }
        Ok(contents) => {
            // The time of last use, for `prune`. Fails on a read-only cache, where it is not needed.
            let _ = file.set_modified(SystemTime::now());
            Lookup::Sound(contents.code.to_vec())
        }
        Err(reason) => Lookup::Damaged(reason.into()),
    }
}

fn read(path: &Path) -> io::Result<(File, Vec<u8>)> {
    let metadata = fs::symlink_metadata(path)?;
    // Opening a pipe would wait for its other end.
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    (&file).take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::other("it is too large for a kernel"));
    }
    Ok((file, bytes))
}
