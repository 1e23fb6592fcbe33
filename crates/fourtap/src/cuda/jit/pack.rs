//! One file with the machine code of many kernels, for machines without NVRTC.
//!
//! A pack is: magic, format version, length of the index, the index, a checksum of all of that, then the code of the entries
//! in the index's order, without gaps, to the end of the file. An index entry is: fingerprint, checksum of the code, length of
//! the code, kernel name, architecture. All numbers are little-endian.
//!
//! The code of [`GROUP`] entries at a time is interleaved: the first [`SLICE`] bytes of each, the second of each, and so on.
//! Packs travel in wheels, which find repetitions only up to 32 KiB back; kernels that differ little, and are neighbours by
//! name, are longer than that. Side by side they take two thirds of the room.

use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::bytes::Reader;
use super::{Architecture, Fingerprint, JitError, Program};

pub(super) const MAGIC: &[u8; 8] = b"4TAPPACK";
pub(super) const FORMAT: u32 = 2;

/// Kernels whose code is interleaved, and the bytes of each at a time.
pub(super) const GROUP: usize = 24;
pub(super) const SLICE: usize = 1024;

/// Bytes before the index, and of a checksum.
const HEADER: usize = 20;
const CHECKSUM: usize = 32;

/// More than any index: a damaged length must not take all memory.
const MOST_INDEX: usize = 64 << 20;

/// A kernel in a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackEntry {
    /// The kernel's name.
    pub name: String,
    /// What it was compiled for.
    pub architecture: Architecture,
    /// The program it was compiled from.
    pub fingerprint: Fingerprint,
    /// Bytes of machine code.
    pub size: usize,
}

/// Precompiled machine code. The file stays open: of a large one only the index and the kernels asked for are read.
pub struct Pack {
    path: PathBuf,
    bytes: Mutex<Box<dyn Source>>,
    entries: Vec<StoredKernel>,
    /// Where the code of the first begins.
    code_start: u64,
    checksum: Fingerprint,
}

/// What a pack is read from.
trait Source: Read + Seek + Send {}
impl<T: Read + Seek + Send> Source for T {}

#[derive(Clone, Debug)]
struct StoredKernel {
    entry: PackEntry,
    checksum: [u8; 32],
}

impl fmt::Debug for Pack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pack")
            .field("path", &self.path)
            .field("kernels", &self.entries.len())
            .finish_non_exhaustive()
    }
}

impl Pack {
    /// Opens a pack. Its index is read and checked here, the code of a kernel when it is requested.
    pub fn open(path: &Path) -> Result<Pack, JitError> {
        let file = File::open(path)
            .map_err(|error| JitError::io(path, "read a pack of kernels", &error))?;
        Pack::of(path, Box::new(file))
    }

    /// Reads a pack from memory; `path` is what error messages call it.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Pack, JitError> {
        Pack::of(path, Box::new(Cursor::new(bytes)))
    }

    fn of(path: &Path, mut bytes: Box<dyn Source>) -> Result<Pack, JitError> {
        let index = read_index(&mut *bytes).map_err(|fault| match fault {
            Fault::Damaged(found) => JitError::PackDamaged {
                path: path.to_path_buf(),
                found: found.into(),
            },
            Fault::Io(error) => JitError::io(path, "read a pack of kernels", &error),
        })?;
        Ok(Pack {
            path: path.to_path_buf(),
            bytes: Mutex::new(bytes),
            entries: index.entries,
            code_start: index.code_start,
            checksum: index.checksum,
        })
    }

    /// The machine code of a program; `None` if the pack does not have it.
    pub fn find(&self, program: &Program) -> Result<Option<Vec<u8>>, JitError> {
        self.get(program.fingerprint())
    }

    /// The machine code of the program with this fingerprint; `None` if the pack does not have it.
    pub fn get(&self, fingerprint: Fingerprint) -> Result<Option<Vec<u8>>, JitError> {
        let is_it = |stored: &StoredKernel| stored.entry.fingerprint == fingerprint;
        let number = self.entries.iter().position(is_it);
        number.map(|number| self.code(number)).transpose()
    }

    /// Checks the code of every kernel.
    pub fn verify(&self) -> Result<(), JitError> {
        (0..self.entries.len()).try_for_each(|number| self.code(number).map(drop))
    }

    /// The kernels it holds, by name.
    pub fn list(&self) -> impl Iterator<Item = &PackEntry> {
        self.entries.iter().map(|stored| &stored.entry)
    }

    /// The file it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The checksum of its index, which has the checksums of all kernels: identifies its content.
    pub fn checksum(&self) -> Fingerprint {
        self.checksum
    }

    fn code(&self, number: usize) -> Result<Vec<u8>, JitError> {
        let stored = &self.entries[number];
        let mut code = vec![0; stored.entry.size];
        let mut bytes = self
            .bytes
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        for (slice, start) in code.chunks_mut(SLICE).zip(self.slices(number)) {
            bytes
                .seek(SeekFrom::Start(start))
                .and_then(|_| bytes.read_exact(slice))
                .map_err(|error| JitError::io(&self.path, "read a kernel of the pack", &error))?;
        }
        if *blake3::hash(&code).as_bytes() == stored.checksum {
            return Ok(code);
        }
        let entry = &stored.entry;
        Err(JitError::PackDamaged {
            path: self.path.clone(),
            found: format!(
                "that the checksum of kernel {} for {} does not match",
                entry.name, entry.architecture
            ),
        })
    }

    /// Where each slice of an entry begins.
    fn slices(&self, number: usize) -> impl Iterator<Item = u64> {
        let first = number - number % GROUP;
        let last = self.entries.len().min(first + GROUP);
        let size = |stored: &StoredKernel| stored.entry.size;
        let before: usize = self.entries[..first].iter().map(size).sum();
        let group = &self.entries[first..last];
        (0..).map(move |slice| {
            let whole: usize = (group.iter()).map(|it| size(it).min(slice * SLICE)).sum();
            let beside = group[..number - first].iter();
            let beside = beside.map(|it| size(it).saturating_sub(slice * SLICE).min(SLICE));
            self.code_start + (before + whole + beside.sum::<usize>()) as u64
        })
    }
}

/// Why an index cannot be read.
enum Fault {
    Damaged(&'static str),
    Io(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Damaged("that it is cut short"),
            _ => Fault::Io(error),
        }
    }
}

struct Index {
    entries: Vec<StoredKernel>,
    code_start: u64,
    checksum: Fingerprint,
}

/// Reads the index, whose entries together are as long as the rest of the file.
fn read_index(bytes: &mut dyn Source) -> Result<Index, Fault> {
    let mut header = vec![0; HEADER];
    bytes.read_exact(&mut header)?;
    let mut reader = Reader(&header);
    if reader.array() != Some(*MAGIC) {
        return Err(Fault::Damaged("that it does not begin like a pack"));
    }
    if reader.u32() != Some(FORMAT) {
        return Err(Fault::Damaged("that its format is not this version's"));
    }
    let nonsense = || Fault::Damaged("that its index makes no sense");
    let length = reader.length().filter(|&length| length <= MOST_INDEX);
    let length = length.ok_or_else(nonsense)?;
    let mut checked = header;
    checked.resize(HEADER + length, 0);
    bytes.read_exact(&mut checked[HEADER..])?;
    let mut checksum = [0; CHECKSUM];
    bytes.read_exact(&mut checksum)?;
    if *blake3::hash(&checked).as_bytes() != checksum {
        let found = "that the checksum of its index does not match";
        return Err(Fault::Damaged(found));
    }
    let mut index = Reader(&checked[HEADER..]);
    let mut entries = Vec::new();
    let code_start = (HEADER + length + CHECKSUM) as u64;
    let mut end = code_start;
    while !index.0.is_empty() {
        let stored = read_entry(&mut index).ok_or_else(nonsense)?;
        let size = stored.entry.size as u64;
        end = end.checked_add(size).ok_or_else(nonsense)?;
        entries.push(stored);
    }
    match end.cmp(&bytes.seek(SeekFrom::End(0))?) {
        std::cmp::Ordering::Greater => Err(Fault::Damaged("that it is cut short")),
        std::cmp::Ordering::Less => Err(Fault::Damaged("that it is longer than its index says")),
        std::cmp::Ordering::Equal => Ok(Index {
            entries,
            code_start,
            checksum: Fingerprint(checksum),
        }),
    }
}

fn read_entry(index: &mut Reader) -> Option<StoredKernel> {
    let fingerprint = Fingerprint(index.array()?);
    let checksum = index.array()?;
    let size = index.length()?;
    let name = index.text()?.to_owned();
    let architecture = index.text()?.parse().ok()?;
    Some(StoredKernel {
        entry: PackEntry {
            name,
            architecture,
            fingerprint,
            size,
        },
        checksum,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::PackBuilder;
    use super::super::bytes::put_text;
    use super::*;

    pub(in super::super) fn program(source: &str, architecture: &str) -> Program {
        Program {
            name: format!("kernel_{source}"),
            source: source.into(),
            options: vec![],
            architecture: architecture.parse().unwrap(),
        }
    }

    fn programs() -> [(Program, &'static [u8]); 3] {
        [
            (program("b", "sm_90a"), b"code of b"),
            (program("a", "sm_80"), b"code of a"),
            (program("empty", "sm_80"), b""),
        ]
    }

    fn builder() -> PackBuilder {
        let mut builder = PackBuilder::new();
        for (program, code) in programs() {
            builder.add(
                program.fingerprint(),
                &program.name,
                program.architecture,
                code.to_vec(),
            );
        }
        builder
    }

    #[test]
    fn a_pack_gives_back_what_was_put_in() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kernels.pack");
        std::fs::write(&path, "an older file").unwrap();
        builder().write(&path).unwrap();
        let pack = Pack::open(&path).unwrap();
        for (program, code) in programs() {
            assert_eq!(pack.find(&program), Ok(Some(code.to_vec())));
        }
        assert_eq!(pack.find(&program("a", "sm_86")), Ok(None));
        let names: Vec<_> = pack.list().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["kernel_a", "kernel_b", "kernel_empty"]);
        assert_eq!(pack.verify(), Ok(()));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn interleaved_code_is_put_together_again() {
        let sizes = (0..GROUP + 5).map(|number| number * 997 % (5 * SLICE));
        let codes: Vec<Vec<u8>> = sizes
            .enumerate()
            .map(|(number, size)| (0..size).map(|at| (at / 7 + 31 * number) as u8).collect())
            .collect();
        let programs: Vec<_> = (0..codes.len())
            .map(|number| program(&format!("{number:02}"), "sm_80"))
            .collect();
        let mut builder = PackBuilder::new();
        for (program, code) in programs.iter().zip(&codes) {
            let (fingerprint, code) = (program.fingerprint(), code.clone());
            builder.add(fingerprint, &program.name, program.architecture, code);
        }
        let pack = Pack::from_bytes(Path::new("p"), builder.to_bytes()).unwrap();
        for (program, code) in programs.iter().zip(&codes) {
            assert_eq!(pack.find(program).unwrap().as_ref(), Some(code));
        }
    }

    #[test]
    fn damage_anywhere_is_an_error_and_never_other_code() {
        let bytes = builder().to_bytes();
        let check = |damaged: Vec<u8>, what: &str| {
            let Ok(pack) = Pack::from_bytes(Path::new("p"), damaged) else {
                return;
            };
            let mut refused = 0;
            for (program, code) in programs() {
                match pack.find(&program) {
                    Ok(found) => assert_eq!(found.as_deref(), Some(code), "{what}"),
                    Err(error) => {
                        assert!(matches!(error, JitError::PackDamaged { .. }), "{error}");
                        refused += 1;
                    }
                }
            }
            assert_eq!(refused, 1, "{what}");
            assert!(pack.verify().is_err(), "{what}");
        };
        for length in 0..bytes.len() {
            check(bytes[..length].to_vec(), &format!("cut at {length}"));
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                check(damaged, &format!("bit {bit} of byte {at}"));
            }
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Pack::from_bytes(Path::new("p"), longer).is_err());
        assert!(Pack::from_bytes(Path::new("p"), bytes).is_ok());
    }

    #[test]
    fn a_forged_index_is_refused() {
        for size in [u64::MAX, u64::MAX - 100, 1 << 40, 8] {
            let mut index = vec![0; 64];
            index.extend(size.to_le_bytes());
            put_text(&mut index, "k");
            put_text(&mut index, "sm_80");
            let mut out = MAGIC.to_vec();
            out.extend(FORMAT.to_le_bytes());
            out.extend((index.len() as u64).to_le_bytes());
            out.extend(index);
            let checksum = blake3::hash(&out);
            out.extend(checksum.as_bytes());
            out.extend(b"1234567");
            assert!(
                Pack::from_bytes(Path::new("p"), out).is_err(),
                "size {size}"
            );
        }
    }

    #[test]
    fn a_missing_pack_is_named() {
        let error = Pack::open(Path::new("/nowhere/kernels.pack")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/kernels.pack"));
    }
}
