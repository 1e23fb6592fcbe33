//! The driver's library: found at run time, every function looked up before the first is called.
//!
//! The declarations are this crate's own. Bindings that look a function up when it is first called can only panic
//! if it is missing, and those that return a status as a Rust enum are undefined the day a newer driver returns a
//! number the enum does not list. Here a missing function is an error, and a status is a number.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

use super::error::{DriverError, DriverResult};

/// What every function returns; 0 is success.
pub(super) type Status = c_int;
/// A device, as the driver numbers it.
pub(super) type RawDevice = c_int;
/// A context, stream, event, graph, library, kernel or function: an opaque pointer.
pub(super) type Handle = *mut c_void;
/// An address in device memory.
pub(super) type Address = c_ulonglong;

/// The oldest driver that has every function below: the library interface came with CUDA 12.0.
pub(super) const NEEDED: (u32, u32) = (12, 0);

/// How a kernel is launched by `cuLaunchKernelEx`, as cuda.h lays it out.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) stream: Handle,
    pub(super) attributes: *mut LaunchAttribute,
    pub(super) attribute_count: c_uint,
}

/// One option of such a launch. The value is a union of 64 bytes, of which only small integers are used here.
#[repr(C)]
pub(super) struct LaunchAttribute {
    pub(super) id: c_uint,
    pub(super) padding: [c_uint; 1],
    pub(super) value: LaunchAttributeValue,
}

/// The union's alignment is that of the pointers it may hold.
#[repr(C, align(8))]
pub(super) struct LaunchAttributeValue(pub(super) [c_uint; 16]);

// A mistake here would be read by the driver as another launch.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<LaunchConfig>() == 56 && size_of::<LaunchAttribute>() == 72);

/// Declares the table of functions and its lookup together, so that a name and its signature cannot get out of step.
macro_rules! api {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The driver's functions, by the names its library exports.
        #[allow(non_snake_case)]
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl Api {
            /// # Safety
            /// `library` is the CUDA driver's, and stays loaded as long as the table is used.
            unsafe fn look_up(library: &libloading::Library) -> DriverResult<Self> {
                Ok(Api {
                    // SAFETY: the signatures are those of cuda.h, which never changes one under an exported name.
                    $($name: unsafe { function(library, stringify!($name)) }?,)*
                })
            }
        }
    };
}

api! {
    cuInit(c_uint);
    cuGetErrorName(Status, *mut *const c_char);
    cuGetErrorString(Status, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut RawDevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, RawDevice);
    cuDeviceGetUuid_v2(*mut [u8; 16], RawDevice);
    cuDeviceGetPCIBusId(*mut c_char, c_int, RawDevice);
    cuDeviceGetAttribute(*mut c_int, c_int, RawDevice);
    cuDeviceTotalMem_v2(*mut usize, RawDevice);
    cuDevicePrimaryCtxRetain(*mut Handle, RawDevice);
    cuCtxGetCurrent(*mut Handle);
    cuCtxGetDevice(*mut RawDevice);
    cuCtxPushCurrent_v2(Handle);
    cuCtxPopCurrent_v2(*mut Handle);
    cuCtxSynchronize();
    cuStreamCreate(*mut Handle, c_uint);
    cuStreamDestroy_v2(Handle);
    cuStreamSynchronize(Handle);
    cuStreamQuery(Handle);
    cuStreamWaitEvent(Handle, Handle, c_uint);
    cuStreamBeginCapture_v2(Handle, c_int);
    cuStreamEndCapture(Handle, *mut Handle);
    cuStreamIsCapturing(Handle, *mut c_int);
    cuEventCreate(*mut Handle, c_uint);
    cuEventDestroy_v2(Handle);
    cuEventRecord(Handle, Handle);
    cuEventQuery(Handle);
    cuEventSynchronize(Handle);
    cuEventElapsedTime(*mut f32, Handle, Handle);
    cuGraphInstantiateWithFlags(*mut Handle, Handle, c_ulonglong);
    cuGraphGetNodes(Handle, *mut Handle, *mut usize);
    cuGraphLaunch(Handle, Handle);
    cuGraphDestroy(Handle);
    cuGraphExecDestroy(Handle);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut Address, usize);
    cuMemFree_v2(Address);
    cuMemAllocAsync(*mut Address, usize, Handle);
    cuMemFreeAsync(Address, Handle);
    cuMemsetD8Async(Address, c_uchar, usize, Handle);
    cuMemsetD32Async(Address, c_uint, usize, Handle);
    cuMemcpyHtoDAsync_v2(Address, *const c_void, usize, Handle);
    cuMemcpyDtoHAsync_v2(*mut c_void, Address, usize, Handle);
    cuMemcpyDtoDAsync_v2(Address, Address, usize, Handle);
    cuPointerGetAttribute(*mut c_void, c_int, Address);
    cuLibraryLoadData(
        *mut Handle, *const c_void,
        *mut c_int, *mut *mut c_void, c_uint,
        *mut c_int, *mut *mut c_void, c_uint
    );
    cuLibraryGetKernel(*mut Handle, Handle, *const c_char);
    cuKernelGetFunction(*mut Handle, Handle);
    cuKernelGetAttribute(*mut c_int, c_int, Handle, RawDevice);
    cuKernelSetAttribute(c_int, c_int, Handle, RawDevice);
    cuFuncGetAttribute(*mut c_int, c_int, Handle);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, Handle, c_int, usize);
    cuOccupancyMaxActiveClusters(*mut c_int, Handle, *const LaunchConfig);
    cuTensorMapEncodeTiled(
        *mut c_void, c_int, c_uint, Address, *const c_ulonglong, *const c_ulonglong, *const c_uint,
        *const c_uint, c_int, c_int, c_int, c_int
    );
    cuLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void
    );
    cuLaunchKernelEx(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
}

/// Finds the driver and every function of it that this crate calls. Does not initialise it.
pub(super) fn load() -> DriverResult<(Api, (u32, u32))> {
    let library = open()?;
    // SAFETY: the signature is that of cuda.h.
    let get_version: unsafe extern "C" fn(*mut c_int) -> Status =
        unsafe { function(&library, "cuDriverGetVersion") }?;
    let mut version = 0;
    // SAFETY: it may be called before the driver is started, and writes one number.
    let status = unsafe { get_version(&mut version) };
    let found = (
        version.max(0) as u32 / 1000,
        version.max(0) as u32 % 1000 / 10,
    );
    if status == SUCCESS && found < NEEDED {
        return Err(DriverError::TooOld {
            found,
            needed: NEEDED,
        });
    }
    // SAFETY: this is the driver's library, and it is never unloaded: see below.
    let api = unsafe { Api::look_up(&library) }?;
    // Never unloaded: handles, and strings of error messages, live to the end of the process.
    std::mem::forget(library);
    if status != SUCCESS {
        return Err(api.init_failure(status));
    }
    Ok((api, found))
}

impl Api {
    pub(super) fn init_failure(&self, status: Status) -> DriverError {
        let (name, text) = self.describe(status);
        DriverError::Init {
            code: status,
            name,
            text,
        }
    }
}

/// What the library is called. Not `libcuda.so`, which may be the toolkit's stub for linking.
const NAME: &str = if cfg!(windows) {
    "nvcuda.dll"
} else {
    "libcuda.so.1"
};

fn open() -> DriverResult<libloading::Library> {
    // SAFETY: loading runs the library's constructors; the driver's have no preconditions.
    unsafe { libloading::Library::new(NAME) }.map_err(|error| {
        // The loader's own text is the source of libloading's error where there is one.
        let text = match std::error::Error::source(&error) {
            Some(source) => source.to_string(),
            None => error.to_string(),
        };
        let reason = text.split_whitespace().collect::<Vec<_>>().join(" ");
        // Of the driver itself, not of a library it depends on in turn.
        let absent = reason.contains("No such file") && reason.starts_with(NAME);
        if absent || cfg!(windows) {
            DriverError::NoDriver { library: NAME }
        } else {
            DriverError::Unloadable { reason }
        }
    })
}

/// # Safety
/// `F` is the type of a function pointer with the signature that `library` exports under `name`.
unsafe fn function<F: Copy>(library: &libloading::Library, name: &'static str) -> DriverResult<F> {
    // SAFETY: as promised by the caller.
    match unsafe { library.get::<F>(name) } {
        Ok(symbol) => Ok(*symbol),
        Err(_) => Err(DriverError::MissingFunction { function: name }),
    }
}

pub(super) const SUCCESS: Status = 0;
pub(super) const INVALID_VALUE: Status = 1;
pub(super) const OUT_OF_MEMORY: Status = 2;
const STUB_LIBRARY: Status = 34;
pub(super) const NOT_READY: Status = 600;

impl Api {
    /// A status as a result; `attempt` completes the sentence "could not ...".
    pub(super) fn check(&self, status: Status, attempt: &str) -> DriverResult<()> {
        if status == SUCCESS {
            return Ok(());
        }
        Err(self.failure(status, attempt))
    }

    /// The error for a status that is not success. A function of its own, so that the success path stays short.
    #[cold]
    pub(super) fn failure(&self, status: Status, attempt: &str) -> DriverError {
        let (name, text) = self.describe(status);
        DriverError::Call {
            attempt: attempt.to_owned(),
            code: status,
            name,
            text,
        }
    }

    /// CUDA's name and explanation of a status.
    pub(super) fn describe(&self, status: Status) -> (&'static str, &'static str) {
        let mut name = std::ptr::null();
        let mut text = std::ptr::null();
        // SAFETY: both take any number and a place for one pointer; they leave null for numbers they do not know.
        unsafe {
            (self.cuGetErrorName)(status, &mut name);
            (self.cuGetErrorString)(status, &mut text);
        }
        let (fallback_name, fallback_text) = match status {
            // The stub fails in every function, these two included.
            STUB_LIBRARY => (
                "CUDA_ERROR_STUB_LIBRARY",
                "the toolkit's stub for linking was found in place of the driver",
            ),
            _ => ("an error without a name", "the driver does not explain it"),
        };
        (
            static_text(name).unwrap_or(fallback_name),
            static_text(text).unwrap_or(fallback_text),
        )
    }
}

/// A string of the driver's own tables, which live as long as its library: to the end of the process.
fn static_text(text: *const c_char) -> Option<&'static str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, and the driver's strings are terminated and never change.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}
