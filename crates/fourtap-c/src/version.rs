//! Which library a program has loaded.

use std::ffi::c_char;

/// The version of the binary interface that this header describes; fourtap_abi_version() is that of the loaded library. Functions
/// and fields are added without a new version; when one is changed or removed, this number and the library's soname change.
pub const ABI_VERSION: u32 = 1;

/// The version of the binary interface of the loaded library: a program that was compiled with FOURTAP_ABI_VERSION works with it if
/// the two are equal.
#[unsafe(no_mangle)]
pub extern "C" fn fourtap_abi_version() -> u32 {
    ABI_VERSION
}

/// The version of the loaded library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn fourtap_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
