//! Random problems against the f64 oracle, every element compared.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fourtap::Backend;
use fourtap::cpu::Simd;
use fourtap::verify::{self, Case};
use rayon::prelude::*;
use serde::Serialize;

use crate::console::progress;
use crate::exit::ExitCode;
use crate::{SCHEMA, VERSION};

/// The result of a check.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: u32,
    version: &'static str,
    command: &'static str,
    /// The operator's name.
    operator: &'static str,
    /// Seed of the first problem.
    pub seed: u64,
    /// Number of problems.
    pub cases: u64,
    /// Instruction sets or kernels that were checked.
    pub paths: Vec<String>,
    /// Number of checks: problems times paths.
    pub checks: u64,
    /// All mismatches.
    pub mismatches: Vec<Mismatch>,
    seconds: f64,
}

/// One problem that one path got wrong.
#[derive(Debug, Serialize)]
pub struct Mismatch {
    /// The seed of the problem.
    pub seed: u64,
    /// The path.
    #[serde(flatten)]
    pub path: Path,
    /// Description of the mismatch.
    pub found: String,
    /// The command that reproduces it.
    pub repeat: String,
}

/// One code path of the library.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub enum Path {
    /// On the CPU.
    Cpu {
        /// The instruction set.
        simd: &'static str,
    },
    /// On a CUDA device.
    Cuda {
        /// The device's number.
        device: usize,
        /// The kernel choice, if the operator has several.
        #[serde(skip_serializing_if = "Option::is_none")]
        kernel: Option<&'static str>,
        /// The pass, if the operator has several.
        #[serde(skip_serializing_if = "Option::is_none")]
        pass: Option<&'static str>,
        /// Deterministic mode or not, for backward.
        #[serde(skip_serializing_if = "Option::is_none")]
        mode: Option<&'static str>,
        /// The memory that holds the levels, if the operator has levels.
        #[serde(skip_serializing_if = "Option::is_none")]
        levels: Option<&'static str>,
    },
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, kernel, pass, mode, levels) = match *self {
            Path::Cpu { simd } => return f.write_str(simd),
            Path::Cuda {
                device,
                kernel,
                pass,
                mode,
                levels,
            } => (device, kernel, pass, mode, levels),
        };
        write!(f, "cuda:{device}")?;
        if let Some(pass) = pass {
            write!(f, ", {pass}")?;
        }
        if let Some(mode) = mode {
            write!(f, " in {mode} mode")?;
        }
        if let Some(kernel) = kernel {
            write!(f, ", kernel {kernel}")?;
        }
        match levels {
            Some(levels) => write!(f, ", levels in {levels} memory"),
            None => Ok(()),
        }
    }
}

/// The result of one path on one problem.
pub struct Outcome {
    /// The path.
    pub path: Path,
    /// Description of the mismatch, if there is one.
    pub found: Option<String>,
    /// The command that reproduces it.
    pub repeat: String,
}

/// Checks the problem of each seed by `outcomes`, which returns the result of every path.
pub fn each(
    operator: &'static str,
    seeds: Range<u64>,
    paths: Vec<String>,
    outcomes: impl Fn(u64) -> Vec<Outcome> + Sync,
) -> Report {
    let started = Instant::now();
    let seed = seeds.start;
    let cases = seeds.end.saturating_sub(seed);
    let bar = progress(cases);
    let checks = AtomicU64::new(0);
    let mut mismatches: Vec<Mismatch> = seeds
        .into_par_iter()
        .flat_map_iter(|seed| {
            let outcomes = outcomes(seed);
            checks.fetch_add(outcomes.len() as u64, Ordering::Relaxed);
            bar.inc(1);
            outcomes.into_iter().filter_map(move |outcome| {
                Some(Mismatch {
                    seed,
                    path: outcome.path,
                    found: outcome.found?,
                    repeat: outcome.repeat,
                })
            })
        })
        .collect();
    bar.finish_and_clear();
    mismatches.sort_by_key(|mismatch| mismatch.seed);
    Report {
        schema: SCHEMA,
        version: VERSION,
        command: "check",
        operator,
        seed,
        cases,
        paths,
        checks: checks.into_inner(),
        mismatches,
        seconds: started.elapsed().as_secs_f64(),
    }
}

/// Checks both passes of these problems of deformable attention with each instruction set of `paths`.
pub fn msda_on_cpu(seeds: Range<u64>, paths: &[Simd]) -> Report {
    let backends: Vec<_> = paths
        .iter()
        .map(|&simd| (simd.name(), verify::backends(simd)))
        .collect();
    let names = paths.iter().map(|simd| simd.name().to_string()).collect();
    each("msda", seeds, names, |seed| {
        let case = &Case::random(seed);
        let outcome = |(simd, backends): &(&'static str, Vec<Backend>)| {
            let mut checks = backends.iter().map(|one| verify::check(case, one));
            Outcome {
                path: Path::Cpu { simd },
                found: checks.find_map(|check| Some(check.err()?.to_string())),
                repeat: format!(
                    "fourtap check --operator msda --simd {simd} --cases 1 --seed {seed}"
                ),
            }
        };
        backends.iter().map(outcome).collect()
    })
}

impl Report {
    /// In one line.
    pub fn summary(&self) -> String {
        let many = |count: usize, what: &str, ending: &str| {
            format!("{count} {what}{}", if count == 1 { "" } else { ending })
        };
        format!(
            "{}: {} on {}; {}",
            many(self.checks as usize, "check", "s"),
            many(self.cases as usize, "problem", "s"),
            self.paths.join(", "),
            many(self.mismatches.len(), "mismatch", "es"),
        )
    }

    /// 0, or that of a failed verification.
    pub fn exit_code(&self) -> ExitCode {
        match self.mismatches.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::MISMATCH,
        }
    }
}
