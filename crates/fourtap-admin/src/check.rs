//! Random problems against the f64 oracle, every element compared.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fourtap::Backend;
use fourtap::cpu::Simd;
use fourtap::verify::{self, Case, ExpectedProjectedResults, Failure, ProjectedCase};
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
        /// What the operator computes from, if there is a choice.
        #[serde(skip_serializing_if = "Option::is_none")]
        inputs: Option<MsdaInputs>,
    },
    /// On a CUDA device.
    Cuda {
        /// The device's number.
        device: usize,
        /// The kernel choice, if the operator has several.
        #[serde(skip_serializing_if = "Option::is_none")]
        kernel: Option<&'static str>,
        /// What the operator computes from, if there is a choice.
        #[serde(skip_serializing_if = "Option::is_none")]
        inputs: Option<MsdaInputs>,
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

/// What deformable attention computes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MsdaInputs {
    /// Sampling locations and attention weights.
    Given,
    /// Reference points, sampling offsets and attention logits.
    Projections,
}

/// What is said of the less usual inputs after a path's name.
fn in_words(inputs: Option<MsdaInputs>) -> &'static str {
    match inputs {
        Some(MsdaInputs::Projections) => ", from projections",
        Some(MsdaInputs::Given) | None => "",
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, kernel, inputs, pass, mode, levels) = match *self {
            Path::Cpu { simd, inputs } => return write!(f, "{simd}{}", in_words(inputs)),
            Path::Cuda {
                device,
                kernel,
                inputs,
                pass,
                mode,
                levels,
            } => (device, kernel, inputs, pass, mode, levels),
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
        f.write_str(in_words(inputs))?;
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

/// Checks both passes of these problems of deformable attention, one of each seed from given locations and weights and one
/// from projections, with each instruction set of `paths`.
pub fn msda_on_cpu(seeds: Range<u64>, paths: &[Simd]) -> Report {
    let backends: Vec<_> = paths
        .iter()
        .map(|&simd| (simd.name(), verify::backends(simd)))
        .collect();
    let names = paths.iter().map(|simd| simd.name().to_string()).collect();
    each("msda", seeds, names, |seed| {
        let given = Case::random(seed);
        let projected = ProjectedCase::random(seed);
        let expected = ExpectedProjectedResults::new(&projected);
        let check = |inputs, backend: &Backend| match (inputs, &expected) {
            (MsdaInputs::Given, _) => verify::check(&given, backend),
            (MsdaInputs::Projections, Ok(expected)) => expected.check(&projected, backend),
            (MsdaInputs::Projections, Err(refused)) => Err(Failure::Refused(refused.clone())),
        };
        let outcome = |simd, backends: &[Backend], inputs| Outcome {
            path: Path::Cpu {
                simd,
                inputs: Some(inputs),
            },
            found: (backends.iter())
                .find_map(|backend| Some(check(inputs, backend).err()?.to_string())),
            repeat: format!("fourtap check --operator msda --simd {simd} --cases 1 --seed {seed}"),
        };
        let both = [MsdaInputs::Given, MsdaInputs::Projections];
        let ways = backends
            .iter()
            .flat_map(|(simd, backends)| both.map(|inputs| (*simd, backends, inputs)));
        ways.map(|(simd, backends, inputs)| outcome(simd, backends, inputs))
            .collect()
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
