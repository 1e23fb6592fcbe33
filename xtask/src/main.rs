//! The project's tasks, `cargo xtask test` and others, with nothing but Rust and Python installed.

mod bundle;
mod c_library;
mod chore;
mod environment;
mod false_alarms;
mod neighbours;
mod nvrtc;
mod onnx;
mod packs;
mod parts;
mod python;
mod rust;
mod site;
mod test;
mod workspace;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask TASK

  test [--all | --changed] [--rust] [TEST...]
                     everything that catches mistakes: formatting, lints, features, tests, documentation, Python.
                     --all adds the long-running parts, --changed those of them whose files have changed since they were
                     last tested; --rust leaves Python out; TEST and other options go to the test programs.
                     Needs no GPU. Installs NVRTC, PyTorch and transformers (6 GB) once per machine, into the user's
                     cache folder or FOURTAP_ENVIRONMENTS.
  changed            the parts that test --changed would run
  miri               the CPU code on small problems under Miri; needs a nightly toolchain with the components miri and rust-src
  wheel              the Python package for this system, on Linux for any with glibc 2.28, into target/wheels
  packs [--arch sm_80,sm_90a] [--only TEXT] [--jobs N] [--test]
                     the Python package fourtap-kernels, the kernels of usual calls compiled for all architectures or
                     those named, into target/packs/dist; --test installs one with two kernels beside fourtap
  c-library [--test] the library for C and C++ with its header and files for pkg-config and CMake, into target/c;
                     --test builds the examples with it
  site               the documentation as a site, into target/site; every link is checked
  gpu-bundle         one folder with all that must be run on a GPU, for machines without Rust or network
  compare-pytorch    time fourtap and PyTorch's grid_sample side by side on the CPU;
                     compare-pytorch dense: dense attention and scaled_dot_product_attention
  false-alarms       how often a build compared with itself is called slower or faster on this machine: in turns
                     (turns), by single runs (single), and made slower on purpose (slowed); --pairs N of each,
                     --slowdown 0.1, --program FOURTAP (built with fault-injection), --output FOLDER

Options after a task's name go to what it runs.";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let result = match name.as_str() {
        "test" => test::run(&rest),
        "changed" => changed(),
        "miri" => rust::miri(),
        "gpu-bundle" => bundle::make(),
        "wheel" => python::wheel(&rest).map(|wheel| println!("{}", wheel.display())),
        "packs" => match rest.iter().any(|word| word == "--test") {
            true => packs::test(),
            false => packs::build(&rest).map(|wheel| println!("{}", wheel.display())),
        },
        "c-library" => match rest.iter().any(|word| word == "--test") {
            true => c_library::test(),
            false => c_library::build().map(|prefix| println!("{}", prefix.display())),
        },
        "site" => site::build(&rest),
        "compare-pytorch" => python::compare(&rest),
        "false-alarms" => false_alarms::run(&rest),
        "" | "help" | "-h" | "--help" => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        other => Err(format!("there is no task {other:?}\n\n{HELP}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn changed() -> Result<(), String> {
    for part in parts::chosen(parts::Choice::Changed)? {
        println!("{}", part.name);
    }
    Ok(())
}
