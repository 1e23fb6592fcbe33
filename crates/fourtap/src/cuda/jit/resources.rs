//! Resource usage of kernels, read from their machine code.
//!
//! A cubin is a 64-bit ELF file. Its section `.nv.info` is a list of attributes, each of a format byte, an attribute
//! byte and 16 bits: a value, or the length of the value that follows.

use super::JitError;
use super::bytes::Reader;

/// Resource usage of one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelResources {
    /// The kernel's symbol.
    pub name: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of stack per thread: arrays that are not in registers, and spilled registers.
    pub stack_bytes: u32,
    /// Bytes of static shared memory per block, without what the system reserves.
    pub static_shared_bytes: u64,
}

/// Reads resource usage.
#[derive(Clone, Copy, Debug)]
pub struct Resources;

impl Resources {
    /// The kernels in machine code, by name.
    pub fn of(code: &[u8]) -> Result<Vec<KernelResources>, JitError> {
        let cubin = Cubin::new(code).map_err(damaged)?;
        let reserved = match cubin.section(".nv.shared.reserved.0") {
            Some(_) => SYSTEM_SHARED,
            None => 0,
        };
        let mut kernels = Vec::new();
        for (index, symbol) in cubin.symbols()?.into_iter().enumerate() {
            if !symbol.is_kernel() {
                continue;
            }
            let name = symbol.name;
            let text = cubin.section(&format!(".text.{name}"));
            let counted = cubin.attribute(Attribute::Registers, index)?;
            // Before CUDA 11 the count was in the section's header.
            let registers = counted.or(text.map(|text| text.info >> 24)).unwrap_or(0);
            let frame = cubin.attribute(Attribute::Frame, index)?.unwrap_or(0);
            let least = cubin
                .attribute(Attribute::LeastStack, index)?
                .unwrap_or(frame);
            let shared = cubin.section(&format!(".nv.shared.{name}"));
            kernels.push(KernelResources {
                name: name.to_owned(),
                registers,
                stack_bytes: frame.max(least),
                static_shared_bytes: shared
                    .map_or(0, |shared| shared.size.saturating_sub(reserved)),
            });
        }
        kernels.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(kernels)
    }
}

/// From Hopper on, a kernel's shared memory begins with bytes that are the system's.
const SYSTEM_SHARED: u64 = 1024;

/// Attributes whose value is a symbol's index and a number.
#[derive(Clone, Copy)]
enum Attribute {
    Registers = 0x2f,
    Frame = 0x11,
    LeastStack = 0x12,
}

struct Cubin<'a> {
    bytes: &'a [u8],
    sections: Vec<Section<'a>>,
}

#[derive(Clone, Copy)]
struct Section<'a> {
    name: &'a str,
    kind: u32,
    offset: u64,
    size: u64,
    link: u32,
    info: u32,
}

struct Symbol<'a> {
    name: &'a str,
    info: u8,
    other: u8,
}

impl Symbol<'_> {
    /// A function that is marked as an entry point.
    fn is_kernel(&self) -> bool {
        self.info & 0xf == 2 && self.other & 0x10 != 0
    }
}

/// A section without bytes in the file, such as shared memory.
const NO_BITS: u32 = 8;
const SYMBOL_TABLE: u32 = 2;
/// The machine number of CUDA.
const CUDA: u16 = 190;

fn damaged(found: &str) -> JitError {
    JitError::Cubin {
        found: found.to_owned(),
    }
}

impl<'a> Cubin<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, &'static str> {
        const SHORT: &str = "a file that is cut short";
        // 64-bit and little-endian.
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            return Err("other bytes");
        }
        let header = |offset: usize| Reader(bytes.get(offset..64).unwrap_or_default());
        if header(18).u16().ok_or(SHORT)? != CUDA {
            return Err("an ELF file for another machine");
        }
        let table = header(40).length().ok_or(SHORT)?;
        let entry_size = header(58).u16().ok_or(SHORT)?;
        let count = header(60).u16().ok_or(SHORT)?;
        let names = header(62).u16().ok_or(SHORT)?;
        let length = usize::from(entry_size) * usize::from(count);
        let end = table.checked_add(length).ok_or(SHORT)?;
        let table = bytes.get(table..end).ok_or(SHORT)?;
        let mut sections = Vec::new();
        let mut name_offsets = Vec::new();
        for mut reader in table
            .chunks_exact(usize::from(entry_size).max(1))
            .map(Reader)
        {
            let mut read = || {
                let (name, kind) = (reader.u32()?, reader.u32()?);
                let (_flags, _address) = (reader.u64()?, reader.u64()?);
                name_offsets.push(name);
                Some(Section {
                    name: "",
                    kind,
                    offset: reader.u64()?,
                    size: reader.u64()?,
                    link: reader.u32()?,
                    info: reader.u32()?,
                })
            };
            sections.push(read().ok_or("section headers that are too small")?);
        }
        let mut cubin = Cubin { bytes, sections };
        let names = cubin.bytes_of(cubin.sections.get(usize::from(names)))?;
        for (section, offset) in cubin.sections.iter_mut().zip(name_offsets) {
            section.name = text(names, offset)?;
        }
        Ok(cubin)
    }

    fn section(&self, name: &str) -> Option<Section<'a>> {
        self.sections.iter().copied().find(|it| it.name == name)
    }

    fn bytes_of(&self, section: Option<&Section>) -> Result<&'a [u8], &'static str> {
        let section = section.ok_or("a reference to a section that is not there")?;
        if section.kind == NO_BITS {
            return Ok(&[]);
        }
        let start = usize::try_from(section.offset).ok();
        let length = usize::try_from(section.size).ok();
        start
            .zip(length)
            .and_then(|(start, length)| self.bytes.get(start..start.checked_add(length)?))
            .ok_or("a section outside the file")
    }

    fn symbols(&self) -> Result<Vec<Symbol<'a>>, JitError> {
        let is_table = |section: &&Section| section.kind == SYMBOL_TABLE;
        let Some(table) = self.sections.iter().find(is_table) else {
            return Ok(Vec::new());
        };
        let names = self.sections.get(table.link as usize);
        let names = self.bytes_of(names).map_err(damaged)?;
        let bytes = self.bytes_of(Some(table)).map_err(damaged)?;
        let symbol = |bytes: &[u8]| {
            let mut reader = Reader(bytes);
            let (name, info, other) = (reader.u32(), reader.u8(), reader.u8());
            Ok(Symbol {
                name: text(names, name.unwrap_or(0))?,
                info: info.unwrap_or(0),
                other: other.unwrap_or(0),
            })
        };
        let symbols: Result<_, _> = bytes.chunks_exact(24).map(symbol).collect();
        symbols.map_err(damaged)
    }

    /// The number an attribute gives a symbol.
    fn attribute(&self, attribute: Attribute, symbol: usize) -> Result<Option<u32>, JitError> {
        /// The format of a value that follows its length.
        const SIZED: u8 = 4;
        let Some(info) = self.section(".nv.info") else {
            return Ok(None);
        };
        let mut reader = Reader(self.bytes_of(Some(&info)).map_err(damaged)?);
        while let (Some(format), Some(kind)) = (reader.u8(), reader.u8()) {
            let short = || damaged("an attribute that is cut short");
            let length = reader.u16().ok_or_else(short)?;
            if format != SIZED {
                continue;
            }
            let mut value = Reader(reader.take(length.into()).ok_or_else(short)?);
            if kind == attribute as u8 {
                let (of, number) = (value.u32(), value.u32());
                if of.is_some_and(|of| of as usize == symbol) {
                    return Ok(number);
                }
            }
        }
        Ok(None)
    }
}

/// The text at an offset in a table of strings that end with a zero byte.
fn text(table: &[u8], offset: u32) -> Result<&str, &'static str> {
    let tail = table.get(offset as usize..).unwrap_or_default();
    let end = tail.iter().position(|&byte| byte == 0);
    let name = end.and_then(|end| std::str::from_utf8(&tail[..end]).ok());
    name.ok_or("a name outside its table")
}
