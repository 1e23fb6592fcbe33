//! NVRTC's C functions.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libloading::Library;

use super::{JitError, NvrtcVersion};

/// A program being compiled.
pub(super) struct Unit<'a> {
    functions: &'a Functions,
    handle: Handle,
}

impl<'a> Unit<'a> {
    pub fn new(functions: &'a Functions, source: &CStr, name: &CStr) -> Result<Self, JitError> {
        let mut handle = ptr::null_mut();
        // SAFETY: the strings outlive the call, which copies them; there are no headers.
        let code = unsafe {
            (functions.create)(
                &mut handle,
                source.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        functions.check("nvrtcCreateProgram", code)?;
        Ok(Unit { functions, handle })
    }

    /// Compiles, and returns NVRTC's status: 0, or an error code.
    pub fn compile(&self, options: &[CString]) -> c_int {
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the unit is alive, and `options` holds that many strings that outlive the call.
        unsafe { (self.functions.compile)(self.handle, options.len() as c_int, options.as_ptr()) }
    }

    /// What the compiler printed.
    pub fn log(&self) -> Result<String, JitError> {
        let f = self.functions;
        let bytes = self.bytes(
            ("nvrtcGetProgramLogSize", f.log_size),
            ("nvrtcGetProgramLog", f.log),
        )?;
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// The machine code.
    pub fn code(&self) -> Result<Vec<u8>, JitError> {
        let f = self.functions;
        self.bytes(
            ("nvrtcGetCUBINSize", f.code_size),
            ("nvrtcGetCUBIN", f.code),
        )
    }

    /// Asks how long a result is, then for the result.
    fn bytes(
        &self,
        (size_name, size): (&'static str, Size),
        (name, fill): (&'static str, Fill),
    ) -> Result<Vec<u8>, JitError> {
        let mut length = 0usize;
        // SAFETY: the unit is alive and the call writes one `size_t`.
        let code = unsafe { size(self.handle, &mut length) };
        self.functions.check(size_name, code)?;
        let mut bytes = vec![0u8; length];
        if length > 0 {
            // SAFETY: the unit is alive, and the call writes as many bytes as it said before.
            let code = unsafe { fill(self.handle, bytes.as_mut_ptr().cast()) };
            self.functions.check(name, code)?;
        }
        Ok(bytes)
    }
}

impl Drop for Unit<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle came from `nvrtcCreateProgram` and is not used again.
        unsafe { (self.functions.destroy)(&mut self.handle) };
    }
}

type Handle = *mut c_void;
type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Fill = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;
type Create = unsafe extern "C" fn(
    *mut Handle,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;

/// NVRTC's functions, valid as long as the library is loaded, which is forever.
pub(super) struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    known_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    known: unsafe extern "C" fn(*mut c_int) -> c_int,
    error_words: unsafe extern "C" fn(c_int) -> *const c_char,
    create: Create,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    log_size: Size,
    log: Fill,
    code_size: Size,
    code: Fill,
}

impl Functions {
    pub fn of(library: &Library, path: &Path) -> Result<Self, JitError> {
        // SAFETY: each field has the type `nvrtc.h` declares under that name, unchanged since CUDA 11.
        unsafe {
            Ok(Functions {
                version: symbol(library, path, "nvrtcVersion")?,
                known_count: symbol(library, path, "nvrtcGetNumSupportedArchs")?,
                known: symbol(library, path, "nvrtcGetSupportedArchs")?,
                error_words: symbol(library, path, "nvrtcGetErrorString")?,
                create: symbol(library, path, "nvrtcCreateProgram")?,
                compile: symbol(library, path, "nvrtcCompileProgram")?,
                destroy: symbol(library, path, "nvrtcDestroyProgram")?,
                log_size: symbol(library, path, "nvrtcGetProgramLogSize")?,
                log: symbol(library, path, "nvrtcGetProgramLog")?,
                code_size: symbol(library, path, "nvrtcGetCUBINSize")?,
                code: symbol(library, path, "nvrtcGetCUBIN")?,
            })
        }
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), JitError> {
        match code {
            0 => Ok(()),
            code => Err(JitError::NvrtcCall {
                call,
                code,
                message: self.words(code),
            }),
        }
    }

    /// NVRTC's message for an error.
    pub fn words(&self, code: c_int) -> String {
        // SAFETY: takes any number and returns a constant string.
        let words = unsafe { (self.error_words)(code) };
        if words.is_null() {
            return "unknown error".into();
        }
        // SAFETY: not null, so one of NVRTC's constant strings.
        unsafe { CStr::from_ptr(words) }
            .to_string_lossy()
            .into_owned()
    }

    /// Where one of them is.
    pub fn address(&self) -> *const () {
        self.version as *const ()
    }

    pub fn version(&self) -> Result<NvrtcVersion, JitError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the call writes two integers.
        let code = unsafe { (self.version)(&mut major, &mut minor) };
        self.check("nvrtcVersion", code)?;
        Ok(NvrtcVersion {
            major: major.max(0) as u32,
            minor: minor.max(0) as u32,
        })
    }

    /// Compute capabilities it compiles for, ascending.
    pub fn known(&self) -> Result<Vec<(u32, u32)>, JitError> {
        let mut count = 0;
        // SAFETY: the call writes one integer.
        let code = unsafe { (self.known_count)(&mut count) };
        self.check("nvrtcGetNumSupportedArchs", code)?;
        let mut numbers = vec![0 as c_int; count.max(0) as usize];
        // SAFETY: the call writes as many integers as the other said.
        let code = unsafe { (self.known)(numbers.as_mut_ptr()) };
        self.check("nvrtcGetSupportedArchs", code)?;
        let mut known: Vec<_> = numbers
            .into_iter()
            .map(|number| (number.max(0) as u32 / 10, number.max(0) as u32 % 10))
            .collect();
        known.sort_unstable();
        Ok(known)
    }
}

/// # Safety
/// `T` is the function pointer type of `name`.
unsafe fn symbol<T: Copy>(
    library: &Library,
    path: &Path,
    name: &'static str,
) -> Result<T, JitError> {
    // SAFETY: as the caller promises.
    match unsafe { library.get::<T>(name) } {
        Ok(symbol) => Ok(*symbol),
        Err(_) => Err(JitError::NvrtcSymbol {
            path: path.to_path_buf(),
            symbol: name,
        }),
    }
}
