//! Tests that take long, in parts. A part runs in `cargo xtask test --all`, and in `--changed` if a file it protects has
//! changed since the part last passed there, which xtask/tested.txt tells by a hash of those files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::chore::{cargo, root, step};
use crate::{c_library, neighbours, nvrtc, onnx, packs, python, rust, site, workspace};

/// Tests that take long, and what they protect.
pub struct Part {
    /// What it is called in tested.txt.
    pub name: &'static str,
    /// What it proves.
    about: &'static str,
    /// The files and folders a mistake in which it would find, from the root.
    protects: &'static [&'static str],
    run: fn() -> Result<(), String>,
}

/// All of them.
pub const PARTS: [Part; 14] = [
    Part {
        name: "bench",
        about: "README's first command: a release build, and every quick benchmark",
        protects: &[
            "Cargo.lock",
            "Cargo.toml",
            "crates/fourtap",
            "crates/fourtap-admin/src",
            "crates/fourtap-lab",
        ],
        run: || cargo(["run", "--release", "--locked", "--", "bench", "--quick"]).run(),
    },
    Part {
        name: "browser",
        about: "reports opened in Chromium",
        protects: &["crates/fourtap-lab"],
        run: || long_tests("fourtap-lab integration", "report_in_browser"),
    },
    Part {
        name: "c-library",
        about: "the library for C as it is installed, examples built with it by pkg-config and CMake, and thousands of random calls",
        protects: &[
            "Cargo.lock",
            "crates/fourtap-c",
            "crates/fourtap/Cargo.toml",
            "xtask/src/c_library.rs",
        ],
        run: || {
            long_tests("fourtap-c integration", "random_calls")?;
            c_library::test()
        },
    },
    Part {
        name: "kernel-cache",
        about: "the kernel cache under 1,000 kills and 32 processes",
        protects: &[
            "crates/fourtap/src/cuda/jit",
            "crates/fourtap/tests/integration/kernel_cache",
        ],
        run: || long_tests("fourtap integration", "kernel_cache"),
    },
    Part {
        name: "kernels",
        about: "every shipped kernel compiled, also those that have not changed, and every probe",
        protects: &[
            "crates/fourtap/kernels",
            "crates/fourtap/src/cuda",
            "crates/fourtap/tests",
            "crates/fourtap-lab/kernels",
            "crates/fourtap-lab/src/probe/cuda",
        ],
        run: || {
            long_tests("fourtap integration", "kernel_table")?;
            long_tests("fourtap-lab unit tests", "probe::cuda")
        },
    },
    Part {
        name: "ladder",
        about: "the verification of rungs on every small problem",
        protects: &["crates/fourtap/src/dense", "crates/fourtap-ladder"],
        run: || long_tests("fourtap-ladder unit tests of the program", "dense::tests"),
    },
    Part {
        name: "models",
        about: "`pip install .` as users build it, and the package in whole models",
        protects: &[
            "crates/fourtap/src",
            "crates/fourtap-py",
            "pyproject.toml",
            "xtask/src/python.rs",
        ],
        run: python::test_slow,
    },
    Part {
        name: "neighbours",
        about: "arrays of ndarray and tensors of candle, also the examples in docs/rust.md",
        protects: &[
            "Cargo.lock",
            "crates/fourtap-candle",
            "crates/fourtap/Cargo.toml",
            "crates/fourtap/examples",
            "crates/fourtap/src/bool_view.rs",
            "crates/fourtap/src/from_ndarray.rs",
            "crates/fourtap/src/layout.rs",
            "crates/fourtap/src/tensor.rs",
            "crates/fourtap/tests/integration/ndarray_views.rs",
            "docs/rust.md",
            "xtask/src/neighbours.rs",
        ],
        run: neighbours::test,
    },
    Part {
        name: "onnx-oldest",
        about: "sessions of the oldest ONNX Runtime that is promised to work, and thousands of random nodes",
        protects: &["crates/fourtap-onnx", "xtask/src/onnx.rs"],
        run: onnx::test_oldest,
    },
    Part {
        name: "packages",
        about: "the published crates, built from what is published of them",
        protects: &[
            "Cargo.lock",
            "Cargo.toml",
            "crates/fourtap/Cargo.toml",
            "crates/fourtap/README.md",
            "crates/fourtap-admin/Cargo.toml",
            "crates/fourtap-admin/README.md",
            "crates/fourtap-lab/Cargo.toml",
            "crates/fourtap-lab/README.md",
            "crates/fourtap-lab/build.rs",
        ],
        run: || workspace::Workspace::read()?.verify_packages(),
    },
    Part {
        name: "packs",
        about: "the Python package fourtap-kernels with few kernels, installed and found",
        protects: &[
            "crates/fourtap-admin/src",
            "crates/fourtap-py/kernels",
            "crates/fourtap-py/python/fourtap/__init__.py",
            "crates/fourtap-py/python/fourtap/_kernels.py",
            "crates/fourtap/src/cuda/jit",
            "xtask/src/packs.rs",
        ],
        run: packs::test,
    },
    Part {
        name: "searches",
        about: "searches for better choices, from beginning to end",
        protects: &["crates/fourtap/src", "crates/fourtap-lab"],
        run: || long_tests("fourtap-lab integration", "tune::searches"),
    },
    Part {
        name: "simulation",
        about: "how often comparisons of benchmarks are wrong",
        protects: &["crates/fourtap-lab/src/comparison"],
        run: || long_tests("fourtap-lab unit tests", "comparison::simulation"),
    },
    Part {
        name: "site",
        about: "the documentation as a site, every link and anchor of it, and the links of all other documents",
        protects: &[
            "ARCHITECTURE.md",
            "CHANGELOG.md",
            "CONTRIBUTING.md",
            "README.md",
            "RELEASING.md",
            "SECURITY.md",
            "crates/fourtap/README.md",
            "crates/fourtap-admin/README.md",
            "crates/fourtap-lab/README.md",
            "crates/fourtap-py/README.md",
            "crates/fourtap-py/python",
            "docs",
            "runs/README.md",
            "site",
            "xtask/src/site.rs",
        ],
        run: || site::build(&[]),
    },
];

/// The tests of a program that are ignored in the first tier, by the beginning of their names.
fn long_tests(program: &str, tests: &str) -> Result<(), String> {
    // All of them at once, as in the first tier: other crates alone would have other features, and be built anew.
    let mut programs = rust::build(&rust::FIRST_TIER)?;
    programs.retain(|one| one.name() == program);
    match programs.is_empty() {
        true => Err(format!("there is no test program {program}")),
        false => rust::run(&programs, &["--ignored", tests], &nvrtc::installed()?),
    }
}

/// Which parts to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// None.
    None,
    /// Those whose files have changed.
    Changed,
    /// All.
    All,
}

/// The parts that are chosen.
pub fn chosen(choice: Choice) -> Result<Vec<&'static Part>, String> {
    let tested = read(&tested_path());
    let mut chosen = Vec::new();
    for part in &PARTS {
        let is_tested = tested.get(part.name) == Some(&part.fingerprint(&root())?);
        if choice == Choice::All || choice == Choice::Changed && !is_tested {
            chosen.push(part);
        }
    }
    Ok(chosen)
}

/// Runs the parts that are chosen, and says why. If all have passed, that is written down.
pub fn run(choice: Choice) -> Result<(), String> {
    let chosen = chosen(choice)?;
    let is_chosen = |part: &&Part| chosen.iter().any(|one| one.name == part.name);
    for part in PARTS.iter().filter(|part| !is_chosen(part)) {
        eprintln!(
            "not run, since its files are as they were last tested: {} ({})",
            part.name, part.about
        );
    }
    for part in &chosen {
        let reason = match choice {
            Choice::All => "asked for".to_string(),
            _ => format!("changed since last tested: {}", part.protects.join(", ")),
        };
        eprintln!("\n{} ({}): {reason}", part.name, part.about);
        step(part.name, part.run)?;
    }
    write_tested()
}

fn write_tested() -> Result<(), String> {
    let mut text = String::from(
        "# Parts of the tests that take long, with a hash of the files they protect as they last passed in full.\n\
         # Written by `cargo xtask test --all` and `--changed`.\n",
    );
    for part in &PARTS {
        text += &format!("{} {}\n", part.name, part.fingerprint(&root())?);
    }
    fs::write(tested_path(), text).map_err(|error| format!("xtask/tested.txt: {error}"))
}

fn tested_path() -> PathBuf {
    root().join("xtask/tested.txt")
}

fn read(path: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .map(|(name, hash)| (name.to_string(), hash.to_string()))
        .collect()
}

impl Part {
    /// Of the names and contents of what it protects.
    fn fingerprint(&self, root: &Path) -> Result<String, String> {
        let mut files = Vec::new();
        for path in self.protects {
            let failed = |error| format!("{path}, which the part {} protects: {error}", self.name);
            list(&root.join(path), &mut files).map_err(failed)?;
        }
        files.sort();
        let mut hasher = blake3::Hasher::new();
        for file in files {
            let content =
                fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            let name = file.strip_prefix(root).unwrap_or(&file);
            hasher.update(name.to_string_lossy().as_bytes());
            hasher.update(&(content.len() as u64).to_le_bytes());
            hasher.update(&content);
        }
        Ok(hasher.finalize().to_hex()[..16].to_string())
    }
}

/// A file, or all files under a folder, but for what Python and builds leave behind.
fn list(path: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if !path.is_dir() {
        fs::metadata(path)?;
        files.push(path.to_path_buf());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !(name.starts_with('.')
            || name == "__pycache__"
            || name == "target"
            || name.ends_with(".so"))
        {
            list(&path, files)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: Part = Part {
        name: "some",
        about: "a part",
        protects: &["folder", "file"],
        run: || Ok(()),
    };

    #[test]
    fn a_fingerprint_changes_with_what_is_protected_and_with_nothing_else() {
        let root = std::env::temp_dir().join(format!("xtask-parts-{}", std::process::id()));
        fs::create_dir_all(root.join("folder/inner/__pycache__")).unwrap();
        let write = |name: &str, text: &str| fs::write(root.join(name), text).unwrap();
        write("file", "1");
        write("folder/inner/a", "2");
        let first = PART.fingerprint(&root).unwrap();
        write("folder/inner/__pycache__/a", "3");
        write("other", "4");
        assert_eq!(PART.fingerprint(&root).unwrap(), first);
        write("folder/inner/a", "3");
        let second = PART.fingerprint(&root).unwrap();
        assert_ne!(second, first);
        fs::rename(root.join("folder/inner/a"), root.join("folder/inner/b")).unwrap();
        assert_ne!(PART.fingerprint(&root).unwrap(), second);
        fs::remove_file(root.join("file")).unwrap();
        let missing = PART.fingerprint(&root).unwrap_err();
        assert!(
            missing.starts_with("file, which the part some protects"),
            "{missing}"
        );
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn every_part_protects_files_that_exist() {
        for part in &PARTS {
            part.fingerprint(&root()).unwrap();
        }
    }
}
