//! Nsight Compute's command line.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::error::{Error, Result};

const PROGRAM: &str = if cfg!(windows) { "ncu.exe" } else { "ncu" };

/// Where CUDA installs it, if it is not on the PATH.
const INSTALLED: &str = "/usr/local/cuda/bin";

/// Names of our kernels' functions begin so; others, as a framework's, are not of interest.
const OURS: &str = "regex:^(msda|dense|ladder)_";

/// What the profiler says when counters are reserved for administrators.
const NO_PERMISSION: &str = "ERR_NVGPUCTRPERM";

/// How it complains of a metric it does not know.
const UNKNOWN_METRIC: &str = "Failed to find metric regex:^";

/// Lines of a failure worth repeating.
const MOST_LINES: usize = 3;

/// The profiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ncu {
    path: PathBuf,
    /// As in "2025.3.1".
    pub version: String,
}

impl Ncu {
    /// The one named, else the one on the PATH, else the one CUDA installed.
    pub fn find(named: Option<&Path>) -> Result<Self> {
        let candidates: Vec<PathBuf> = match named {
            Some(path) => vec![path.to_path_buf()],
            None => {
                let paths = env::var_os("PATH").unwrap_or_default();
                let folders = env::split_paths(&paths).chain([PathBuf::from(INSTALLED)]);
                folders.map(|folder| folder.join(PROGRAM)).collect()
            }
        };
        let Some(path) = candidates.into_iter().find(|path| path.is_file()) else {
            return Err(Error::NoProfiler {
                looked: match named {
                    Some(path) => path.display().to_string(),
                    None => format!("the PATH and {INSTALLED}"),
                },
            });
        };
        let output = started(&path, Command::new(&path).arg("--version"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut words = text.split_whitespace();
        let version = words.find(|word| *word == "Version").and(words.next());
        match version {
            // As in "2025.3.1.0": the last is always 0.
            Some(version) => Ok(Ncu {
                version: version.strip_suffix(".0").unwrap_or(version).to_string(),
                path,
            }),
            None => Err(Error::Profiler {
                found: "a program that does not tell its version".to_string(),
                ncu: path,
            }),
        }
    }

    /// Base names of the counters it knows on this machine; none if it does not say.
    pub fn known_metrics(&self) -> Result<BTreeSet<String>> {
        let output = started(&self.path, Command::new(&self.path).arg("--query-metrics"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let first = |line: &str| {
            let end = |character: char| character.is_whitespace() || character == ',';
            let word = line.trim_start().split(end).next()?;
            let word = word.trim_matches('"');
            (is_name(word) && word.contains("__")).then(|| word.to_string())
        };
        Ok(text.lines().filter_map(first).collect())
    }

    /// That it lacks the counters nothing can be said without.
    pub fn without(&self, missing: &[&str]) -> Error {
        Error::Profiler {
            ncu: self.path.clone(),
            found: format!("that it knows none of {}", missing.join(", ")),
        }
    }

    /// What it prints of a program's kernels: the raw page in base units. Clocks are left alone, since fixed ones are
    /// not those that benchmarks run at, and caches are emptied before each replay, so that replays are alike.
    pub fn profile(&self, metrics: &[String], program: &Command) -> Result<NcuOutput> {
        for name in metrics {
            if !name.split('.').all(is_name) {
                return Err(Error::Metric {
                    name: name.clone(),
                    found: "other characters than letters, digits, _ and .".to_string(),
                });
            }
        }
        let mut command = Command::new(&self.path);
        command
            .args(["--csv", "--page", "raw", "--print-units", "base"])
            .args(["--clock-control", "none", "--cache-control", "all"])
            .args(["--kernel-name-base", "function", "--kernel-name", OURS])
            .args(["--target-processes", "all"])
            .args(["--metrics", &metrics.join(",")])
            .arg(program.get_program())
            .args(program.get_args());
        let output = started(&self.path, &mut command)?;
        Ok(NcuOutput {
            ncu: self.path.clone(),
            succeeded: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}

/// What a run of the profiler printed.
#[derive(Clone, Debug)]
pub struct NcuOutput {
    ncu: PathBuf,
    succeeded: bool,
    /// The counters, among other things.
    pub stdout: String,
    stderr: String,
}

impl NcuOutput {
    /// In a typed error, why there are no counters; none if nothing speaks against them.
    pub fn failure(&self) -> Option<Error> {
        let everything = || self.stdout.lines().chain(self.stderr.lines());
        if everything().any(|line| line.contains(NO_PERMISSION)) {
            return Some(Error::CounterPermission);
        }
        let unknown = everything().find_map(|line| line.split_once(UNKNOWN_METRIC));
        if let Some((_, rest)) = unknown {
            let name: String = rest
                .chars()
                .take_while(|&character| is_name_character(character))
                .collect();
            return Some(Error::Metric {
                name,
                found: "one that the profiler does not know on this device".to_string(),
            });
        }
        (!self.succeeded).then(|| Error::Profiler {
            ncu: self.ncu.clone(),
            found: self.complaint(),
        })
    }

    /// That there are none though nothing speaks against them.
    pub fn without_kernels(&self) -> Error {
        Error::Profiler {
            ncu: self.ncu.clone(),
            found: "no kernel of fourtap".to_string(),
        }
    }

    /// Its own words, or those of the program it ran.
    fn complaint(&self) -> String {
        let everything = self.stderr.lines().chain(self.stdout.lines());
        let complaints = everything.filter_map(|line| {
            let ours = line.strip_prefix("error: ");
            ours.or_else(|| line.strip_prefix("==ERROR== "))
        });
        let lines: Vec<&str> = complaints.take(MOST_LINES).map(str::trim).collect();
        match lines.is_empty() {
            true => "a failure without a word".to_string(),
            false => lines.join("; "),
        }
    }
}

/// Runs it to its end.
fn started(path: &Path, command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output();
    output.map_err(|source| Error::Profiler {
        ncu: path.to_path_buf(),
        found: format!("that it cannot be started: {source}"),
    })
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(is_name_character)
}

fn is_name_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}
