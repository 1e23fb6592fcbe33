//! One file with the machine code of many kernels, for machines without NVRTC.
//!
//! A pack is: magic, format version, length of the index, the index, a checksum of all of that, then the code of each
//! entry in the index's order, without gaps, to the end of the file. An index entry is: fingerprint, checksum of the
//! code, length of the code, kernel name, architecture. All numbers are little-endian.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::bytes::{Reader, put_text};
use super::{Architecture, Fingerprint, JitError, Program};

const MAGIC: &[u8; 8] = b"4TAPPACK";
const FORMAT: u32 = 1;

/// Collects machine code for a [`Pack`].
#[derive(Clone, Debug, Default)]
pub struct PackBuilder {
    // Sorted, so that the same kernels give the same file.
    entries: BTreeMap<(String, Architecture, Fingerprint), Vec<u8>>,
}

impl PackBuilder {
    /// An empty pack.
    pub fn new() -> Self {
        PackBuilder::default()
    }

    /// Adds a program's machine code.
    pub fn add(
        &mut self,
        fingerprint: Fingerprint,
        name: &str,
        architecture: Architecture,
        code: Vec<u8>,
    ) {
        let key = (name.to_owned(), architecture, fingerprint);
        self.entries.insert(key, code);
    }

    /// Writes the pack. An existing file of that name is replaced atomically.
    pub fn write(&self, path: &Path) -> Result<(), JitError> {
        let failed = |error: &io::Error| JitError::io(path, "write the pack", error);
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".fourtap-pack-");
        // Temporary files are for their owner only; a pack is for others to read, as far as the umask lets them.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
        let mut part = builder
            .tempfile_in(directory)
            .map_err(|error| failed(&error))?;
        part.write_all(&self.to_bytes())
            .map_err(|error| failed(&error))?;
        part.as_file().sync_all().map_err(|error| failed(&error))?;
        part.persist(path).map_err(|error| failed(&error.error))?;
        // Not every file system supports this; the pack is then only less durable.
        #[cfg(unix)]
        let _ = std::fs::File::open(directory).and_then(|directory| directory.sync_all());
        Ok(())
    }

    /// The pack as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut index = Vec::new();
        for ((name, architecture, fingerprint), code) in &self.entries {
            index.extend(fingerprint.as_bytes());
            index.extend(blake3::hash(code).as_bytes());
            index.extend((code.len() as u64).to_le_bytes());
            put_text(&mut index, name);
            put_text(&mut index, &architecture.to_string());
        }
        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(FORMAT.to_le_bytes());
        out.extend((index.len() as u64).to_le_bytes());
        out.extend(index);
        let checksum = blake3::hash(&out);
        out.extend(checksum.as_bytes());
        for code in self.entries.values() {
            out.extend(code);
        }
        out
    }
}

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

/// Precompiled machine code.
#[derive(Clone, Debug)]
pub struct Pack {
    path: PathBuf,
    bytes: Vec<u8>,
    entries: Vec<StoredKernel>,
}

#[derive(Clone, Debug)]
struct StoredKernel {
    entry: PackEntry,
    checksum: [u8; 32],
    code: Range<usize>,
}

impl Pack {
    /// Reads a pack. Its index is checked here, the code of a kernel when it is requested.
    pub fn open(path: &Path) -> Result<Pack, JitError> {
        let bytes = std::fs::read(path)
            .map_err(|error| JitError::io(path, "read a pack of kernels", &error))?;
        Pack::from_bytes(path, bytes)
    }

    /// Reads a pack from memory; `path` is what error messages call it.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Pack, JitError> {
        let entries = read_index(&bytes).map_err(|found| JitError::PackDamaged {
            path: path.to_path_buf(),
            found: found.into(),
        })?;
        Ok(Pack {
            path: path.to_path_buf(),
            bytes,
            entries,
        })
    }

    /// The machine code of a program; `None` if the pack does not have it.
    pub fn find(&self, program: &Program) -> Result<Option<&[u8]>, JitError> {
        self.get(program.fingerprint())
    }

    /// The machine code of the program with this fingerprint; `None` if the pack does not have it.
    pub fn get(&self, fingerprint: Fingerprint) -> Result<Option<&[u8]>, JitError> {
        let found = |stored: &&StoredKernel| stored.entry.fingerprint == fingerprint;
        let stored = self.entries.iter().find(found);
        stored.map(|stored| self.code(stored)).transpose()
    }

    /// Checks the code of every kernel.
    pub fn verify(&self) -> Result<(), JitError> {
        self.entries
            .iter()
            .try_for_each(|stored| self.code(stored).map(drop))
    }

    /// The kernels it holds, by name.
    pub fn list(&self) -> impl Iterator<Item = &PackEntry> {
        self.entries.iter().map(|stored| &stored.entry)
    }

    /// The file it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn code(&self, stored: &StoredKernel) -> Result<&[u8], JitError> {
        let code = &self.bytes[stored.code.clone()];
        if *blake3::hash(code).as_bytes() == stored.checksum {
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
}

/// The entries, each with a range inside `bytes`.
fn read_index(bytes: &[u8]) -> Result<Vec<StoredKernel>, &'static str> {
    const SHORT: &str = "that it is cut short";
    let mut reader = Reader(bytes);
    if reader.array() != Some(*MAGIC) {
        return Err("that it does not begin like a pack");
    }
    if reader.u32().ok_or(SHORT)? != FORMAT {
        return Err("that its format is not this version's");
    }
    let length = reader.length().ok_or(SHORT)?;
    let mut index = Reader(reader.take(length).ok_or(SHORT)?);
    let header = &bytes[..bytes.len() - reader.0.len()];
    let checksum = reader.array().ok_or(SHORT)?;
    if *blake3::hash(header).as_bytes() != checksum {
        return Err("that the checksum of its index does not match");
    }
    let mut entries = Vec::new();
    let mut start = bytes.len() - reader.0.len();
    while !index.0.is_empty() {
        let stored = read_entry(&mut index, start).ok_or("that its index makes no sense")?;
        start = stored.code.end;
        entries.push(stored);
    }
    match start.cmp(&bytes.len()) {
        std::cmp::Ordering::Greater => Err(SHORT),
        std::cmp::Ordering::Less => Err("that it is longer than its index says"),
        std::cmp::Ordering::Equal => Ok(entries),
    }
}

fn read_entry(index: &mut Reader, start: usize) -> Option<StoredKernel> {
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
        code: start..start.checked_add(size)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(source: &str, architecture: &str) -> Program {
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
            assert_eq!(pack.find(&program), Ok(Some(code)));
        }
        assert_eq!(pack.find(&program("a", "sm_86")), Ok(None));
        let names: Vec<_> = pack.list().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["kernel_a", "kernel_b", "kernel_empty"]);
        assert_eq!(pack.verify(), Ok(()));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
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
                    Ok(found) => assert_eq!(found, Some(code), "{what}"),
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
