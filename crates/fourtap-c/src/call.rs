//! What becomes of a call once it is prepared.

use fourtap::Prepared;

use crate::options::Options;
use crate::status::{Error, Result};

/// What a function does with a call that was checked and planned.
#[derive(Clone, Copy)]
pub enum End {
    /// Computes the result.
    Launch,
    /// Writes the bytes of workspace it needs to this address.
    WorkspaceSize(*mut usize),
}

impl End {
    /// Does that.
    ///
    /// # Safety
    /// As for [`Options::launch`]; the address is null or can be written.
    pub unsafe fn of(self, call: Prepared<'_>, options: &Options) -> Result<()> {
        match self {
            // SAFETY: as the caller promises.
            End::Launch => unsafe { options.launch(call) },
            End::WorkspaceSize(bytes) if bytes.is_null() => Err(Error::Null { argument: "bytes" }),
            End::WorkspaceSize(bytes) => {
                // SAFETY: as the caller promises.
                unsafe { bytes.write_unaligned(call.workspace_bytes()) };
                Ok(())
            }
        }
    }
}
