//! Scratch memory of a call: the caller's workspace, or allocated on the stream.

use super::driver::StreamMemory;
use super::error::CudaError;
use super::handle::Cuda;
use crate::error::{Error, Result};
use crate::prepared::Workspace;

/// The alignment of the driver's allocations, which tables in scratch memory rely on.
const ALIGNMENT: u64 = 256;

/// Scratch memory. If it was allocated on the stream, it is freed there in stream order.
pub(super) struct Scratch<'a> {
    address: u64,
    _allocated: Option<StreamMemory<'a>>,
}

impl Scratch<'_> {
    /// Its address, a multiple of 256; 0 if its size is 0.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Cuda {
    /// That many bytes: from the caller's workspace, or else from the stream's memory pool.
    pub(super) fn scratch(&self, bytes: usize, lent: Option<Workspace>) -> Result<Scratch<'_>> {
        let of = |address| Scratch {
            address,
            _allocated: None,
        };
        match lent {
            _ if bytes == 0 => Ok(of(0)),
            Some(Workspace { address, .. }) if !address.is_multiple_of(ALIGNMENT) => {
                Err(Error::Misaligned {
                    tensor: "workspace",
                    expected: ALIGNMENT as usize,
                    address: address as usize,
                })
            }
            Some(lent) if lent.bytes >= bytes => Ok(of(lent.address)),
            Some(lent) => Err(Error::Unsupported {
                backend: "cuda",
                expected: format!("a workspace of at least {bytes} bytes"),
                found: lent.bytes.to_string(),
            }),
            None => {
                let allocated = StreamMemory::alloc(self.context(), bytes, self.stream())
                    .map_err(CudaError::from)?;
                Ok(Scratch {
                    address: allocated.as_ptr(),
                    _allocated: Some(allocated),
                })
            }
        }
    }
}
