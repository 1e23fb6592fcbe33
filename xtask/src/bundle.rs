//! Everything that must run on a GPU, in one folder: for machines with a GPU but no Rust and no network.

use std::fs;
use std::path::{Path, PathBuf};

use crate::chore::{cargo, chore, root};
use crate::{python, rust};

/// What the folder may take, so that it travels easily.
const MOST_BYTES: u64 = 60 << 20;

/// Builds the command line, the Python package and the tests that need a GPU into target/gpu-bundle.
pub fn make() -> Result<(), String> {
    let wheel = python::wheel(&[])?;
    // The command with the ladder is the whole command, so it travels as that.
    cargo(["build", "--release", "--locked", "-p", "fourtap-ladder"]).run()?;
    let tests = test_binary("fourtap", "cuda")?;
    let c_tests = test_binary("fourtap-c", "integration")?;
    let bundle = root().join("target/gpu-bundle");
    let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
    if bundle.exists() {
        fs::remove_dir_all(&bundle).map_err(|error| failed("removing the old bundle", error))?;
    }
    fs::create_dir_all(&bundle).map_err(|error| failed("making the bundle", error))?;
    let parts: [(&Path, &str); 4] = [
        (&root().join("target/release/fourtap-ladder"), "fourtap"),
        (&tests, "cuda-tests"),
        (&c_tests, "c-tests"),
        (&root().join("xtask/gpu-bundle.sh"), "run.sh"),
    ];
    for (from, name) in parts {
        let to = bundle.join(name);
        fs::copy(from, &to).map_err(|error| failed(&format!("copying {name}"), error))?;
        if name != "run.sh" {
            // Without debugging information a tenth; without a `strip` it is just larger.
            let _ = chore("strip", &[]).arguments(&[&to]).run();
        }
    }
    python::unpack(&wheel, &bundle.join("python"))?;
    for folder in ["tests", "benches"] {
        let from = root().join("crates/fourtap-py").join(folder);
        copy_sources(&from, &bundle.join("fourtap-py").join(folder))
            .map_err(|error| failed(&format!("copying {}", from.display()), error))?;
    }
    let bytes = size(&bundle).map_err(|error| failed("measuring the bundle", error))?;
    if bytes > MOST_BYTES {
        return Err(format!(
            "the bundle takes {bytes} bytes, more than {MOST_BYTES}"
        ));
    }
    println!(
        "{} ({} MiB): copy it to a machine with a GPU and run `./run.sh RESULTS`",
        bundle.display(),
        bytes >> 20
    );
    Ok(())
}

/// The Python files under a folder.
fn copy_sources(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for file in fs::read_dir(from)? {
        let path = file?.path();
        let copy = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() && !path.ends_with("__pycache__") {
            copy_sources(&path, &copy)?;
        } else if path.extension().is_some_and(|extension| extension == "py") {
            fs::copy(&path, copy)?;
        }
    }
    Ok(())
}

/// Bytes of all files under a folder.
fn size(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += match metadata.is_dir() {
            true => size(&entry.path())?,
            false => metadata.len(),
        };
    }
    Ok(bytes)
}

/// A program of tests, built.
fn test_binary(package: &str, tests: &str) -> Result<PathBuf, String> {
    let programs = rust::build(&["-p", package, "--test", tests])?;
    let program = programs.first().ok_or("cargo named no test program")?;
    Ok(program.executable().to_path_buf())
}
