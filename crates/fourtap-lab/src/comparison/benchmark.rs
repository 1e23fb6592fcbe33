//! Which records are of the same benchmark.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{BenchRecord, ProblemRecord, Run};
use crate::target::Device;

/// All there is about one benchmark.
#[derive(Debug)]
pub struct Benchmark<'a> {
    /// What to call it: two of one comparison never share a name.
    pub name: String,
    /// Its records in A.
    pub before: Vec<&'a BenchRecord>,
    /// Its records in B.
    pub after: Vec<&'a BenchRecord>,
}

impl Benchmark<'_> {
    /// Whether there are times to compare.
    pub fn is_timed(&self) -> bool {
        let timed = |records: &[&BenchRecord]| records.iter().any(|record| record.hot.is_some());
        timed(&self.before) && timed(&self.after)
    }
}

/// The benchmarks of both runs, in the order of A and then of B. They are matched by name and sizes; by device too if a
/// run is of several, since then the same name stands for different things.
pub fn matched<'a>(before: &'a Run, after: &'a Run) -> Vec<Benchmark<'a>> {
    let by_device = [before, after].iter().any(|run| devices(run).len() > 1);
    let mut sizes: BTreeMap<String, Vec<&ProblemRecord>> = BTreeMap::new();
    for record in before.benches.iter().chain(&after.benches) {
        let known = sizes.entry(record.name()).or_default();
        if !known.contains(&&record.problem) {
            known.push(&record.problem);
        }
    }
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut benchmarks: Vec<Benchmark<'a>> = Vec::new();
    for (records, is_before) in [(&before.benches, true), (&after.benches, false)] {
        for record in records {
            let mut name = record.name();
            let others = sizes.get(&name).map_or(&[][..], Vec::as_slice);
            if others.len() > 1 {
                name += &format!(" ({})", what_differs(&record.problem, others));
            }
            if by_device {
                name += &format!(" on {}", device_name(&record.device));
            }
            let place = *places.entry(name.clone()).or_insert(benchmarks.len());
            if place == benchmarks.len() {
                benchmarks.push(Benchmark {
                    name,
                    before: Vec::new(),
                    after: Vec::new(),
                });
            }
            match is_before {
                true => benchmarks[place].before.push(record),
                false => benchmarks[place].after.push(record),
            }
        }
    }
    benchmarks
}

/// Benchmarks of a run whose result failed its verification, each with what is wrong.
pub fn wrong(run: &Run) -> Vec<(String, String)> {
    let wrong = run.benches.iter().filter(|one| !one.verification.passed);
    wrong
        .map(|record| {
            let found = record.verification.found.as_deref();
            (record.name(), found.unwrap_or("wrong").to_string())
        })
        .collect()
}

/// The devices of a run, by name.
pub fn devices(run: &Run) -> BTreeSet<String> {
    let devices = run.benches.iter().map(|record| &record.device);
    devices.map(device_name).collect()
}

/// What tells devices apart, without the versions of their drivers.
fn device_name(device: &Device) -> String {
    let model = device.model.as_deref().unwrap_or("an unknown processor");
    let threads = device.threads.map(crate::table::threads);
    let words = [Some(model.to_string()), device.simd.clone(), threads];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The sizes of a problem in which it is not like all `others` of its name.
fn what_differs(problem: &ProblemRecord, others: &[&ProblemRecord]) -> String {
    let sizes = problem.in_words();
    let others: Vec<_> = others.iter().map(|other| other.in_words()).collect();
    let differing = sizes.iter().enumerate().filter(|(index, size)| {
        let same = |other: &Vec<String>| other.get(*index) == Some(*size);
        !others.iter().all(same)
    });
    let differing: Vec<&str> = differing.map(|(_, size)| size.as_str()).collect();
    differing.join(", ")
}
