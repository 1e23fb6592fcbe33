//! Which build of NVRTC compiles: a patch release that mends a miscompilation has the version of the one before it.
//!
//! Linkers write an identifier of its content, the build ID, into a library. It is read in a few microseconds, where a hash
//! of the file, about 100 MB, would take longer than loading a cached kernel.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::NvrtcVersion;
use crate::cuda::jit::Fingerprint;

/// An NVRTC as far as the code it makes depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NvrtcBuild {
    /// Its version.
    pub version: NvrtcVersion,
    /// A hash of the build IDs of the library and its built-ins, and of the options that NVRTC takes from the environment.
    pub id: Fingerprint,
}

/// Options that NVRTC takes from the environment, after those it is given.
const FLAGS: &str = "NVRTC_APPEND_FLAGS";

/// The identifiers of a loaded NVRTC and the built-ins beside it.
pub(super) fn identify(address: *const (), library: &Path, builtins: &[PathBuf]) -> Vec<Vec<u8>> {
    let loaded = image::build_id_at(address);
    let mut identifiers = vec![loaded.unwrap_or_else(|| of_file(library))];
    identifiers.extend(builtins.iter().map(|path| of_file(path)));
    identifiers
}

/// Hashes identifiers, and options by the value that `variable` tells.
pub(super) fn id(
    identifiers: &[Vec<u8>],
    variable: impl Fn(&str) -> Option<std::ffi::OsString>,
) -> Fingerprint {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"fourtap NVRTC 1\n");
    let mut part = |part: &[u8]| {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    };
    part(variable(FLAGS).unwrap_or_default().as_encoded_bytes());
    for identifier in identifiers {
        part(identifier);
    }
    Fingerprint::of(&hasher)
}

/// The build ID of a file; without one, its length and the time of its last change. Nothing of a file that cannot be read:
/// the version is then all that is known.
fn of_file(path: &Path) -> Vec<u8> {
    let by_build_id = || build_id_of(&mut File::open(path)?);
    if let Ok(Some(id)) = by_build_id() {
        return id;
    }
    let Ok(metadata) = fs::metadata(path) else {
        return Vec::new();
    };
    let changed = metadata.modified().ok();
    let changed = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let mut identifier = metadata.len().to_le_bytes().to_vec();
    identifier.extend(changed.unwrap_or_default().as_nanos().to_le_bytes());
    identifier
}

/// More than any header or note is long.
const MOST_BYTES: u64 = 1 << 16;

/// The build ID of a 64-bit little-endian ELF file; `None` if it is no such file or has none.
fn build_id_of(file: &mut (impl Read + Seek)) -> io::Result<Option<Vec<u8>>> {
    let mut read = |at: u64, length: u64| {
        file.seek(SeekFrom::Start(at))?;
        let mut bytes = Vec::new();
        file.take(length.min(MOST_BYTES)).read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    let header = read(0, 64)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return Ok(None);
    }
    let number = |bytes: &[u8], at: usize, size: usize| {
        let bytes = bytes.get(at..at + size)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0u64, |sum, &byte| sum << 8 | byte as u64),
        )
    };
    let fields = (
        number(&header, 32, 8),
        number(&header, 54, 2),
        number(&header, 56, 2),
    );
    let (Some(at), Some(size), Some(count)) = fields else {
        return Ok(None);
    };
    let table = read(at, size * count)?;
    for entry in table.chunks_exact((size as usize).max(1)) {
        if number(entry, 0, 4) != Some(NOTES as u64) {
            continue;
        }
        if let (Some(at), Some(length)) = (number(entry, 8, 8), number(entry, 32, 8))
            && let Some(id) = build_id(&read(at, length)?)
        {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// The type of a segment of notes, and that of the note that holds a build ID.
const NOTES: u32 = 4;
const BUILD_ID: u32 = 3;

/// The build ID among notes: of each, the lengths of name and description, a type, and both, padded to four bytes.
fn build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    loop {
        let (head, rest) = notes.split_first_chunk::<12>()?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (name, description) = (word(0) as usize, word(4) as usize);
        let (padded_name, padded) = (name.next_multiple_of(4), description.next_multiple_of(4));
        let found = rest.get(padded_name..padded_name.checked_add(description)?)?;
        if word(8) == BUILD_ID && rest.get(..name)? == b"GNU\0" && !found.is_empty() {
            return Some(found.to_vec());
        }
        notes = rest.get(padded_name + padded..)?;
    }
}

/// Of a library as it was loaded: its file may have been replaced since.
#[cfg(all(
    target_os = "linux",
    target_pointer_width = "64",
    target_endian = "little"
))]
mod image {
    use std::ffi::{c_char, c_int, c_void};
    use std::slice;

    use super::{NOTES, build_id};

    /// `Elf64_Phdr`.
    #[repr(C)]
    struct Segment {
        kind: u32,
        flags: u32,
        offset: u64,
        address: u64,
        physical: u64,
        file_bytes: u64,
        bytes: u64,
        align: u64,
    }

    /// `struct dl_phdr_info`, the part that every C library fills in.
    #[repr(C)]
    struct Object {
        base: u64,
        name: *const c_char,
        segments: *const Segment,
        count: u16,
    }

    type Callback = unsafe extern "C" fn(*mut Object, usize, *mut c_void) -> c_int;

    unsafe extern "C" {
        fn dl_iterate_phdr(callback: Callback, data: *mut c_void) -> c_int;
    }

    struct Search {
        address: u64,
        found: Option<Vec<u8>>,
    }

    const LOADED: u32 = 1;

    /// The build ID of the library that has this address.
    pub fn build_id_at(address: *const ()) -> Option<Vec<u8>> {
        let mut search = Search {
            address: address as u64,
            found: None,
        };
        // SAFETY: `look` takes what the call hands it, and `search` outlives the call.
        unsafe { dl_iterate_phdr(look, (&raw mut search).cast()) };
        search.found
    }

    unsafe extern "C" fn look(object: *mut Object, _size: usize, search: *mut c_void) -> c_int {
        // SAFETY: of `build_id_at`, which nobody else uses meanwhile; an object of the loader, which keeps it loaded meanwhile.
        let (search, object) = unsafe { (&mut *search.cast::<Search>(), &*object) };
        if object.segments.is_null() {
            return 0;
        }
        // SAFETY: the loader's table of that many segments.
        let segments = unsafe { slice::from_raw_parts(object.segments, object.count as usize) };
        let begin = |segment: &Segment| object.base.wrapping_add(segment.address);
        let holds = |segment: &&Segment, address: u64, bytes: u64| {
            segment.kind == LOADED
                && address.wrapping_sub(begin(segment)) <= segment.bytes.saturating_sub(bytes)
                && bytes <= segment.bytes
        };
        if !segments
            .iter()
            .any(|segment| holds(&segment, search.address, 1))
        {
            return 0;
        }
        search.found = segments.iter().find_map(|notes| {
            let is_loaded = |segment| holds(&segment, begin(notes), notes.file_bytes);
            if notes.kind != NOTES || !segments.iter().any(is_loaded) {
                return None;
            }
            // SAFETY: within a segment that is loaded, as was just seen; libraries' notes are readable and never written.
            let notes = unsafe {
                slice::from_raw_parts(begin(notes) as *const u8, notes.file_bytes as usize)
            };
            build_id(notes)
        });
        1
    }
}

/// Not known on this system.
#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    target_endian = "little"
)))]
mod image {
    pub fn build_id_at(_address: *const ()) -> Option<Vec<u8>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;
    use std::time::Duration;

    /// A note as linkers write it.
    fn note(name: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        note.extend((name.len() as u32).to_le_bytes());
        note.extend((description.len() as u32).to_le_bytes());
        note.extend(kind.to_le_bytes());
        for part in [name, description] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    /// An ELF file with a segment of each kind.
    fn library(segments: &[(u32, Vec<u8>)]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[54..56].copy_from_slice(&56u16.to_le_bytes());
        file[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        let mut at = 64 + 56 * segments.len();
        for (kind, content) in segments {
            let mut entry = [0; 56];
            entry[..4].copy_from_slice(&kind.to_le_bytes());
            entry[8..16].copy_from_slice(&(at as u64).to_le_bytes());
            entry[32..40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            file.extend(entry);
            at += content.len();
        }
        segments
            .iter()
            .for_each(|(_, content)| file.extend(content));
        file
    }

    fn found(file: Vec<u8>) -> Option<Vec<u8>> {
        build_id_of(&mut Cursor::new(file)).unwrap()
    }

    #[test]
    fn the_build_id_of_a_library_is_found_among_its_notes() {
        let other = note(b"GNU\0", 5, &[9; 7]);
        let whole = [other.clone(), note(b"GNU\0", BUILD_ID, b"identifier")].concat();
        let expected = Some(b"identifier".to_vec());
        let of_code = (1, vec![0x90; 100]);
        assert_eq!(
            found(library(&[of_code.clone(), (NOTES, whole.clone())])),
            expected
        );
        assert_eq!(
            found(library(&[(NOTES, other.clone()), (NOTES, whole.clone())])),
            expected
        );
        assert_eq!(found(library(&[of_code, (NOTES, other)])), None);
        assert_eq!(
            found(library(&[(NOTES, note(b"XYZ\0", BUILD_ID, b"no"))])),
            None
        );
        assert_eq!(found(b"MZ, no ELF file".to_vec()), None);
        assert_eq!(found(Vec::new()), None);
        // Cut short anywhere, it has none, and nothing panics.
        let file = library(&[(NOTES, whole)]);
        for length in 0..file.len() - 2 {
            assert_eq!(found(file[..length].to_vec()), None, "{length}");
        }
    }

    #[test]
    fn two_builds_of_one_version_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            path
        };
        let build = |id: &[u8]| library(&[(NOTES, note(b"GNU\0", BUILD_ID, id))]);
        let library = put("libnvrtc.so.13", &build(b"before"));
        let mended = put("mended", &build(b"behind"));
        let copied = put("copied", &build(b"before"));
        let builtins = put("builtins", &build(b"of builtins"));
        let others = put("others", &build(b"of other builtins"));
        let id_with = |library: &Path, builtins: &Path, flags: Option<&str>| {
            let identifiers = identify(std::ptr::null(), library, &[builtins.to_path_buf()]);
            id(&identifiers, |name| {
                flags.filter(|_| name == FLAGS).map(Into::into)
            })
        };
        let known = id_with(&library, &builtins, None);
        assert_eq!(id_with(&copied, &builtins, None), known);
        assert_ne!(id_with(&mended, &builtins, None), known);
        assert_ne!(id_with(&library, &others, None), known);
        assert_ne!(id_with(&library, &builtins, Some("-use_fast_math")), known);
    }

    #[test]
    fn a_library_without_build_id_is_told_by_its_length_and_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nvrtc64_130_0.dll");
        fs::write(&path, "MZ").unwrap();
        let known = of_file(&path);
        assert_eq!(of_file(&path), known);
        let later = fs::metadata(&path).unwrap().modified().unwrap() + Duration::from_secs(9);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(later)
            .unwrap();
        assert_ne!(of_file(&path), known);
        assert_eq!(of_file(Path::new("nvrtc that is not there")), Vec::new());
    }

    #[cfg(all(
        target_os = "linux",
        target_pointer_width = "64",
        target_endian = "little"
    ))]
    #[test]
    fn a_loaded_image_has_the_build_id_of_its_file() {
        unsafe extern "C" {
            fn malloc(bytes: usize) -> *mut std::ffi::c_void;
        }
        // The C library, if it is one with a build ID.
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let (malloc, file) = (malloc as *const (), |line: &str| {
            line.find('/').map(|at| line[at..].to_owned())
        });
        let library = maps.lines().find_map(|line| {
            let (from, past) = line.split_once(' ')?.0.split_once('-')?;
            let address = |text| usize::from_str_radix(text, 16).ok();
            let holds = (address(from)?..address(past)?).contains(&(malloc as usize));
            holds.then(|| file(line)).flatten()
        });
        let library = library.expect("malloc in a file");
        let expected = build_id_of(&mut File::open(library).unwrap()).unwrap();
        assert_eq!(image::build_id_at(malloc), expected);
        assert_eq!(image::build_id_at(std::ptr::null()), None);
    }
}
