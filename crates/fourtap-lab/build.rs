//! Which sources this is built from, so that records can say so.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the program is made of, seen from this crate. These are watched and nothing else, so that `+` behind a commit means:
/// what was compiled differs from it. What is staged, or written elsewhere, changes no record and builds nothing anew.
const LAB: [&str; 8] = [
    "Cargo.toml",
    "build.rs",
    "ceilings",
    "kernels",
    "peers.toml",
    "src",
    "templates",
    "workloads",
];
const LIBRARY: [&str; 4] = [
    "../fourtap/Cargo.toml",
    "../fourtap/kernels",
    "../fourtap/src",
    "../fourtap/tuning.tsv",
];

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    // A packaged crate has no library beside it.
    let sources = LAB.into_iter().chain(LIBRARY);
    let sources: Vec<_> = sources.filter(|path| here.join(path).exists()).collect();
    for source in &sources {
        watch(&here.join(source));
    }
    if let Ok(hash) = source_hash(&here.join("../fourtap")) {
        println!("cargo::rustc-env=FOURTAP_SOURCE_HASH={hash}");
    }
    if let Some(commit) = commit(&here, &sources) {
        println!("cargo::rustc-env=FOURTAP_COMMIT={commit}");
    }
}

/// Cargo takes a file that is not there for one that always changes.
fn watch(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// Of every file of the library that its results depend on, with its name.
fn source_hash(library: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for part in ["src", "kernels"] {
        list(&library.join(part), &mut files)?;
    }
    files.sort();
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let name = file.strip_prefix(library).unwrap_or(&file);
        let content = fs::read(&file)?;
        hasher.update(name.to_string_lossy().as_bytes());
        hasher.update(&(content.len() as u64).to_le_bytes());
        hasher.update(&content);
    }
    Ok(hasher.finalize().to_hex()[..16].to_string())
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => list(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

/// The commit, with a `+` if the sources differ from it; none where they are not part of a repository.
fn commit(here: &Path, sources: &[&str]) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("--no-optional-locks")
            .args(arguments)
            .current_dir(here)
            .output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    // A packaged crate may lie inside somebody's repository without being part of it.
    git(&["ls-files", "--error-unmatch", "Cargo.toml"])?;
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    // The log grows whenever HEAD comes to name another commit, even if its branch has no file of its own; where no logs
    // are kept, the branch has to do.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD"].into_iter().chain(branch.as_deref()) {
        if let Some(file) = git(&["rev-parse", "--git-path", name]) {
            watch(&here.join(file));
        }
    }
    let changed = git(&[&["status", "--porcelain", "--"], sources].concat())?;
    Some(match changed.is_empty() {
        true => commit,
        false => commit + "+",
    })
}
