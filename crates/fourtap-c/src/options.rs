//! What a call is told besides its tensors: stream, workspace, reproducibility.

use std::ffi::c_void;

use fourtap::cpu::Cpu;
use fourtap::cuda::Cuda;
use fourtap::{Backend, Place, Prepared};

use crate::descriptor::{self, Descriptor};
use crate::status::{Error, Result};

/// A flag: gradients on CUDA are bitwise reproducible also for small problems in f32, which use atomic additions otherwise.
pub const DETERMINISTIC: u32 = 1;

/// How a call is computed. Instead of a pointer to this a function takes NULL, which is the same as all zeros. Calls on the CPU use
/// none of it: they run on all processors, or on as many threads as the environment variable RAYON_NUM_THREADS says.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// sizeof(fourtap_options).
    pub struct_size: u32,
    /// 0 or FOURTAP_DETERMINISTIC.
    pub flags: u32,
    /// The CUDA stream the work is queued on, a CUstream or cudaStream_t of the tensors' device; NULL is the default stream.
    pub stream: *mut c_void,
    /// Device memory that the call may use until its work is done, as much as the function's `_workspace_size` says, at an address that is
    /// a multiple of 256. NULL: what is needed is allocated on the stream.
    pub workspace: *mut c_void,
    /// Bytes there.
    pub workspace_size: usize,
}

// SAFETY: integers and pointers, all of which may be zero; there is one version.
unsafe impl Descriptor for Options {
    const SIZES: &'static [usize] = &[size_of::<Options>()];
}

impl Options {
    /// Reads them; those of NULL are all zero.
    ///
    /// # Safety
    /// As for [`descriptor::read`].
    pub(crate) unsafe fn read(options: *const Options) -> Result<Options> {
        // SAFETY: as the caller promises.
        let options = unsafe { descriptor::read_optional(options, "options")? };
        let options = options.unwrap_or(Options {
            struct_size: 0,
            flags: 0,
            stream: std::ptr::null_mut(),
            workspace: std::ptr::null_mut(),
            workspace_size: 0,
        });
        if options.flags & !DETERMINISTIC != 0 {
            return Err(Error::value(
                "options.flags",
                "0 or FOURTAP_DETERMINISTIC",
                options.flags,
            ));
        }
        if options.workspace.is_null() && options.workspace_size != 0 {
            return Err(Error::value(
                "options.workspace",
                format!("{} bytes", options.workspace_size),
                "NULL",
            ));
        }
        Ok(options)
    }

    /// Checks and plans a call whose tensors are in `place`.
    ///
    /// # Safety
    /// The stream is null or one of that device, which lives as long as the call's work is queued on it.
    pub(crate) unsafe fn prepare<'a>(
        &self,
        place: Place,
        prepare: impl FnOnce(&Backend) -> fourtap::Result<Prepared<'a>>,
    ) -> Result<Prepared<'a>> {
        let backend = match place {
            Place::Cuda { ordinal } => Cuda::new(ordinal).map(|cuda| {
                // SAFETY: as the caller promises.
                let cuda = unsafe { cuda.on_stream(self.stream) };
                Backend::Cuda(cuda.deterministic(self.flags & DETERMINISTIC != 0))
            }),
            _ => Ok(Backend::Cpu(
                Cpu::new().with_threads(Cpu::available_threads()),
            )),
        };
        Ok(match backend {
            Ok(backend) => prepare(&backend)?,
            // An invalid call is reported before a missing device.
            Err(missing) => prepare(&Backend::Auto).and(Err(missing.into()))?,
        })
    }

    /// Launches a call.
    ///
    /// # Safety
    /// The workspace is null or as the field's documentation says.
    pub(crate) unsafe fn launch(&self, call: Prepared<'_>) -> Result<()> {
        let (given, needed) = (self.workspace_size, call.workspace_bytes());
        if !self.workspace.is_null() && given < needed {
            let expected =
                format!("at least {needed}, as the function ending in _workspace_size says");
            return Err(Error::value("workspace_size", expected, given));
        }
        let launched = match self.workspace.is_null() {
            true => call.launch(),
            // SAFETY: as the caller promises.
            false => unsafe { call.launch_in(self.workspace as u64, self.workspace_size) },
        };
        Ok(launched?)
    }
}
