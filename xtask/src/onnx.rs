//! The library for ONNX Runtime: sessions of that, with our nodes in them.

use std::path::Path;

use crate::chore::{cargo, root, step};
use crate::environment;
use crate::python;

/// As last seen to work together; about 150 MB.
const PACKAGES: [&str; 4] = [
    "onnx==1.23.2",
    "onnxruntime==1.31.1",
    "numpy==2.4.6",
    "pytest==9.2.0",
];

/// The oldest that is promised to work, with what works with it.
const OLDEST: [&str; 4] = [
    "onnx==1.16.2",
    "onnxruntime==1.17.3",
    "numpy==1.26.4",
    "pytest==9.2.0",
];

/// Runs the tests; the Python package, whose results they compare with, is in this folder.
pub fn test(package: &Path) -> Result<(), String> {
    test_with("onnx", &PACKAGES, package, 100)
}

/// The same with the oldest ONNX Runtime, and many random nodes.
pub fn test_oldest() -> Result<(), String> {
    test_with("onnx-oldest", &OLDEST, &python::install_for_tests()?, 3_000)
}

fn test_with(
    name: &str,
    packages: &[&str],
    package: &Path,
    random_nodes: usize,
) -> Result<(), String> {
    let environment = environment::of_packages(name, packages)?;
    cargo(["build", "--locked", "-p", "fourtap-onnx"])
        .step("build of the library for ONNX Runtime")?;
    let library = format!(
        "{}fourtap_onnx{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    step("tests with ONNX Runtime", || {
        environment
            .python(&["-m", "pytest", "crates/fourtap-onnx/tests"])
            .variable("PYTHONPATH", package)
            .variable("FOURTAP_CASES", random_nodes.to_string())
            .variable(
                "FOURTAP_ONNX_LIBRARY",
                root().join("target/debug").join(library),
            )
            .run()
    })
}
