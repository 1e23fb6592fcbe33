//! Loading machine code: libraries and the kernels in them.

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;

use super::api;
use super::context::Context;
use super::device::Device;
use super::error::{DriverError, DriverResult};
use super::library::Handle;

/// Loaded machine code, for every device and context at once.
///
/// It is never unloaded: captured graphs and running work also hold its kernels, and a program has few
/// libraries. The driver copies a context's part to the device when a kernel of it is first used there.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    raw: Handle,
}

// SAFETY: the driver takes calls on a library from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads a cubin or a fat binary, or PTX that the driver then compiles. The bytes are not needed afterwards.
    pub fn load(code: &[u8]) -> DriverResult<Self> {
        let api = api()?;
        let terminated;
        let code = match form(code)? {
            Form::Sized => code,
            // The driver reads text up to a 0.
            Form::Text => {
                terminated = [code, &[0]].concat();
                &terminated
            }
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the code says how long it is and was checked to be all there, or ends with 0. The driver keeps a
        // copy; one handle is written; there are no options.
        let status = unsafe {
            (api.cuLibraryLoadData)(
                &mut raw,
                code.as_ptr().cast(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0,
            )
        };
        api.check(status, "load kernel code")?;
        Ok(Library { raw })
    }

    /// The kernel of this name.
    pub fn kernel(&self, name: &str) -> DriverResult<Kernel> {
        let api = api()?;
        let found = "a kernel name with a 0 in it";
        let terminated = CString::new(name).map_err(|_| DriverError::BadCode { found })?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the library is loaded for good, the name ends with 0, and one handle is written.
        let status = unsafe { (api.cuLibraryGetKernel)(&mut raw, self.raw, terminated.as_ptr()) };
        api.check(status, &format!("find kernel {name}"))?;
        Ok(Kernel {
            raw,
            name: name.into(),
        })
    }
}

/// How the driver finds the end of code.
#[derive(Debug, PartialEq, Eq)]
enum Form {
    /// By its header.
    Sized,
    /// By a terminating 0.
    Text,
}

/// The form of `code`. The driver trusts the header, so it would read past the end of a truncated file.
fn form(code: &[u8]) -> DriverResult<Form> {
    const TRUNCATED: DriverError = DriverError::BadCode {
        found: "a truncated one",
    };
    const FAT_BINARY: [u8; 4] = 0xba55_ed50u32.to_le_bytes();
    let number = |at: usize, bytes: usize| -> DriverResult<u64> {
        let end = at.checked_add(bytes).ok_or(TRUNCATED)?;
        let field = code.get(at..end).ok_or(TRUNCATED)?;
        Ok(field
            .iter()
            .rev()
            .fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
    };
    let within = |offset: u64, bytes: u64| -> DriverResult<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= code.len() as u64 => Ok(()),
            _ => Err(TRUNCATED),
        }
    };
    if code.starts_with(b"\x7fELF") {
        // Elf64_Ehdr: program headers at 32, section headers at 40, then their sizes and numbers.
        let (segments, segment_bytes, segment_count) =
            (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        let (sections, section_bytes, section_count) =
            (number(40, 8)?, number(58, 2)?, number(60, 2)?);
        within(segments, segment_bytes * segment_count)?;
        within(sections, section_bytes * section_count)?;
        for section in 0..section_count {
            // Elf64_Shdr: type at 4, offset at 24, size at 32. Type 8 takes no room in the file.
            let header = (sections + section * section_bytes) as usize;
            if number(header + 4, 4)? != 8 {
                within(number(header + 24, 8)?, number(header + 32, 8)?)?;
            }
        }
        return Ok(Form::Sized);
    }
    if code.starts_with(&FAT_BINARY) {
        // Magic, version, bytes of the header at 6, bytes after it at 8.
        within(number(6, 2)?, number(8, 8)?)?;
        return Ok(Form::Sized);
    }
    let text = code.strip_suffix(&[0]).unwrap_or(code);
    if text.is_empty() {
        return Err(DriverError::BadCode { found: "nothing" });
    }
    if text.contains(&0) {
        return Err(DriverError::BadCode {
            found: "other binary data",
        });
    }
    Ok(Form::Text)
}

/// A kernel: a function that runs on a device.
#[derive(Clone, Debug)]
pub struct Kernel {
    raw: Handle,
    name: Arc<str>,
}

// SAFETY: the driver takes calls on a kernel from any thread, and its library is never unloaded.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Resource usage of a compiled kernel on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelFacts {
    /// Registers per thread.
    pub registers: u32,
    /// Local memory per thread: spilled registers and arrays.
    pub local_bytes: u32,
    /// Static shared memory per block.
    pub shared_bytes: u32,
    /// Maximum dynamic shared memory of a launch.
    pub max_dynamic_shared_bytes: u32,
    /// Largest block that can be launched.
    pub max_threads: u32,
    /// Compute capability the code is for, 90 for 9.0.
    pub binary_version: u32,
}

/// The numbers cuda.h gives to the attributes used here.
mod attribute {
    use std::ffi::c_int;
    pub(super) const MAX_THREADS: c_int = 0;
    pub(super) const SHARED_BYTES: c_int = 1;
    pub(super) const LOCAL_BYTES: c_int = 3;
    pub(super) const REGISTERS: c_int = 4;
    pub(super) const BINARY_VERSION: c_int = 6;
    pub(super) const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;
    pub(super) const SHARED_CARVEOUT: c_int = 9;
    pub(super) const NON_PORTABLE_CLUSTERS: c_int = 14;
}

impl Kernel {
    /// Its name in the library.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The driver's handle: a `CUkernel`, which launches also take as a `CUfunction`.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw
    }

    /// Copies the kernel to the context's device now, not at the first launch.
    ///
    /// That first launch could otherwise wait for the device, and fail while a stream is being captured.
    pub fn prepare(&self, context: &Context) -> DriverResult<()> {
        let _entered = context.enter()?;
        let api = context.api();
        let function = self.function(context)?;
        let mut registers = 0;
        // SAFETY: the function lives, and one number is written: asking for it needs the code in place.
        let status =
            unsafe { (api.cuFuncGetAttribute)(&mut registers, attribute::REGISTERS, function) };
        api.check(status, &format!("prepare kernel {}", self.name))
    }

    /// Its resource usage.
    pub fn facts(&self, device: Device) -> DriverResult<KernelFacts> {
        let api = api()?;
        let read = |attribute| -> DriverResult<u32> {
            let mut value = 0;
            // SAFETY: kernel and device exist, and one number is written.
            let status = unsafe {
                (api.cuKernelGetAttribute)(&mut value, attribute, self.raw, device.raw())
            };
            api.check(
                status,
                &format!("read an attribute of kernel {}", self.name),
            )?;
            Ok(value.max(0) as u32)
        };
        Ok(KernelFacts {
            registers: read(attribute::REGISTERS)?,
            local_bytes: read(attribute::LOCAL_BYTES)?,
            shared_bytes: read(attribute::SHARED_BYTES)?,
            max_dynamic_shared_bytes: read(attribute::MAX_DYNAMIC_SHARED_BYTES)?,
            max_threads: read(attribute::MAX_THREADS)?,
            binary_version: read(attribute::BINARY_VERSION)?,
        })
    }

    /// Lets launches on a device ask for up to `bytes` of dynamic shared memory; without it, 48 KiB with the static.
    pub fn set_max_dynamic_shared(&self, device: Device, bytes: u32) -> DriverResult<()> {
        self.set(
            device,
            attribute::MAX_DYNAMIC_SHARED_BYTES,
            bytes,
            "dynamic shared memory",
        )
    }

    /// Sets the preferred carveout: the percentage of a multiprocessor's unified memory used as shared memory, not L1.
    pub fn set_shared_carveout(&self, device: Device, percent: u32) -> DriverResult<()> {
        self.set(
            device,
            attribute::SHARED_CARVEOUT,
            percent,
            "percent of shared memory",
        )
    }

    /// Lets launches on a device ask for clusters of more than 8 blocks, which not every device with clusters has.
    pub fn allow_large_clusters(&self, device: Device) -> DriverResult<()> {
        self.set(
            device,
            attribute::NON_PORTABLE_CLUSTERS,
            1,
            "for clusters of more than 8 blocks",
        )
    }

    fn set(&self, device: Device, attribute: c_int, value: u32, what: &str) -> DriverResult<()> {
        let api = api()?;
        // A value past the range is past every limit too, and the driver refuses it.
        let number = c_int::try_from(value).unwrap_or(c_int::MAX);
        // SAFETY: kernel and device exist.
        let status =
            unsafe { (api.cuKernelSetAttribute)(attribute, number, self.raw, device.raw()) };
        api.check(status, &format!("give kernel {} {value} {what}", self.name))
    }

    /// Maximum resident blocks per multiprocessor, for blocks of `threads` with `shared_bytes` of dynamic shared memory.
    pub fn occupancy(
        &self,
        context: &Context,
        threads: u32,
        shared_bytes: u32,
    ) -> DriverResult<u32> {
        let _entered = context.enter()?;
        let api = context.api();
        let function = self.function(context)?;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        let mut blocks = 0;
        // SAFETY: the function is of the context entered, and one number is written.
        let status = unsafe {
            (api.cuOccupancyMaxActiveBlocksPerMultiprocessor)(
                &mut blocks,
                function,
                threads,
                shared_bytes as usize,
            )
        };
        api.check(
            status,
            &format!("find the occupancy of kernel {}", self.name),
        )?;
        Ok(blocks.max(0) as u32)
    }

    /// The kernel's function in the current context.
    pub(super) fn function(&self, context: &Context) -> DriverResult<Handle> {
        let api = context.api();
        let mut function = std::ptr::null_mut();
        // SAFETY: the kernel's library is never unloaded, and one handle is written.
        let status = unsafe { (api.cuKernelGetFunction)(&mut function, self.raw) };
        api.check(status, &format!("prepare kernel {}", self.name))?;
        Ok(function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file of a header and one section of 16 bytes.
    fn elf() -> Vec<u8> {
        let mut code = vec![0; 64 + 16 + 64];
        code[..4].copy_from_slice(b"\x7fELF");
        code[40..48].copy_from_slice(&80u64.to_le_bytes());
        code[58..60].copy_from_slice(&64u16.to_le_bytes());
        code[60..62].copy_from_slice(&1u16.to_le_bytes());
        code[80 + 4..80 + 8].copy_from_slice(&1u32.to_le_bytes());
        code[80 + 24..80 + 32].copy_from_slice(&64u64.to_le_bytes());
        code[80 + 32..80 + 40].copy_from_slice(&16u64.to_le_bytes());
        code
    }

    #[test]
    fn accepts_a_whole_cubin_and_no_part_of_it() {
        let code = elf();
        assert_eq!(form(&code), Ok(Form::Sized));
        for length in 4..code.len() {
            assert!(form(&code[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn refuses_a_section_past_the_end() {
        for size in [81u64, u64::MAX] {
            let mut code = elf();
            code[80 + 32..80 + 40].copy_from_slice(&size.to_le_bytes());
            assert!(form(&code).is_err(), "{size}");
        }
        let mut code = elf();
        code[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(form(&code).is_err());
    }

    #[test]
    fn accepts_a_whole_fat_binary_and_no_part_of_it() {
        let mut code = 0xba55_ed50u32.to_le_bytes().to_vec();
        code.extend([1, 0, 16, 0]);
        code.extend(8u64.to_le_bytes());
        code.extend([7; 8]);
        assert_eq!(form(&code), Ok(Form::Sized));
        for length in 4..code.len() {
            assert!(form(&code[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn takes_text_with_and_without_its_terminator() {
        assert_eq!(form(b".version 8.0"), Ok(Form::Text));
        assert_eq!(form(b".version 8.0\0"), Ok(Form::Text));
        assert!(form(b"").is_err());
        assert!(form(b"\0").is_err());
        assert!(form(b"a\0b").is_err());
    }
}
