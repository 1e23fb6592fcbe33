//! Which benchmarks there are, and which of them are done.

use std::fs;
use std::io;

use crate::cli::BenchArgs;
use crate::error::{Error, Result};
use crate::record::{BenchRecord, Origin, Run};
use crate::selection::{Benchmark, Subject};

/// The benchmarks of each subject that `--filter` leaves.
pub fn planned(
    arguments: &BenchArgs,
    subjects: &[Subject],
    on_cuda: bool,
) -> Result<Vec<Vec<Benchmark>>> {
    let filter = arguments.filter.as_deref().unwrap_or_default();
    let all = subjects
        .iter()
        .map(|subject| subject.benchmarks(arguments, on_cuda));
    let all = all.collect::<Result<Vec<Vec<Benchmark>>>>()?;
    let count = all.iter().map(Vec::len).sum();
    let kept = |benchmarks: Vec<Benchmark>| -> Vec<Benchmark> {
        let named = |benchmark: &Benchmark| benchmark.name().contains(filter);
        benchmarks.into_iter().filter(named).collect()
    };
    let plan: Vec<Vec<Benchmark>> = all.into_iter().map(kept).collect();
    match plan.iter().all(Vec::is_empty) {
        false => Ok(plan),
        true => Err(Error::NothingSelected {
            filter: filter.to_string(),
            count,
        }),
    }
}

/// What this very code has measured and written before.
pub fn already_done(arguments: &BenchArgs) -> Result<Vec<BenchRecord>> {
    let file = match arguments.json.as_deref() {
        Some(file) if file.as_os_str() != "-" => file,
        _ => {
            return Err(Error::Incomplete {
                option: "--resume",
                expected: "--json FILE to go on with",
            });
        }
    };
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(Error::Read {
                file: file.to_path_buf(),
                source,
            });
        }
    };
    let here = Origin::here();
    // Interrupted before the first was whole, it holds none: no mistake here.
    let mut records = Run::parse(file, &text)?.benches;
    records.retain(|record| record.origin.is_same_code(&here) && record.verification.passed);
    Ok(records)
}
