//! A kernel to be compiled, and the names its machine code is kept under.

use std::fmt;

use super::{Architecture, NvrtcBuild, NvrtcVersion};

/// Options every kernel is compiled with. They are part of the fingerprint.
pub(super) const FIXED_OPTIONS: [&str; 1] = ["-std=c++17"];

/// A kernel's source and how to compile it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// What error messages, cache entries and packs call it.
    pub name: String,
    /// CUDA C++, in one piece.
    pub source: String,
    /// Compiler options such as `-DD=32`; the architecture is not among them.
    pub options: Vec<String>,
    /// What to compile for.
    pub architecture: Architecture,
}

impl Program {
    /// Identifies this program, whichever NVRTC compiles it: the key of packs.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"fourtap program 1\n");
        // Each text follows its length: a text that moves from one part into the next changes the hash.
        let mut text = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        text(&self.source);
        text(&self.architecture.to_string());
        for option in FIXED_OPTIONS {
            text(option);
        }
        for option in &self.options {
            text(option);
        }
        Fingerprint::of(&hasher)
    }

    /// Identifies this program compiled by this NVRTC: the key of the cache.
    pub fn cache_key(&self, nvrtc: NvrtcBuild) -> CacheKey {
        let NvrtcBuild { version, id } = nvrtc;
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"fourtap cache 2\n");
        hasher.update(&self.fingerprint().0);
        hasher.update(&version.major.to_le_bytes());
        hasher.update(&version.minor.to_le_bytes());
        hasher.update(&id.0);
        CacheKey {
            name: self.name.clone(),
            architecture: self.architecture,
            nvrtc: version,
            hash: Fingerprint::of(&hasher),
        }
    }
}

/// A 32-byte hash, of a program or a compiler. Printed as hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub(super) [u8; 32]);

impl Fingerprint {
    pub(super) fn of(hasher: &blake3::Hasher) -> Self {
        Fingerprint(*hasher.finalize().as_bytes())
    }

    /// These bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Fingerprint(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// The key of machine code in a [`Cache`](super::Cache).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheKey {
    pub(super) name: String,
    pub(super) architecture: Architecture,
    pub(super) nvrtc: NvrtcVersion,
    pub(super) hash: Fingerprint,
}

impl CacheKey {
    /// Hash of the program's fingerprint and the compiler's version and build.
    pub fn hash(&self) -> Fingerprint {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        Program {
            name: "forward".into(),
            source: "code".into(),
            options: vec!["-DD=32".into(), "-DP=4".into()],
            architecture: Architecture::of_device(8, 0),
        }
    }

    #[test]
    fn every_part_but_the_name_changes_the_fingerprint() {
        let base = program();
        let mut renamed = base.clone();
        renamed.name = "backward".into();
        assert_eq!(base.fingerprint(), renamed.fingerprint());

        let changes: [fn(&mut Program); 6] = [
            |p| p.source.push(' '),
            |p| p.options.swap(0, 1),
            |p| p.options.truncate(1),
            |p| p.options = vec!["-DD=32-DP=4".into()],
            |p| p.options[1].clear(),
            |p| p.architecture = Architecture::of_device(8, 6),
        ];
        let mut seen = vec![base.fingerprint()];
        for change in changes {
            let mut changed = base.clone();
            change(&mut changed);
            assert!(!seen.contains(&changed.fingerprint()), "{changed:?}");
            seen.push(changed.fingerprint());
        }
    }

    #[test]
    fn text_may_not_wander_between_parts() {
        let mut one = program();
        one.options = vec!["ab".into(), "c".into()];
        let mut other = program();
        other.options = vec!["a".into(), "bc".into()];
        assert_ne!(one.fingerprint(), other.fingerprint());
    }

    #[test]
    fn the_compiler_changes_the_cache_key_only() {
        let hash = |major, minor, id| {
            let build = NvrtcBuild {
                version: NvrtcVersion { major, minor },
                id: Fingerprint([id; 32]),
            };
            program().cache_key(build).hash()
        };
        assert_ne!(hash(12, 9, 0), hash(13, 9, 0));
        assert_ne!(hash(12, 8, 0), hash(12, 9, 0));
        assert_ne!(hash(12, 9, 0), hash(12, 9, 1), "a patch release");
        assert_ne!(hash(12, 9, 0), program().fingerprint());
    }

    #[test]
    fn the_fingerprint_is_the_same_in_every_release() {
        assert_eq!(
            program().fingerprint().to_string(),
            "27ba3a5a7eea38d7b01f61e11edac8c384b90e11185f8b1e0e914915d6b50e19",
            "packs written before this change are no longer found"
        );
    }
}
