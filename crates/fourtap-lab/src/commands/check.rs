//! `fourtap check`: random problems against the oracle.

use std::process::ExitCode;
use std::time::Instant;

use fourtap::cpu::Simd;
use fourtap::verify::{self, Case};
use rayon::prelude::*;
use serde::Serialize;

use super::{note, print, print_json, progress};
use crate::cli::CheckArgs;
use crate::error::{EXIT_MISMATCH, Error, Result};
use crate::record::SCHEMA;
use crate::target;

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
    /// Vector paths each went through.
    pub paths: Vec<&'static str>,
    /// Problems times paths.
    pub checks: u64,
    /// What was wrong.
    pub mismatches: Vec<Mismatch>,
    seconds: f64,
}

/// One problem that one path got wrong.
#[derive(Debug, Serialize)]
pub struct Mismatch {
    seed: u64,
    simd: &'static str,
    found: String,
    repeat: String,
}

pub fn execute(arguments: &CheckArgs) -> Result<ExitCode> {
    let paths = target::paths(&arguments.target)?;
    let report = check(arguments.seed, arguments.cases, &paths)?;
    if arguments.json {
        print_json(&report)?;
    } else {
        print(report.summary() + "\n")?;
        for Mismatch {
            seed,
            simd,
            found,
            repeat,
        } in &report.mismatches
        {
            note(&format!(
                "mismatch: problem {seed} on {simd}: {found}\n  repeat with: {repeat}"
            ));
        }
    }
    Ok(report.exit_code())
}

/// Problems `seed` to `seed + cases` through each of `paths`.
pub fn check(seed: u64, cases: u64, paths: &[Simd]) -> Result<Report> {
    let started = Instant::now();
    let end = seed
        .checked_add(cases)
        .ok_or(Error::Seeds { seed, cases })?;
    let backends: Vec<_> = paths
        .iter()
        .map(|&simd| (simd.name(), verify::backends(simd)))
        .collect();
    let bar = progress(cases);
    let mut mismatches: Vec<Mismatch> = (seed..end)
        .into_par_iter()
        .flat_map_iter(|seed| {
            let case = Case::random(seed);
            let found: Vec<_> = backends
                .iter()
                .filter_map(|(simd, backends)| {
                    let checks = backends.iter().map(|one| verify::check(&case, one));
                    let failure = checks.filter_map(|check| check.err()).next()?;
                    let repeat = format!("fourtap check --simd {simd} --cases 1 --seed {seed}");
                    Some(Mismatch {
                        seed,
                        simd,
                        found: failure.to_string(),
                        repeat,
                    })
                })
                .collect();
            bar.inc(1);
            found
        })
        .collect();
    bar.finish_and_clear();
    mismatches.sort_by_key(|mismatch| mismatch.seed);
    Ok(Report {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        command: "check",
        seed,
        cases,
        paths: paths.iter().map(|simd| simd.name()).collect(),
        checks: cases.saturating_mul(paths.len() as u64),
        mismatches,
        seconds: started.elapsed().as_secs_f64(),
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
        if self.mismatches.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(EXIT_MISMATCH)
        }
    }
}
