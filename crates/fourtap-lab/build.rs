//! Which sources this is built from, so that records can say so.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let library = here.join("../fourtap");
    for part in ["src", "kernels"] {
        println!("cargo::rerun-if-changed={}", library.join(part).display());
    }
    if let Ok(hash) = source_hash(&library) {
        println!("cargo::rustc-env=FOURTAP_SOURCE_HASH={hash}");
    }
    if let Some(commit) = commit(&here) {
        println!("cargo::rustc-env=FOURTAP_COMMIT={commit}");
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

/// The commit, with a `+` if the library's or the lab's files differ from it.
fn commit(here: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(here)
            .output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    for name in ["HEAD", "index"] {
        if let Some(file) = git(&["rev-parse", "--git-path", name]) {
            println!("cargo::rerun-if-changed={}", here.join(file).display());
        }
    }
    let changed = git(&["status", "--porcelain", "--", ".", "../fourtap"])?;
    Some(if changed.is_empty() {
        commit
    } else {
        commit + "+"
    })
}
