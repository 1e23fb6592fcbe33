//! The bytes of a cache entry, and the names of the cache's files.
//!
//! An entry is: magic, format version, key hash, compiler version, time of creation, kernel name, architecture, length
//! of the code, the code, and a checksum of all of that. All numbers are little-endian.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::super::bytes::{Reader, put_text};
use super::super::{Architecture, CacheKey, Fingerprint, NvrtcVersion};

const MAGIC: &[u8; 8] = b"4TAPCODE";
const FORMAT: u32 = 1;
const CHECKSUM: usize = 32;

/// The decoded contents of an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents<'a> {
    pub name: &'a str,
    pub architecture: Architecture,
    pub nvrtc: NvrtcVersion,
    pub hash: Fingerprint,
    pub created: SystemTime,
    pub code: &'a [u8],
}

pub(super) fn encode(key: &CacheKey, code: &[u8], created: SystemTime) -> Vec<u8> {
    let seconds = created.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut out = Vec::with_capacity(code.len() + 256);
    out.extend(MAGIC);
    out.extend(FORMAT.to_le_bytes());
    out.extend(key.hash.as_bytes());
    out.extend(key.nvrtc.major.to_le_bytes());
    out.extend(key.nvrtc.minor.to_le_bytes());
    out.extend(seconds.as_secs().to_le_bytes());
    put_text(&mut out, &key.name);
    put_text(&mut out, &key.architecture.to_string());
    out.extend((code.len() as u64).to_le_bytes());
    out.extend(code);
    let checksum = blake3::hash(&out);
    out.extend(checksum.as_bytes());
    out
}

/// Reads an entry, or says what is wrong with it.
pub(super) fn decode(bytes: &[u8]) -> Result<Contents<'_>, &'static str> {
    const SHORT: &str = "it is cut short";
    let mut reader = Reader(bytes);
    if reader.array() != Some(*MAGIC) {
        return Err("it does not begin like a cache entry");
    }
    if reader.u32().ok_or(SHORT)? != FORMAT {
        return Err("its format is not this version's");
    }
    // Checked before anything is parsed, so that what follows is as it was written.
    let body = bytes.len().checked_sub(CHECKSUM).ok_or(SHORT)?;
    let (body, checksum) = bytes.split_at(body);
    if blake3::hash(body).as_bytes() != checksum {
        return Err("its checksum does not match");
    }
    let mut parse = || {
        let hash = Fingerprint(reader.array()?);
        let (major, minor) = (reader.u32()?, reader.u32()?);
        let created = UNIX_EPOCH.checked_add(Duration::from_secs(reader.u64()?))?;
        let name = reader.text()?;
        let architecture = reader.text()?.parse().ok()?;
        let length = reader.length()?;
        let code = reader.take(length)?;
        (reader.0.len() == CHECKSUM).then_some(Contents {
            name,
            architecture,
            nvrtc: NvrtcVersion { major, minor },
            hash,
            created,
            code,
        })
    };
    parse().ok_or("its header makes no sense")
}

/// The purpose of a cache file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Machine code.
    Entry,
    /// An entry being written, or left behind by a process that was killed.
    Part,
    /// Held while an entry is built.
    Lock,
}

impl Kind {
    fn suffix(self) -> &'static str {
        match self {
            Kind::Entry => ".cubin-entry",
            Kind::Part => ".cubin-part",
            Kind::Lock => ".cubin-lock",
        }
    }
}

/// The common start of the names of a key's files: the kernel's name, for readability, and the key's hash.
pub(super) fn stem_of(key: &CacheKey) -> String {
    let legible = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => c,
        _ => '_',
    };
    let name: String = key.name.chars().take(80).map(legible).collect();
    format!("{name}-{}", key.hash)
}

pub(super) fn path_of(directory: &Path, stem: &str, kind: Kind) -> PathBuf {
    directory.join(format!("{stem}{}", kind.suffix()))
}

/// Beginning and end of the name of a part; between them is something random.
pub(super) fn part_name(stem: &str) -> (String, &'static str) {
    (format!("{stem}."), Kind::Part.suffix())
}

/// The stem and kind of a cache file; `None` for any other name, so that foreign files are never removed.
pub(super) fn recognise(file_name: &str) -> Option<(&str, Kind)> {
    let (rest, kind) = [Kind::Entry, Kind::Part, Kind::Lock]
        .into_iter()
        .find_map(|kind| Some((file_name.strip_suffix(kind.suffix())?, kind)))?;
    let stem = match kind {
        Kind::Part => rest.rsplit_once('.')?.0,
        Kind::Entry | Kind::Lock => rest,
    };
    let (_, hash) = stem.rsplit_once('-')?;
    let sound = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    sound.then_some((stem, kind))
}

#[cfg(test)]
mod tests {
    use super::super::super::{NvrtcBuild, Program};
    use super::*;

    fn key(name: &str) -> CacheKey {
        let program = Program {
            name: name.into(),
            source: "code".into(),
            options: vec![],
            architecture: Architecture::of_device(9, 0),
        };
        program.cache_key(NvrtcBuild {
            version: NvrtcVersion {
                major: 13,
                minor: 0,
            },
            id: Fingerprint::from_bytes([5; 32]),
        })
    }

    #[test]
    fn an_entry_reads_as_it_was_written() {
        let key = key("msda_forward");
        let created = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let bytes = encode(&key, b"machine code", created);
        let expected = Contents {
            name: "msda_forward",
            architecture: key.architecture,
            nvrtc: key.nvrtc,
            hash: key.hash,
            created,
            code: b"machine code",
        };
        assert_eq!(decode(&bytes), Ok(expected));
    }

    #[test]
    fn damage_anywhere_is_noticed() {
        let bytes = encode(&key("msda_forward"), b"machine code", SystemTime::now());
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "cut at {length}");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(decode(&damaged).is_err(), "bit {bit} of byte {at}");
            }
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(decode(&longer).is_err());
    }

    #[test]
    fn a_false_length_under_a_true_checksum_is_noticed() {
        let bytes = encode(&key("k"), b"machine code", SystemTime::now());
        let at = bytes.len() - CHECKSUM - b"machine code".len() - 8;
        for length in [0u64, 11, 13, 1 << 40, u64::MAX] {
            let mut forged = bytes[..bytes.len() - CHECKSUM].to_vec();
            forged[at..at + 8].copy_from_slice(&length.to_le_bytes());
            let checksum = blake3::hash(&forged);
            forged.extend(checksum.as_bytes());
            assert_eq!(decode(&forged), Err("its header makes no sense"));
        }
    }

    #[test]
    fn only_our_names_are_recognised() {
        let stem = stem_of(&key("../../a b/ü"));
        assert!(stem.starts_with("______a_b__-"), "{stem}");
        for kind in [Kind::Entry, Kind::Lock] {
            let path = path_of(Path::new(""), &stem, kind);
            assert_eq!(recognise(path.to_str().unwrap()), Some((&*stem, kind)));
        }
        let (begin, end) = part_name(&stem);
        assert_eq!(
            recognise(&format!("{begin}x7Gh{end}")),
            Some((&*stem, Kind::Part))
        );
        for foreign in [
            "notes.txt",
            "notes.cubin-entry",
            "a-b.cubin-entry",
            ".cubin-part",
            "a-00ff.x.cubin-part",
            "",
        ] {
            assert_eq!(recognise(foreign), None, "{foreign}");
        }
        let long = stem_of(&key(&"é".repeat(300)));
        assert!(long.len() < 200, "{long}");
    }
}
