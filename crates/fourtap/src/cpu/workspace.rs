//! Per-thread workspaces.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// One buffer per worker, allocated before anything is written: when memory runs out, no output has changed.
pub(super) fn workspaces<R>(workers: usize, length: usize) -> Result<Vec<Vec<R>>> {
    let allocate = |_| {
        let mut buffer = Vec::new();
        let failed = |_| Error::OutOfMemory {
            bytes: workers
                .saturating_mul(length)
                .saturating_mul(size_of::<R>()),
        };
        buffer
            .try_reserve_exact(length)
            .map_err(failed)
            .map(|()| buffer)
    };
    (0..workers).map(allocate).collect()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
