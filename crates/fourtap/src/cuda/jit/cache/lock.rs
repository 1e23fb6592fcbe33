//! One process at a time builds an entry.
//!
//! The lock is the operating system's, on an open file, so it ends with its process however that ends. The file stays
//! when the lock is released. `clear` and `prune` hold the lock while they remove the file, and a process that gets a
//! lock checks that its file is still the one at that path: without that check, one process could hold the removed file
//! and another a new one of the same name, and both would build.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Held until dropped.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Lock {
    /// Waits for the lock for at most `patience`, then fails with [`io::ErrorKind::TimedOut`].
    ///
    /// It asks again and again instead of blocking: a child forked by the holder keeps a lock alive after the holder
    /// was killed, and a stopped process keeps it for as long as it is stopped.
    pub fn take(path: &Path, patience: Duration) -> io::Result<Lock> {
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            let file = open(path)?;
            loop {
                match file.try_lock() {
                    Ok(()) => break,
                    Err(TryLockError::Error(error)) => return Err(error),
                    Err(TryLockError::WouldBlock) if start.elapsed() >= patience => {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    Err(TryLockError::WouldBlock) => std::thread::sleep(pause),
                }
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            if is_at(&file, path)? {
                return Ok(Lock(file));
            }
        }
    }

    /// Removes the file while holding the lock.
    ///
    /// Only where [`Lock::take`] can tell a removed file from its successor; elsewhere the empty file stays.
    pub fn remove(self, path: &Path) -> bool {
        cfg!(unix) && std::fs::remove_file(path).is_ok()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough if a child was forked meanwhile: it shares the lock until it ends.
        let _ = self.0.unlock();
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let held = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(there) => Ok((held.dev(), held.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
fn is_at(_file: &File, _path: &Path) -> io::Result<bool> {
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_do_not_hold_one_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = Lock::take(&path, Duration::ZERO).unwrap();
        let error = Lock::take(&path, Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(held);
        Lock::take(&path, Duration::ZERO).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_lock_on_a_removed_file_is_no_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = Lock::take(&path, Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| Lock::take(&path, Duration::from_secs(20)));
            // Long enough for the other thread to open the file that is about to be removed.
            std::thread::sleep(Duration::from_millis(200));
            assert!(first.remove(&path));
            let second = Lock::take(&path, Duration::ZERO).unwrap();
            std::thread::sleep(Duration::from_millis(200));
            assert!(!waiting.is_finished(), "two hold the lock");
            drop(second);
            assert!(waiting.join().unwrap().is_ok());
        });
    }
}
