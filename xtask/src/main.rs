//! The project's chores: `cargo xtask test` and friends, with nothing but Rust and Python installed.

mod bundle;
mod chore;
mod nvrtc;
mod python;

use std::process::ExitCode;

use chore::{cargo, step};

const HELP: &str = "\
cargo xtask CHORE

  test [--rust]      everything that must pass: formatting, lints, tests, documentation
                     (installs NVRTC under target/ to compile the CUDA kernels, for which no GPU is needed, and PyTorch
                     and transformers for the Python package, about 6 GB; --rust leaves Python out)
  wheel              the Python package for any Linux, into target/wheels
  gpu-bundle         one folder with all that must be run on a GPU, for machines without Rust or network
  compare-pytorch    time fourtap and PyTorch's grid_sample side by side on the CPU;
                     compare-pytorch dense: dense attention and scaled_dot_product_attention

Options after a chore's name go to what it runs.";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let result = match name.as_str() {
        "test" => test(&rest),
        "gpu-bundle" => bundle::make(),
        "wheel" => python::wheel().map(|wheel| println!("{}", wheel.display())),
        "compare-pytorch" => python::compare(&rest),
        "" | "help" | "-h" | "--help" => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        other => Err(format!("there is no chore {other:?}\n\n{HELP}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Quick checks first, so that a slip shows early.
fn test(options: &[String]) -> Result<(), String> {
    let rust_only = options.iter().any(|option| option == "--rust");
    let options: Vec<_> = options
        .iter()
        .filter(|&option| option != "--rust")
        .collect();
    step("formatting", &mut cargo(["fmt", "--all", "--check"]))?;
    let lint = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    step("lints", &mut cargo(lint))?;
    step(
        "lints without features",
        &mut cargo([
            "clippy", "-p", "fourtap", "--lib", "--locked", "--", "-D", "warnings",
        ]),
    )?;
    let nvrtc = nvrtc::installed()?;
    step(
        "tests",
        cargo(["test", "--workspace", "--locked", "--no-fail-fast"])
            .arguments(&options)
            .variable("FOURTAP_NVRTC", nvrtc.library)
            .variable("FOURTAP_CUOBJDUMP", nvrtc.cuobjdump)
            .variable("FOURTAP_REQUIRE_NVRTC", "1"),
    )?;
    let mut documentation = cargo([
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
        "--locked",
    ]);
    step(
        "documentation",
        documentation.variable("RUSTDOCFLAGS", "-D warnings"),
    )?;
    if !rust_only {
        python::test()?;
    }
    eprintln!("\nall checks passed");
    Ok(())
}
