//! Random problems against the oracle, whatever the operator.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rayon::prelude::*;
use serde::Serialize;

use crate::commands::progress;
use crate::cuda::Mode;
use crate::error::EXIT_MISMATCH;
use crate::exit::ExitCode;
use crate::operators::Operator;
use crate::record::{SCHEMA, VERSION};

/// What was found.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: u32,
    version: &'static str,
    command: &'static str,
    /// What was computed.
    pub operator: &'static dyn Operator,
    /// Seed of the first problem.
    pub seed: u64,
    /// Problems.
    pub cases: u64,
    /// Vector paths or kernels each went through.
    pub paths: Vec<String>,
    /// Ways all problems took together.
    pub checks: u64,
    /// What was wrong.
    pub mismatches: Vec<Mismatch>,
    seconds: f64,
}

/// One problem that one path got wrong.
#[derive(Debug, Serialize)]
pub struct Mismatch {
    /// The problem's.
    pub seed: u64,
    /// How it was computed.
    #[serde(flatten)]
    pub path: Path,
    /// What is wrong.
    pub found: String,
    /// The command that does the same again.
    pub repeat: String,
}

/// One way through the library.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub enum Path {
    /// On the processor.
    Cpu {
        /// By these instructions.
        simd: &'static str,
    },
    /// On a CUDA device.
    Cuda {
        /// Its number.
        device: usize,
        /// The kernel asked for, where kernels have names.
        #[serde(skip_serializing_if = "Option::is_none")]
        kernel: Option<&'static str>,
        /// The pass, where there are several.
        #[serde(skip_serializing_if = "Option::is_none")]
        pass: Option<&'static str>,
        /// How backward adds up.
        #[serde(skip_serializing_if = "Option::is_none")]
        mode: Option<Mode>,
        /// Whose memory holds the levels, where there are any.
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
            write!(f, " in {} mode", mode.name())?;
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

/// How one path did on one problem.
#[derive(Debug)]
pub struct Outcome {
    /// Which.
    pub path: Path,
    /// What is wrong, if anything.
    pub found: Option<String>,
    /// The command that does the same again.
    pub repeat: String,
}

/// Holds each problem to what `outcomes` says of it.
pub fn each(
    operator: &'static dyn Operator,
    seeds: Range<u64>,
    paths: Vec<String>,
    outcomes: impl Fn(u64) -> Vec<Outcome> + Sync,
) -> Report {
    let started = Instant::now();
    let cases = seeds.end - seeds.start;
    let bar = progress(cases);
    let checks = AtomicU64::new(0);
    let seed = seeds.start;
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
        if self.mismatches.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(EXIT_MISMATCH)
        }
    }
}
