//! Which benchmarks there are, and which of them are done.

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
    let run = Run::so_far(arguments.json.as_deref())?;
    let here = Origin::here();
    let mut records = run.benches;
    records.retain(|record| record.origin.is_same_code(&here) && record.verification.passed);
    Ok(records)
}
