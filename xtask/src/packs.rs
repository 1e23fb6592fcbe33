//! The Python package fourtap-kernels: the kernels of usual calls, compiled.

use std::fs;
use std::path::{Path, PathBuf};

use crate::chore::{cargo, root};
use crate::environment;
use crate::{nvrtc, python};

/// Builds the wheel. Maturin builds only packages with a crate.
const PACKAGES: [&str; 1] = ["flit_core==3.12.0"];

/// What is in the package besides the packs.
const SOURCES: &str = "crates/fourtap-py/kernels";
const MODULE: &str = "fourtap_kernels";

/// What all architectures may take, so that the package is quick to install.
const MOST_BYTES: u64 = 25_000_000;

/// Compresses a wheel as far as its format can: that takes half a minute once, and saves 5% of every download.
const COMPRESS: &str = r#"
import os, sys, zipfile
wheel = sys.argv[1]
with zipfile.ZipFile(wheel) as loose, zipfile.ZipFile(wheel + ".tight", "w") as tight:
    for entry in loose.infolist():
        tight.writestr(entry, loose.read(entry), zipfile.ZIP_DEFLATED, 9)
os.replace(wheel + ".tight", wheel)
"#;

/// Builds the package, or with `--test` tries a small one.
pub fn run(options: &[String]) -> Result<(), String> {
    match options {
        [option] if option == "--test" => test(),
        _ if options.iter().any(|option| option == "--test") => {
            Err("packs: expected no other option with --test, found some".into())
        }
        _ => build(options).map(|wheel| println!("{}", wheel.display())),
    }
}

/// Compiles the kernels and builds the wheel, into target/packs/dist. Options go to `fourtap bake --usual`: `--arch
/// sm_80,sm_90a` for fewer architectures, `--only TEXT` for fewer kernels, `--jobs N`.
pub fn build(options: &[String]) -> Result<PathBuf, String> {
    let folder = root().join("target/packs");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    copy_sources(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let nvrtc = nvrtc::installed()?;
    // Not a release build: the time goes into NVRTC.
    cargo(["run", "--locked", "--package", "fourtap-lab", "--", "bake"])
        .arguments(&["--usual", "--output"])
        .arguments(&[folder.join(MODULE)])
        .arguments(options)
        .variable("FOURTAP_NVRTC", &nvrtc.library)
        .run()?;
    let dist = folder.join("dist");
    let pip = ["-m", "pip", "wheel", "--quiet", "--no-deps"];
    let environment = environment::of_packages("kernels", &PACKAGES)?;
    environment
        .python(&pip)
        .arguments(&["--no-build-isolation", "--wheel-dir"])
        .arguments(&[&dist, &folder])
        .run()?;
    let failed = |error: std::io::Error| format!("{}: {error}", dist.display());
    let mut wheels = fs::read_dir(&dist).map_err(failed)?;
    let wheel = wheels.next().ok_or("pip built no wheel")?.map_err(failed)?;
    environment
        .python(&["-c", COMPRESS])
        .arguments(&[wheel.path()])
        .run()?;
    let bytes = wheel.metadata().map_err(failed)?.len();
    if bytes > MOST_BYTES {
        return Err(format!(
            "{}: {bytes} bytes, more than {MOST_BYTES}: take calls out of crates/fourtap-admin/src/usual.rs",
            wheel.path().display()
        ));
    }
    eprintln!("{:.1} MB", bytes as f64 / 1e6);
    Ok(wheel.path())
}

/// The package without packs, with this version.
fn copy_sources(folder: &Path) -> std::io::Result<()> {
    let sources = root().join(SOURCES);
    fs::create_dir_all(folder.join(MODULE))?;
    for name in ["README.md", "fourtap_kernels/__init__.py"] {
        fs::copy(sources.join(name), folder.join(name))?;
    }
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(root().join(name), folder.join(name))?;
    }
    let project = fs::read_to_string(sources.join("pyproject.toml"))?;
    let project = project.replace("0.0.0", env!("CARGO_PKG_VERSION"));
    fs::write(folder.join("pyproject.toml"), project)
}

/// A wheel with two kernels, installed beside fourtap, is what fourtap finds.
pub fn test() -> Result<(), String> {
    let options = ["--arch", "sm_90a", "--only", "projected-mask"];
    let wheel = build(&options.map(str::to_string))?;
    let fourtap = python::install_for_tests()?;
    let installed = root().join("target/packs/installed");
    let environment = python::environment()?;
    environment
        .python(&["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
        .arguments(&[&installed, &wheel])
        .run()?;
    let path = std::env::join_paths([&fourtap, &installed]).map_err(|error| error.to_string())?;
    let report = environment
        .python(&["-m", "fourtap", "doctor"])
        .variable("PYTHONPATH", path)
        .variable("FOURTAP_PACK", "")
        .output()?;
    let folder = installed.join(MODULE);
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!("{version} in {}: sm_90a 2", folder.display());
    match report.contains(&expected) {
        true => Ok(()),
        false => Err(format!("doctor: expected {expected:?}, found:\n{report}")),
    }
}
