//! The tests written in Rust: built at once, then each program timed, and its slowest tests named.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::chore::{Chore, cargo, chore, step};
use crate::nvrtc::Nvrtc;

/// A program full of tests.
pub struct Program {
    /// `fourtap integration`, `fourtap-lab unit tests`: the crate, and which of its programs.
    name: String,
    executable: PathBuf,
    /// Where its crate is, which is where its tests expect to run.
    folder: PathBuf,
}

/// The crates that the first tier lints, builds and tests: all but that for candle, whose dependencies take minutes to compile.
pub const FIRST_TIER: [&str; 3] = ["--workspace", "--exclude", "fourtap-candle"];

/// Builds the tests that cargo finds with these arguments.
pub fn build(arguments: &[&str]) -> Result<Vec<Program>, String> {
    let build = cargo(["test", "--locked", "--no-run"]).arguments(arguments);
    let messages = build
        .arguments(&["--message-format=json-render-diagnostics"])
        .output()?;
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    Ok(messages.filter_map(|message| program(&message)).collect())
}

fn program(message: &Value) -> Option<Program> {
    if message["profile"]["test"] != Value::Bool(true) {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?)
        .parent()?
        .to_path_buf();
    let target = &message["target"];
    let kind = match target["kind"][0].as_str()? {
        "test" => target["name"].as_str()?,
        "bin" => "unit tests of the program",
        _ => "unit tests",
    };
    let name = format!("{} {kind}", folder.file_name()?.to_string_lossy());
    Some(Program {
        name,
        executable,
        folder,
    })
}

impl Program {
    /// Its crate, and which of its programs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub fn executable(&self) -> &Path {
        &self.executable
    }

    /// Runs its tests with these options of the test harness.
    fn run(
        &self,
        options: &[&str],
        nvrtc: &Nvrtc,
        slow: &mut Vec<(f64, String)>,
    ) -> Result<(), String> {
        let tests = chore(&self.executable, options).within(&self.folder);
        // The harness tells the time of each test only to who says this, though it is stable enough for that.
        let tests = tests
            .arguments(&["-Zunstable-options", "--report-time"])
            .variable("RUSTC_BOOTSTRAP", "1")
            .variable("CARGO_MANIFEST_DIR", &self.folder);
        with_nvrtc(tests, nvrtc).lines(|line| {
            println!("{line}");
            if let Some((seconds, test)) = time_of(line) {
                slow.push((seconds, format!("{}: {test}", self.name)));
            }
        })
    }
}

/// Runs all of them, also after one has failed.
pub fn run(programs: &[Program], options: &[&str], nvrtc: &Nvrtc) -> Result<(), String> {
    let mut slow = Vec::new();
    let mut failures = Vec::new();
    for program in programs {
        let ran = step(&program.name, || Ok(program.run(options, nvrtc, &mut slow)))?;
        failures.extend(ran.err());
    }
    if slow.is_empty() && failures.is_empty() && !options.is_empty() {
        return Err(format!("no test is called {}", options.join(" ")));
    }
    slow.sort_by(|one, other| other.0.total_cmp(&one.0));
    eprintln!("\nthe slowest tests:");
    for (seconds, test) in slow.iter().take(12) {
        eprintln!("{seconds:8.1} s  {test}");
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures.join("\n")),
    }
}

/// Where tests find the compiler of kernels. With it there is no excuse for leaving one out.
pub fn with_nvrtc(tests: Chore, nvrtc: &Nvrtc) -> Chore {
    tests
        .variable("FOURTAP_NVRTC", &nvrtc.library)
        .variable("FOURTAP_CUOBJDUMP", &nvrtc.cuobjdump)
        .variable("FOURTAP_REQUIRE_NVRTC", "1")
}

/// `test some::name ... ok <1.234s>`
fn time_of(line: &str) -> Option<(f64, &str)> {
    let (test, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (_, time) = rest.rsplit_once('<')?;
    Some((time.strip_suffix("s>")?.parse().ok()?, test))
}

/// Small problems of both operators under Miri, which finds undefined behaviour. Of a processor's instructions it offers those
/// of the oldest x86-64, so it is the portable code that runs.
pub fn miri() -> Result<(), String> {
    // The pool of threads outlives the tests, and casts integers to pointers inside.
    let flags = "-Zmiri-disable-isolation -Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks";
    cargo(["+nightly", "miri", "test", "--locked", "-p", "fourtap"])
        .arguments(&["--test", "integration", "small::"])
        .variable("MIRIFLAGS", flags)
        .step("small problems under Miri")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_times_that_the_harness_reports() {
        let line = "test msda::oracle::every_path ... ok <1.250s>";
        assert_eq!(time_of(line), Some((1.25, "msda::oracle::every_path")));
        for other in [
            "test a ... ignored, needs a CUDA device",
            "running 3 tests",
            "test a ... ok",
        ] {
            assert_eq!(time_of(other), None, "{other}");
        }
    }
}
