//! fourtap and PyTorch on the same tensors, in one run.

use crate::chore::{cargo, chore, root};

/// Builds `fourtap`, makes a virtual environment with PyTorch if there is none, and runs the comparison.
pub fn compare(options: &[String]) -> Result<(), String> {
    cargo(["build", "--release", "--locked", "-p", "fourtap-lab"]).run()?;
    let environment = root().join("target/pytorch-venv");
    let python = environment.join(if cfg!(windows) {
        "Scripts/python.exe"
    } else {
        "bin/python"
    });
    if chore(&python, &["-c", "import torch, numpy, safetensors"])
        .run()
        .is_err()
    {
        eprintln!(
            "installing PyTorch into {} (about two minutes)",
            environment.display()
        );
        let system = if cfg!(windows) { "python" } else { "python3" };
        chore(system, &["-m", "venv"])
            .arguments(&[&environment])
            .run()?;
        chore(
            &python,
            &[
                "-m",
                "pip",
                "install",
                "--quiet",
                "torch",
                "numpy",
                "safetensors",
            ],
        )
        .run()?;
    }
    chore(&python, &["crates/fourtap-lab/scripts/compare_pytorch.py"])
        .arguments(options)
        .run()
}
