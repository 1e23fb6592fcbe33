//! Ctrl-C: a command that measures ends soon and shows what it has.
//!
//! The first one only sets a flag, which is looked at between computations. The second ends the process at once, as the
//! first does where nobody has asked for this.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C sets a flag. Where the system has no signals, it still ends the process.
pub fn watch() -> &'static AtomicBool {
    #[cfg(unix)]
    signal::catch();
    &REQUESTED
}

/// Whether there was a Ctrl-C.
pub fn is_requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// An error after Ctrl-C.
pub fn check() -> Result<()> {
    match is_requested() {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}

#[cfg(unix)]
mod signal {
    use std::ffi::c_int;
    use std::sync::atomic::Ordering;

    // The same on every Unix.
    const SIGINT: c_int = 2;
    const DEFAULT: usize = 0;

    unsafe extern "C" {
        fn signal(number: c_int, handler: usize) -> usize;
    }

    pub fn catch() {
        let handler: extern "C" fn(c_int) = on_signal;
        // SAFETY: the handler only does what a signal handler may.
        unsafe { signal(SIGINT, handler as usize) };
    }

    /// Sets an atomic flag, and lets the next signal end the process: both are safe in a signal handler.
    extern "C" fn on_signal(_: c_int) {
        super::REQUESTED.store(true, Ordering::Relaxed);
        // SAFETY: `signal` is async-signal-safe.
        unsafe { signal(SIGINT, DEFAULT) };
    }
}
