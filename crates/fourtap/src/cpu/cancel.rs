//! How a call on the CPU is given up before it is done.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Cpu;
use crate::error::{Error, Result};

/// What tells a call to stop, if anything does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cancel(Option<&'static AtomicBool>);

/// The same flag, not flags that say the same.
impl PartialEq for Cancel {
    fn eq(&self, other: &Self) -> bool {
        match (self.0, other.0) {
            (Some(one), Some(another)) => std::ptr::eq(one, another),
            (one, another) => one.is_none() && another.is_none(),
        }
    }
}

impl Eq for Cancel {}

impl Cpu {
    /// With calls that end in [`Error::Cancelled`] soon after another thread has set `flag`. It is looked at between the
    /// tasks that a call is cut into; one too small to be cut is never cancelled. A cancelled call leaves its outputs with
    /// some elements written and others not.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use fourtap::cpu::Cpu;
    ///
    /// static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    /// let cpu = Cpu::new().cancelled_by(&INTERRUPTED);
    /// // Wherever the program learns that nobody waits for the result any longer:
    /// INTERRUPTED.store(true, Ordering::Relaxed);
    /// # let _ = cpu;
    /// ```
    pub fn cancelled_by(self, flag: &'static AtomicBool) -> Self {
        Cpu {
            cancel: Cancel(Some(flag)),
            ..self
        }
    }

    /// Does one task of a call, unless the call is cancelled.
    pub(super) fn unless_cancelled(&self, task: impl FnOnce()) -> Result<()> {
        match self.cancel.0 {
            // Relaxed: the flag says nothing about other memory.
            Some(flag) if flag.load(Ordering::Relaxed) => Err(Error::Cancelled),
            _ => {
                task();
                Ok(())
            }
        }
    }
}
