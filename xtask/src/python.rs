//! The Python package: its environment, its tests, its wheel, and the comparison with PyTorch.

use std::fs;
use std::path::{Path, PathBuf};

use crate::chore::{Chore, cargo, chore, root, step};

/// What the tests, the examples and the comparison need besides the package itself, as last seen to work together. The
/// package works with other versions too: PyTorch from 2.4, NumPy from 1.23.
const PACKAGES: [&str; 11] = [
    "torch==2.15.0",
    "transformers==5.22.2",
    "numpy==2.4.6",
    "safetensors==0.8.0",
    "scipy==1.17.1",
    "pillow==13.0.0",
    "pytest==9.2.0",
    "ruff==0.17.4",
    "mypy==2.4.1",
    "maturin==1.16.0",
    "ziglang==0.17.0",
];

/// Where Python code is that is not in the package.
const SOURCES: [&str; 4] = [
    "crates/fourtap-py",
    "crates/fourtap-lab/scripts",
    "crates/fourtap-ladder/scripts",
    "examples",
];

/// A virtual environment under target/.
pub struct Environment(PathBuf);

/// The one with PyTorch and transformers, made (about 6 GB) if it is not there or was made for other packages.
pub fn environment() -> Result<Environment, String> {
    let environment = Environment(root().join("target/python-venv"));
    // Written last, so that an installation that was interrupted is taken up again.
    let done = environment.0.join("installed.txt");
    let wanted = PACKAGES.join("\n");
    if fs::read_to_string(&done).is_ok_and(|found| found == wanted) {
        return Ok(environment);
    }
    eprintln!(
        "installing PyTorch and transformers into {} (about 6 GB, two minutes)",
        environment.0.display()
    );
    let system = if cfg!(windows) { "python" } else { "python3" };
    chore(system, &["-m", "venv"])
        .arguments(&[&environment.0])
        .run()?;
    environment
        .python(&["-m", "pip", "install", "--quiet"])
        .arguments(&PACKAGES)
        .run()?;
    fs::write(&done, wanted).map_err(|error| format!("{}: {error}", done.display()))?;
    Ok(environment)
}

impl Environment {
    /// Its Python with these arguments.
    pub fn python(&self, arguments: &[&str]) -> Chore {
        let mut python = chore(self.program("python"), arguments);
        // Where programs look for its other programs: maturin for Zig.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(self.programs()).chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(path) {
            python.variable("PATH", path);
        }
        python
    }

    fn program(&self, name: &str) -> PathBuf {
        match cfg!(windows) {
            true => self.programs().join(format!("{name}.exe")),
            false => self.programs().join(name),
        }
    }

    fn programs(&self) -> PathBuf {
        self.0.join(if cfg!(windows) { "Scripts" } else { "bin" })
    }
}

/// Formatting, lints, types; then the package is installed as a user would, and its tests and examples in docstrings
/// are run on what was installed.
pub fn test() -> Result<(), String> {
    let environment = environment()?;
    let ruff = |arguments: &[&str]| chore(environment.program("ruff"), arguments);
    step(
        "formatting of Python",
        ruff(&["format", "--check", "--quiet"]).arguments(&SOURCES),
    )?;
    step("lints of Python", ruff(&["check"]).arguments(&SOURCES))?;
    step("types of Python", &mut environment.python(&["-m", "mypy"]))?;
    step(
        "pip install .",
        &mut environment.python(&[
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--force-reinstall",
            ".",
        ]),
    )?;
    step(
        "tests of Python",
        &mut environment.python(&["-m", "pytest", "--durations=5"]),
    )?;
    step(
        "examples in docstrings",
        &mut environment.python(&[
            "-m",
            "pytest",
            "--doctest-modules",
            "--pyargs",
            "fourtap.attention",
            "fourtap.nn",
            "fourtap.compat",
        ]),
    )
}

/// A wheel for every Linux since 2018 with Python 3.10 or later, in target/wheels. Zig's linker knows the symbols of older
/// C libraries than this machine's.
pub fn wheel() -> Result<PathBuf, String> {
    let environment = environment()?;
    let folder = root().join("target/wheels");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let mut build = environment.python(&["-m", "maturin", "build", "--release", "--locked"]);
    if cfg!(target_os = "linux") {
        build.arguments(&["--zig", "--compatibility", "manylinux_2_28"]);
    }
    build.arguments(&[Path::new("--out"), &folder]).run()?;
    let wheel = fs::read_dir(&folder)
        .ok()
        .and_then(|mut files| files.next()?.ok())
        .map(|file| file.path());
    wheel.ok_or_else(|| format!("no wheel in {}", folder.display()))
}

/// Unpacks what a machine without network needs to run the Python tests: the wheel and pytest.
pub fn unpack(wheel: &Path, folder: &Path) -> Result<(), String> {
    environment()?
        .python(&["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
        .arguments(&[folder, wheel])
        .arguments(&["pytest", "pluggy", "iniconfig", "packaging", "pygments"])
        .run()
}

/// fourtap and PyTorch on the same tensors, in one run.
pub fn compare(options: &[String]) -> Result<(), String> {
    cargo(["build", "--release", "--locked", "-p", "fourtap-lab"]).run()?;
    let (script, options) = match options.split_first() {
        Some((first, rest)) if first == "dense" => ("compare_sdpa.py", rest),
        _ => ("compare_pytorch.py", options),
    };
    environment()?
        .python(&[&format!("crates/fourtap-lab/scripts/{script}")])
        .arguments(options)
        .run()
}
