//! `fourtap check`: random problems against the oracle.

use crate::exit::ExitCode;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fourtap::Backend;
use fourtap::cpu::Simd;
use fourtap::cuda::Cuda;
use fourtap::verify::{self, Case, Failure, LevelsIn};
use rayon::prelude::*;
use serde::Serialize;

use super::{note, print, print_json, progress};
use crate::cli::{CheckArgs, Direction, KernelChoice};
use crate::cuda::Mode;
use crate::error::{EXIT_MISMATCH, Error, Result};
use crate::record::{SCHEMA, VERSION};
use crate::target::Chosen;

/// What was found.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: u32,
    version: &'static str,
    command: &'static str,
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
        }
    }
}

pub fn execute(arguments: &CheckArgs) -> Result<ExitCode> {
    let (seed, cases) = (arguments.seed, arguments.cases);
    let seeds = seeds(seed, cases)?;
    let report = match Chosen::new(&arguments.target)? {
        Chosen::Cpu(paths) => check(seed, cases, &paths)?,
        Chosen::Cuda(cuda) => {
            let kernels = match arguments.target.kernel {
                Some(kernel) => vec![kernel],
                None => vec![KernelChoice::Best, KernelChoice::Channel],
            };
            let modes: &[_] = match arguments.target.deterministic {
                true => &[Mode::Deterministic],
                false => &[Mode::Fast, Mode::Deterministic],
            };
            check_on_cuda(seeds, cuda, &kernels, modes)
        }
    };
    if arguments.json {
        print_json(&report)?;
    } else {
        print(report.summary() + "\n")?;
        for Mismatch {
            seed,
            path,
            found,
            repeat,
        } in &report.mismatches
        {
            note(&format!(
                "mismatch: problem {seed} on {path}: {found}\n  repeat with: {repeat}"
            ));
        }
    }
    Ok(report.exit_code())
}

fn seeds(seed: u64, cases: u64) -> Result<Range<u64>> {
    let end = seed
        .checked_add(cases)
        .ok_or(Error::Seeds { seed, cases })?;
    Ok(seed..end)
}

/// Problems `seed` to `seed + cases` through each of `paths`.
pub fn check(seed: u64, cases: u64, paths: &[Simd]) -> Result<Report> {
    let backends: Vec<_> = paths
        .iter()
        .map(|&simd| (simd.name(), verify::backends(simd)))
        .collect();
    let names = paths.iter().map(|simd| simd.name().to_string()).collect();
    Ok(each(seeds(seed, cases)?, names, |case, seed| {
        let outcome = |(simd, backends): &(&'static str, Vec<Backend>)| {
            let mut checks = backends.iter().map(|one| verify::check(case, one));
            Outcome {
                path: Path::Cpu { simd },
                failure: checks.find_map(|check| check.err()),
                repeat: format!("fourtap check --simd {simd} --cases 1 --seed {seed}"),
            }
        };
        backends.iter().map(outcome).collect()
    }))
}

/// Both passes of these problems through each of `kernels`, backward in each of `modes`, with levels in host memory
/// and, every third, in the device's.
fn check_on_cuda(
    seeds: Range<u64>,
    cuda: Cuda,
    kernels: &[KernelChoice],
    modes: &[Mode],
) -> Report {
    let device = cuda.ordinal();
    let backward = modes.iter().map(|&mode| Some(mode));
    let passes: Vec<Option<Mode>> = [None].into_iter().chain(backward).collect();
    let names = kernels
        .iter()
        .map(|kernel| format!("cuda:{device} ({})", kernel.name()));
    each(seeds, names.collect(), |case, seed| {
        let mut tables = vec![LevelsIn::Host];
        // By the seed, so that repeating it alone takes the same way.
        if seed.is_multiple_of(3) {
            tables.push(LevelsIn::Device);
        }
        let mut outcomes = Vec::new();
        for &kernel in kernels {
            for &mode in &passes {
                for &levels in &tables {
                    outcomes.extend(on_cuda(case, seed, cuda, kernel, mode, levels));
                }
            }
        }
        outcomes
    })
}

/// Backward in this mode, or forward, which has none. Nothing if the kernel, named by hand, does not serve the problem.
fn on_cuda(
    case: &Case,
    seed: u64,
    cuda: Cuda,
    kernel: KernelChoice,
    mode: Option<Mode>,
    levels: LevelsIn,
) -> Option<Outcome> {
    let cuda = cuda.with_kernel(kernel.into());
    let checked = match mode {
        None => verify::check_forward_on_cuda(case, &cuda, levels),
        Some(mode) => verify::check_backward_on_cuda(case, &mode.on(&cuda), levels),
    };
    let failure = checked.err();
    let refused = matches!(
        failure,
        Some(Failure::Refused(fourtap::Error::Unsupported { .. }))
    );
    if refused && kernel == KernelChoice::Gather {
        return None;
    }
    let (device, kernel) = (cuda.ordinal(), kernel.name());
    let more = match mode {
        Some(Mode::Deterministic) => " --deterministic",
        _ => "",
    };
    Some(Outcome {
        path: Path::Cuda {
            device,
            kernel,
            pass: mode
                .map_or(Direction::Forward, |_| Direction::Backward)
                .name(),
            mode,
            levels: match levels {
                LevelsIn::Host => "host",
                LevelsIn::Device => "device",
            },
        },
        failure,
        repeat: format!(
            "fourtap check --device cuda:{device} --kernel {kernel}{more} --cases 1 --seed {seed}"
        ),
    })
}

/// How one path did on one problem.
struct Outcome {
    path: Path,
    failure: Option<Failure>,
    repeat: String,
}

/// Holds each problem to what `outcomes` says of it.
fn each(
    seeds: Range<u64>,
    paths: Vec<String>,
    outcomes: impl Fn(&Case, u64) -> Vec<Outcome> + Sync,
) -> Report {
    let started = Instant::now();
    let cases = seeds.end - seeds.start;
    let bar = progress(cases);
    let checks = AtomicU64::new(0);
    let seed = seeds.start;
    let mut mismatches: Vec<Mismatch> = seeds
        .into_par_iter()
        .flat_map_iter(|seed| {
            let outcomes = outcomes(&Case::random(seed), seed);
            checks.fetch_add(outcomes.len() as u64, Ordering::Relaxed);
            bar.inc(1);
            outcomes.into_iter().filter_map(move |outcome| {
                Some(Mismatch {
                    seed,
                    path: outcome.path,
                    found: outcome.failure?.to_string(),
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
