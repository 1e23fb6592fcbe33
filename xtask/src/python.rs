//! The Python package: its environment, its tests, its wheel, and the comparison with PyTorch.

use std::fs;
use std::path::{Path, PathBuf};

use crate::chore::{Chore, cargo, chore, root};
use crate::environment::{self, Environment};
use crate::onnx;

/// What the tests, the examples and the comparison need besides the package itself, as last seen to work together; about
/// 6 GB. The package works with other versions too: PyTorch from 2.4, NumPy from 1.23.
const PACKAGES: [&str; 15] = [
    "torch==2.15.0",
    "transformers==5.22.2",
    "kernels==0.17.2",
    "numpy==2.4.6",
    "onnx==1.23.2",
    "onnxruntime==1.31.1",
    "onnxscript==0.7.2",
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
const SOURCES: [&str; 6] = [
    "crates/fourtap-onnx",
    "crates/fourtap-py",
    "crates/fourtap-lab/scripts",
    "crates/fourtap-ladder/scripts",
    "examples",
    "site",
];

/// The environment with PyTorch and transformers.
pub fn environment() -> Result<Environment, String> {
    environment::of_packages("python", &PACKAGES)
}

/// The package as this clone has it, beside the environment's packages.
struct PythonPackage {
    environment: Environment,
    folder: PathBuf,
}

impl PythonPackage {
    /// Where `pip install .` puts it.
    fn new() -> Result<Self, String> {
        Ok(PythonPackage {
            environment: environment()?,
            folder: root().join("target/python"),
        })
    }

    /// As a user would install it, but into this clone: the environment is every clone's. A profile other than a user's saves
    /// a build of the library, where the tests in Rust have made one.
    fn install(&self, profile: &str) -> Result<(), String> {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)
                .map_err(|error| format!("{}: {error}", self.folder.display()))?;
        }
        let pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--target"];
        let pip = self.environment.python(&pip);
        pip.arguments(&[&self.folder])
            .arguments(&["."])
            // Not in pyproject.toml: a source distribution has fewer crates than Cargo.lock, which would then have to change.
            .variable(
                "MATURIN_PEP517_ARGS",
                format!("--locked --profile {profile}"),
            )
            .step(&format!("pip install . ({profile})"))
    }

    fn pytest(&self, arguments: &[&str]) -> Chore {
        let scripts = [self.folder.join("bin")];
        let pytest = self.environment.python_with(&scripts, &["-m", "pytest"]);
        pytest
            .arguments(arguments)
            .variable("PYTHONPATH", &self.folder)
    }
}

/// Formatting, lints, types; then the package is installed, and its tests and examples in docstrings
/// are run on what was installed.
pub fn test() -> Result<(), String> {
    let installed = PythonPackage::new()?;
    let environment = &installed.environment;
    let ruff =
        |arguments: &[&str]| chore(environment.program("ruff"), arguments).arguments(&SOURCES);
    ruff(&["format", "--check", "--quiet"]).step("formatting of Python")?;
    ruff(&["check"]).step("lints of Python")?;
    environment
        .python(&["-m", "mypy"])
        .step("types of Python")?;
    installed.install("dev")?;
    let tests = ["--durations=10", "-m", "not slow"];
    installed.pytest(&tests).step("tests of Python")?;
    let examples = [
        "--doctest-modules",
        "--pyargs",
        "fourtap._decomposed",
        "fourtap.attention",
        "fourtap.nn",
        "fourtap.compat",
        "fourtap.onnx",
        "fourtap.distributed",
    ];
    installed.pytest(&examples).step("examples in docstrings")?;
    onnx::test(&installed.folder)
}

/// Installs the package as the quick tests use it, and says where.
pub fn install_for_tests() -> Result<PathBuf, String> {
    let installed = PythonPackage::new()?;
    installed.install("dev")?;
    Ok(installed.folder)
}

/// The tests that take long, whole models, with the package as users build it.
pub fn test_slow() -> Result<(), String> {
    let installed = PythonPackage::new()?;
    installed.install("release")?;
    let tests = ["--durations=10", "-m", "slow"];
    installed.pytest(&tests).run()
}

/// A wheel for this system, on Linux for every one since 2018, with Python 3.10 or later, in target/wheels. Zig's linker knows the
/// symbols of older C libraries than this machine's.
pub fn wheel(options: &[String]) -> Result<PathBuf, String> {
    // Not the whole environment: machines that only build wheels need no PyTorch.
    let builds =
        |package: &&str| package.starts_with("maturin==") || package.starts_with("ziglang==");
    let packages: Vec<_> = PACKAGES.into_iter().filter(builds).collect();
    let environment = environment::of_packages("wheel", &packages)?;
    let folder = root().join("target/wheels");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let mut build = environment.python(&["-m", "maturin", "build", "--release", "--locked"]);
    if cfg!(target_os = "linux") {
        build = build.arguments(&["--zig", "--compatibility", "manylinux_2_28"]);
    }
    let build = build.arguments(options);
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
        .python(&[
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-compile",
            "--target",
        ])
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
