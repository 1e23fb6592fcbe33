//! Managing the kernel cache: listing, checking, pruning and clearing it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::entry::{self, Kind};
use super::lock::Lock;
use super::{Cache, read};
use crate::cuda::jit::{Architecture, JitError, NvrtcVersion};

/// A kernel in a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The kernel's name.
    pub name: String,
    /// What it was compiled for; unknown if the entry is damaged.
    pub architecture: Option<Architecture>,
    /// What it was compiled by; unknown if the entry is damaged.
    pub nvrtc: Option<NvrtcVersion>,
    /// Size of the file in bytes.
    pub size: u64,
    /// When it was compiled; unknown if the entry is damaged.
    pub created: Option<SystemTime>,
    /// When a process last asked for it.
    pub last_used: SystemTime,
    /// The file.
    pub path: PathBuf,
    /// Whether it can be used.
    pub state: State,
}

/// Whether an entry can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It matches its checksum.
    Sound,
    /// It is damaged, for this reason. It is compiled again when next needed.
    Damaged(String),
}

/// Limits of what a cache keeps. The default keeps everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruneLimits {
    /// Maximum bytes of all entries together; the least recently used go first.
    pub max_bytes: Option<u64>,
    /// Maximum time an entry may be unused.
    pub max_age: Option<Duration>,
}

/// What [`Cache::clear`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClearSummary {
    /// Kernels removed.
    pub entries: usize,
    /// Bytes that freed.
    pub bytes: u64,
    /// Kernels that a process is building right now, whose files were kept.
    pub busy: usize,
}

impl Cache {
    /// The kernels it holds, by name. Each is read and checked.
    pub fn entries(&self) -> Result<Vec<Entry>, JitError> {
        let mut entries: Vec<Entry> = self
            .files()?
            .iter()
            .filter(|file| file.kind == Kind::Entry)
            .map(describe)
            .collect();
        entries.sort_by(|a, b| (&a.name, &a.path).cmp(&(&b.name, &b.path)));
        Ok(entries)
    }

    /// Total size of its files in bytes.
    pub fn size(&self) -> Result<u64, JitError> {
        Ok(self.files()?.iter().map(|file| file.size).sum())
    }

    /// The damaged kernels; with `remove`, they are also removed.
    pub fn verify(&self, remove: bool) -> Result<Vec<Entry>, JitError> {
        let mut damaged = self.entries()?;
        damaged.retain(|entry| entry.state != State::Sound);
        if remove {
            for entry in &damaged {
                remove_file(&entry.path)?;
            }
        }
        Ok(damaged)
    }

    /// Removes what is over the limits, and what killed processes left behind. Returns the kernels removed.
    pub fn prune(&self, limits: PruneLimits) -> Result<Vec<Entry>, JitError> {
        let mut entries = self.entries()?;
        entries.sort_by_key(|entry| entry.last_used);
        let now = SystemTime::now();
        let mut total: u64 = entries.iter().map(|entry| entry.size).sum();
        let mut removed = Vec::new();
        for entry in entries {
            let unused = now.duration_since(entry.last_used).unwrap_or_default();
            let old = limits.max_age.is_some_and(|most| unused > most);
            let much = limits.max_bytes.is_some_and(|most| total > most);
            if old || much {
                remove_file(&entry.path)?;
                total -= entry.size;
                removed.push(entry);
            }
        }
        self.sweep()?;
        Ok(removed)
    }

    /// Removes all its kernels, and what killed processes left behind. Other files in the directory stay.
    pub fn clear(&self) -> Result<ClearSummary, JitError> {
        let mut cleared = ClearSummary::default();
        for file in self.files()? {
            if file.kind == Kind::Entry && remove_file(&file.path)? {
                cleared.entries += 1;
                cleared.bytes += file.size;
            }
        }
        cleared.busy = self.sweep()?;
        Ok(cleared)
    }

    /// Removes parts that no process is writing, and lock files without a kernel. Returns how many are busy.
    fn sweep(&self) -> Result<usize, JitError> {
        let files = self.files()?;
        let stems = |kind| {
            let of_kind = files.iter().filter(move |file| file.kind == kind);
            of_kind.map(|file| &file.stem).collect::<BTreeSet<_>>()
        };
        let entries = stems(Kind::Entry);
        let mut busy = 0;
        for stem in stems(Kind::Part).union(&stems(Kind::Lock)) {
            let path = entry::path_of(&self.directory, stem, Kind::Lock);
            match Lock::take(&path, Duration::ZERO) {
                Ok(lock) => {
                    remove_parts(&self.directory, stem);
                    if !entries.contains(stem) {
                        lock.remove(&path);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => busy += 1,
                Err(error) => return Err(JitError::io(&path, "lock it", &error)),
            }
        }
        Ok(busy)
    }

    /// The cache's own files: no other names, links or directories.
    fn files(&self) -> Result<Vec<CacheFile>, JitError> {
        let failed = |error| JitError::io(&self.directory, "read the kernel cache", &error);
        let mut files = Vec::new();
        let items = match fs::read_dir(&self.directory) {
            // Nothing was cached yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
            items => items.map_err(failed)?,
        };
        for item in items {
            let item = item.map_err(failed)?;
            let name = item.file_name();
            let Some((stem, kind)) = name.to_str().and_then(entry::recognise) else {
                continue;
            };
            // Of the file or link itself. It may be gone if another process cleans up too.
            let Ok(metadata) = item.metadata() else {
                continue;
            };
            if metadata.is_file() {
                files.push(CacheFile {
                    path: item.path(),
                    stem: stem.to_owned(),
                    kind,
                    size: metadata.len(),
                    modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                });
            }
        }
        Ok(files)
    }
}

struct CacheFile {
    path: PathBuf,
    stem: String,
    kind: Kind,
    size: u64,
    modified: SystemTime,
}

fn describe(file: &CacheFile) -> Entry {
    let (name, hash) = file.stem.rsplit_once('-').unwrap_or((&file.stem, ""));
    let damaged = |reason: String| Entry {
        name: name.to_owned(),
        architecture: None,
        nvrtc: None,
        size: file.size,
        created: None,
        last_used: file.modified,
        path: file.path.clone(),
        state: State::Damaged(reason),
    };
    let bytes = match read(&file.path) {
        Ok((_, bytes)) => bytes,
        Err(error) => return damaged(error.to_string()),
    };
    match entry::decode(&bytes) {
        Ok(contents) if contents.hash.to_string() != hash => {
            damaged("it holds another kernel".into())
        }
        Ok(contents) => Entry {
            name: contents.name.to_owned(),
            architecture: Some(contents.architecture),
            nvrtc: Some(contents.nvrtc),
            created: Some(contents.created),
            state: State::Sound,
            ..damaged(String::new())
        },
        Err(reason) => damaged(reason.into()),
    }
}

/// Removes leftovers of killed processes for this kernel. The caller holds its lock, so no process is writing one.
pub(super) fn remove_parts(directory: &Path, stem: &str) {
    for item in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = item.file_name();
        let recognised = name.to_str().and_then(entry::recognise);
        if recognised == Some((stem, Kind::Part)) {
            let _ = fs::remove_file(item.path());
        }
    }
}

/// Removes a file, or the link itself; false if another process was faster.
fn remove_file(path: &Path) -> Result<bool, JitError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(JitError::io(path, "remove it", &error)),
    }
}
