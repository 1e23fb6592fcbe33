//! A folder of packs, one for each architecture, made of this version's kernels: what the Python package fourtap-kernels is.
//!
//! Its list, `kernels.txt`, says which fourtap it was made of and what is in each pack:
//!
//! ```text
//! fourtap 0.1.0
//! sources 9f2b...
//! sm_90a 41d0...
//! ```
//!
//! `sources` is a hash of all device code, and that of an architecture the checksum of its pack's index, which has the
//! checksums of its kernels. So nothing but the list, one index and the kernels that are used is read and hashed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use super::{Architecture, JitError, Pack, PackBuilder, Program};
use crate::warning::print_warning;

/// The name of the list.
const LIST: &str = "kernels.txt";

/// What kernels were compiled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The version of fourtap.
    pub version: String,
    /// A hash of all device code, in hexadecimal digits.
    pub sources: String,
}

impl Release {
    /// This library's.
    pub fn of_this_library() -> &'static Release {
        static THIS: OnceLock<Release> = OnceLock::new();
        THIS.get_or_init(|| {
            let mut hasher = blake3::Hasher::new();
            for kernel in crate::cuda::shipped() {
                hasher.update(kernel.entry.as_bytes());
                hasher.update(kernel.source_hash.as_bytes());
            }
            Release {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                sources: hasher.finalize().to_hex().to_string(),
            }
        })
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.sources.get(..16).unwrap_or(&self.sources);
        write!(f, "fourtap {} (sources {start})", self.version)
    }
}

/// An opened folder of packs.
#[derive(Debug)]
pub struct PackFolder {
    path: PathBuf,
    release: Release,
    /// The checksum of each pack's index.
    listed: BTreeMap<Architecture, String>,
    /// The packs opened so far; `None` if one cannot be used.
    opened: Mutex<BTreeMap<Architecture, Option<Arc<Pack>>>>,
}

impl PackFolder {
    /// Opens a folder of this version's kernels. No pack is opened yet.
    pub fn open(path: &Path) -> Result<PackFolder, JitError> {
        let list = path.join(LIST);
        let text = std::fs::read_to_string(&list)
            .map_err(|error| JitError::io(&list, "read the list of packs", &error))?;
        let (release, listed) = parse(&text).ok_or_else(|| JitError::PackDamaged {
            path: list.clone(),
            found: "that its lines make no sense".into(),
        })?;
        let expected = Release::of_this_library();
        if release != *expected {
            return Err(JitError::PackStale {
                path: path.to_path_buf(),
                expected: expected.to_string(),
                found: release.to_string(),
                version: expected.version.clone(),
            });
        }
        Ok(PackFolder {
            path: path.to_path_buf(),
            release,
            listed,
            opened: Mutex::default(),
        })
    }

    /// Writes a pack for each architecture, and then the list, by which a reader knows that all are there.
    pub fn write(path: &Path, packs: &BTreeMap<Architecture, PackBuilder>) -> Result<(), JitError> {
        std::fs::create_dir_all(path)
            .map_err(|error| JitError::io(path, "make the folder", &error))?;
        let release = Release::of_this_library();
        let mut text = format!("fourtap {}\nsources {}\n", release.version, release.sources);
        for (architecture, builder) in packs {
            let file = file_of(path, *architecture);
            builder.write(&file)?;
            let checksum = Pack::open(&file)?.checksum();
            text += &format!("{architecture} {checksum}\n");
        }
        let list = path.join(LIST);
        std::fs::write(&list, text)
            .map_err(|error| JitError::io(&list, "write the list of packs", &error))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What its kernels were compiled from.
    pub fn release(&self) -> &Release {
        &self.release
    }

    /// The architectures it has packs for.
    pub fn architectures(&self) -> impl Iterator<Item = Architecture> {
        self.listed.keys().copied()
    }

    /// Opens the pack of an architecture; `None` if there is none.
    pub fn pack(&self, architecture: Architecture) -> Result<Option<Pack>, JitError> {
        let Some(expected) = self.listed.get(&architecture) else {
            return Ok(None);
        };
        let pack = Pack::open(&file_of(&self.path, architecture))?;
        let found = pack.checksum().to_string();
        if found != *expected {
            return Err(JitError::PackDamaged {
                path: pack.path().to_path_buf(),
                found: format!("{found} where {LIST} says {expected}"),
            });
        }
        Ok(Some(pack))
    }

    /// The machine code of a program; `None` if the folder does not have it. What cannot be read is as if it were not there,
    /// with a warning: it can be compiled.
    pub fn find(&self, program: &Program) -> Option<Vec<u8>> {
        let pack = self.opened_pack(program.architecture)?;
        pack.find(program).unwrap_or_else(|error| {
            warn(&error);
            None
        })
    }

    fn opened_pack(&self, architecture: Architecture) -> Option<Arc<Pack>> {
        let mut opened = self
            .opened
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let pack = opened.entry(architecture).or_insert_with(|| {
            let pack = self.pack(architecture).unwrap_or_else(|error| {
                warn(&error);
                None
            });
            pack.map(Arc::new)
        });
        pack.clone()
    }
}

/// Tells why kernels are compiled though a folder of packs is there.
pub(super) fn warn(error: &JitError) {
    print_warning(&format!("kernels are compiled instead: {error}"));
}

fn file_of(folder: &Path, architecture: Architecture) -> PathBuf {
    folder.join(format!("{architecture}.pack"))
}

fn parse(text: &str) -> Option<(Release, BTreeMap<Architecture, String>)> {
    let mut lines = text.lines().map(|line| line.split_once(' '));
    let mut value_of = |name| match lines.next() {
        Some(Some((found, value))) if found == name => Some(value.to_owned()),
        _ => None,
    };
    let release = Release {
        version: value_of("fourtap")?,
        sources: value_of("sources")?,
    };
    let packs = lines.map(|line| {
        let (architecture, checksum) = line?;
        Some((architecture.parse().ok()?, checksum.to_owned()))
    });
    Some((release, packs.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::super::pack::tests::program;
    use super::*;

    /// A folder with kernels `a` and `b` for two architectures.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let packs = ["sm_80", "sm_90a"].map(|architecture| {
            let mut pack = PackBuilder::new();
            for source in ["a", "b"] {
                let program = program(source, architecture);
                let code = format!("{source} for {architecture}").into_bytes();
                let architecture = program.architecture;
                pack.add(program.fingerprint(), &program.name, architecture, code);
            }
            (architecture.parse().unwrap(), pack)
        });
        PackFolder::write(folder.path(), &packs.into()).unwrap();
        folder
    }

    #[test]
    fn gives_the_kernels_of_each_architecture() {
        let written = folder();
        let folder = PackFolder::open(written.path()).unwrap();
        assert_eq!(folder.release(), Release::of_this_library());
        let names: Vec<_> = folder.architectures().map(|it| it.to_string()).collect();
        assert_eq!(names, ["sm_80", "sm_90a"]);
        let find = |source, architecture| folder.find(&program(source, architecture));
        assert_eq!(find("a", "sm_80").unwrap(), b"a for sm_80");
        assert_eq!(find("b", "sm_90a").unwrap(), b"b for sm_90a");
        assert_eq!(find("c", "sm_90a"), None);
        assert_eq!(find("a", "sm_86"), None);
    }

    #[test]
    fn only_packs_that_are_asked_for_are_opened() {
        let written = folder();
        std::fs::remove_file(written.path().join("sm_80.pack")).unwrap();
        let folder = PackFolder::open(written.path()).unwrap();
        assert!(folder.find(&program("a", "sm_90a")).is_some());
        assert_eq!(folder.find(&program("a", "sm_80")), None);
    }

    #[test]
    fn kernels_of_another_version_or_of_other_sources_are_refused() {
        let written = folder();
        let list = written.path().join(LIST);
        let text = std::fs::read_to_string(&list).unwrap();
        let this = Release::of_this_library();
        for (from, to) in [
            (&this.version, "0.0.1"),
            (&this.sources, "0123456789abcdef"),
        ] {
            std::fs::write(&list, text.replace(from, to)).unwrap();
            let error = PackFolder::open(written.path()).unwrap_err();
            assert!(matches!(error, JitError::PackStale { .. }), "{error}");
            let words = error.to_string();
            assert!(
                words.contains(&format!("expected kernels of {this}")),
                "{words}"
            );
            assert!(words.contains(to), "{words}");
        }
    }

    #[test]
    fn a_damaged_kernel_is_as_if_it_were_not_there() {
        let written = folder();
        let file = written.path().join("sm_90a.pack");
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let folder = PackFolder::open(written.path()).unwrap();
        assert_eq!(folder.find(&program("b", "sm_90a")), None);
        assert!(folder.find(&program("a", "sm_90a")).is_some());
    }

    #[test]
    fn a_pack_that_the_list_does_not_mean_is_refused() {
        let written = folder();
        let [from, to] =
            ["sm_80", "sm_90a"].map(|name| written.path().join(format!("{name}.pack")));
        std::fs::copy(from, to).unwrap();
        let folder = PackFolder::open(written.path()).unwrap();
        let error = folder.pack("sm_90a".parse().unwrap()).unwrap_err();
        assert!(
            error.to_string().contains("where kernels.txt says"),
            "{error}"
        );
        assert_eq!(folder.find(&program("a", "sm_90a")), None);
    }

    #[test]
    fn a_list_that_makes_no_sense_is_refused() {
        let written = folder();
        let list = written.path().join(LIST);
        for text in [
            "",
            "fourtap 1\n",
            "sources x\nfourtap 1\n",
            "fourtap 1\nsources x\nhopper y\n",
        ] {
            std::fs::write(&list, text).unwrap();
            let error = PackFolder::open(written.path()).unwrap_err();
            assert!(
                matches!(error, JitError::PackDamaged { .. }),
                "{text:?}: {error}"
            );
        }
        std::fs::remove_file(&list).unwrap();
        let error = PackFolder::open(written.path()).unwrap_err();
        assert!(error.to_string().contains("kernels.txt"), "{error}");
    }
}
