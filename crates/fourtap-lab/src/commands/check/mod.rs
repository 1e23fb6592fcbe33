//! `fourtap check`: random problems against the oracle.

mod dense;
mod msda;

use crate::exit::ExitCode;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fourtap::cpu::Simd;
use rayon::prelude::*;
use serde::Serialize;

use super::{note, print, print_json, progress};
use crate::cli::CheckArgs;
use crate::cuda::Mode;
use crate::error::{EXIT_MISMATCH, Error, Result};
use crate::record::{SCHEMA, VERSION};
use crate::target::Chosen;
use crate::workload::Operator;

/// What was found.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: u32,
    version: &'static str,
    command: &'static str,
    operator: Operator,
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
    seed: u64,
    #[serde(flatten)]
    path: Path,
    found: String,
    repeat: String,
}

/// One way through the library.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
enum Path {
    Cpu {
        simd: &'static str,
    },
    Cuda {
        device: usize,
        kernel: &'static str,
        pass: &'static str,
        /// How backward adds up.
        #[serde(skip_serializing_if = "Option::is_none")]
        mode: Option<Mode>,
        levels: &'static str,
    },
    /// Of dense attention, whose kernels cannot be named.
    Device {
        device: usize,
    },
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Cpu { simd } => f.write_str(simd),
            Path::Cuda {
                device,
                kernel,
                pass,
                mode,
                levels,
            } => {
                let mode = mode.map_or(String::new(), |mode| format!(" in {} mode", mode.name()));
                write!(
                    f,
                    "cuda:{device}, {pass}{mode}, kernel {kernel}, levels in {levels} memory"
                )
            }
            Path::Device { device } => write!(f, "cuda:{device}"),
        }
    }
}

pub fn execute(arguments: &CheckArgs) -> Result<ExitCode> {
    let seeds = seeds(arguments.seed, arguments.cases)?;
    let asked = |operator: &Operator| {
        arguments.operator.is_empty() || arguments.operator.contains(operator)
    };
    let operators: Vec<Operator> = Operator::ALL.into_iter().filter(asked).collect();
    if let (Some(_), [Operator::Dense]) = (arguments.target.kernel, &operators[..]) {
        return Err(Error::WrongOperator {
            option: "--kernel",
            expected: Operator::Msda,
            found: "dense".to_string(),
        });
    }
    let chosen = Chosen::new(&arguments.target)?;
    let mut code = ExitCode::SUCCESS;
    for operator in operators {
        let report = match (operator, &chosen) {
            (Operator::Msda, Chosen::Cpu(paths)) => msda::on_paths(seeds.clone(), paths),
            (Operator::Msda, Chosen::Cuda(cuda)) => {
                msda::on_cuda(seeds.clone(), *cuda, &arguments.target)
            }
            (Operator::Dense, Chosen::Cpu(paths)) => dense::on_paths(seeds.clone(), paths),
            (Operator::Dense, Chosen::Cuda(cuda)) => dense::on_cuda(seeds.clone(), *cuda),
        };
        say(&report, arguments.json)?;
        if !report.mismatches.is_empty() {
            code = report.exit_code();
        }
    }
    Ok(code)
}

fn say(report: &Report, json: bool) -> Result<()> {
    if json {
        return print_json(report);
    }
    print(format!(
        "{}: {}\n",
        report.operator.name(),
        report.summary()
    ))?;
    for Mismatch {
        seed,
        path,
        found,
        repeat,
    } in &report.mismatches
    {
        note(&format!(
            "mismatch: problem {seed} of {} on {path}: {found}\n  repeat with: {repeat}",
            report.operator.in_words()
        ));
    }
    Ok(())
}

/// Problems `seed` to `seed + cases` of deformable attention through each of `paths`.
pub fn check(seed: u64, cases: u64, paths: &[Simd]) -> Result<Report> {
    Ok(msda::on_paths(seeds(seed, cases)?, paths))
}

fn seeds(seed: u64, cases: u64) -> Result<Range<u64>> {
    let end = seed
        .checked_add(cases)
        .ok_or(Error::Seeds { seed, cases })?;
    Ok(seed..end)
}

/// How one path did on one problem.
struct Outcome {
    path: Path,
    /// What is wrong, if anything.
    found: Option<String>,
    repeat: String,
}

/// Holds each problem to what `outcomes` says of it.
fn each(
    operator: Operator,
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
