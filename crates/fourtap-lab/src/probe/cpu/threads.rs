//! Work that every thread does on memory of its own.

use std::sync::{Mutex, PoisonError};

use crate::error::Result;

/// A part for each thread of the current pool.
pub struct Parts<T>(Vec<Mutex<T>>);

impl<T: Send> Parts<T> {
    /// Made by the thread that will work on it, so that its memory lies near.
    pub fn new(make: impl Fn() -> Result<T> + Sync) -> Result<Self> {
        let parts = rayon::broadcast(|_| make());
        let parts = parts.into_iter().map(|part| part.map(Mutex::new));
        Ok(Parts(parts.collect::<Result<_>>()?))
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Each thread on its own, all at once.
    pub fn each(&self, work: impl Fn(&mut T) + Sync) {
        rayon::broadcast(|context| {
            // Nobody else ever waits for it; the lock is how the compiler knows.
            let part = &self.0[context.index()];
            work(&mut part.lock().unwrap_or_else(PoisonError::into_inner));
        });
    }

    /// The first that is not as it should be, in words: expected and found.
    pub fn find(
        &self,
        wrong: impl Fn(&T) -> Option<(String, String)> + Sync,
    ) -> Option<(String, String)> {
        let found = rayon::broadcast(|context| {
            let part = &self.0[context.index()];
            wrong(&part.lock().unwrap_or_else(PoisonError::into_inner))
        });
        found.into_iter().flatten().next()
    }
}
