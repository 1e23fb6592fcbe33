//! `cargo xtask test`: quick checks first, so that a slip shows early.

use std::path::Path;

use crate::chore::{cargo, print_steps, step};
use crate::parts::{self, Choice};
use crate::workspace::Workspace;
use crate::{nvrtc, python, rust};

/// What the command line asks for.
struct Options<'a> {
    parts: Choice,
    rust_only: bool,
    /// For the test programs: which tests to run, and how.
    rest: Vec<&'a str>,
}

impl<'a> Options<'a> {
    fn new(words: &'a [String]) -> Self {
        let mut options = Options {
            parts: Choice::None,
            rust_only: false,
            rest: Vec::new(),
        };
        for word in words {
            match word.as_str() {
                "--all" => options.parts = Choice::All,
                "--changed" => options.parts = Choice::Changed,
                "--rust" => options.rust_only = true,
                other => options.rest.push(other),
            }
        }
        options
    }
}

/// All that must pass; the parts that take long as the options say.
pub fn run(words: &[String]) -> Result<(), String> {
    let options = Options::new(words);
    let result = first_tier(&options).and_then(|()| match options.parts {
        Choice::None => Ok(()),
        choice => parts::run(choice),
    });
    print_steps();
    result?;
    eprintln!("\nall checks passed");
    Ok(())
}

fn first_tier(options: &Options) -> Result<(), String> {
    cargo(["fmt", "--all", "--check"]).step("formatting")?;
    cargo(["clippy", "--all-targets", "--locked"])
        .arguments(&rust::FIRST_TIER)
        .arguments(&["--", "-D", "warnings"])
        .step("lints")?;
    let workspace = Workspace::read()?;
    workspace.check_rust_versions()?;
    workspace.lint_features()?;
    workspace.package(&["--no-verify"]).step("packages")?;

    let nvrtc = nvrtc::installed()?;
    let programs = step("build of the tests", || rust::build(&rust::FIRST_TIER))?;
    rust::run(&programs, &options.rest, &nvrtc)?;
    if options.parts == Choice::All && has_gpu() {
        let mut programs = rust::build(&["-p", "fourtap", "--test", "cuda"])?;
        programs.extend(rust::build(&["-p", "fourtap-c", "--test", "integration"])?);
        let tests = [
            "--include-ignored",
            "--skip",
            "sanitizer",
            "--test-threads=1",
        ];
        rust::run(&programs, &tests, &nvrtc)?;
    }
    let examples = cargo(["test", "--locked", "--doc"]).arguments(&rust::FIRST_TIER);
    rust::with_nvrtc(examples, &nvrtc).step("examples in documentation")?;
    let documentation = cargo(["doc", "--no-deps", "--document-private-items", "--locked"]);
    documentation
        .arguments(&rust::FIRST_TIER)
        .variable("RUSTDOCFLAGS", "-D warnings")
        .step("documentation")?;
    match options.rust_only {
        true => Ok(()),
        false => python::test(),
    }
}

/// Whether the NVIDIA driver of this machine has a device.
fn has_gpu() -> bool {
    Path::new("/dev/nvidia0").exists()
}
