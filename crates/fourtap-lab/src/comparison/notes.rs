//! What to know before believing a comparison.

use std::collections::BTreeSet;

use super::benchmark::{Benchmark, devices, wrong};
use super::noise::Noise;
use super::{LEAST_NOISE, Row, Verdict};
use crate::record::Run;
use crate::statistics::FEWEST_SAMPLES;

/// Clocks that differ by more than this explain differences of times.
const CLOCKS_WITHIN: f64 = 0.02;

/// In sentences, the most important first.
pub fn notes(
    before: &Run,
    after: &Run,
    benchmarks: &[Benchmark<'_>],
    rows: &[Row],
    noise: &Noise,
) -> Vec<String> {
    let mut notes = Vec::new();
    for (side, run) in [("B", after), ("A", before)] {
        for (name, found) in wrong(run) {
            notes.push(format!(
                "{name}: the result in {side} is wrong, so it has no time: {found}"
            ));
        }
    }
    let [on_before, on_after] = [before, after].map(devices);
    if on_before != on_after {
        let listed = |devices: &BTreeSet<String>| {
            let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
            devices.join("; ")
        };
        let (on_before, on_after) = (listed(&on_before), listed(&on_after));
        notes.push(format!(
            "the devices differ: A ran on {on_before}, B on {on_after}"
        ));
    }
    for (side, run) in [("A", before), ("B", after)] {
        notes.extend(throttled(side, run));
        if run.cut_short {
            notes.push(format!(
                "the last record of {side} is cut short and was left out"
            ));
        }
    }
    if let (Some(in_before), Some(in_after)) = (clock(before), clock(after))
        && (in_after / in_before - 1.0).abs() > CLOCKS_WITHIN
    {
        notes.push(format!(
            "the clocks differ: {in_before:.0} MHz in A, {in_after:.0} MHz in B"
        ));
    }
    let mut pairs = benchmarks.iter().flat_map(|benchmark| {
        let pair = |before| benchmark.after.iter().map(move |after| (before, after));
        benchmark.before.iter().flat_map(pair)
    });
    let is_same_code = pairs.all(|(before, after)| before.origin.is_same_code(&after.origin));
    if is_same_code && !rows.is_empty() {
        notes.push("A and B are of the same code".to_string());
    }
    let few = rows.iter().filter(|row| row.has_few_samples()).count();
    if few > 0 {
        notes.push(format!(
            "{few} of {} benchmarks have fewer than {FEWEST_SAMPLES} samples, which can show large differences only",
            rows.len()
        ));
    }
    if noise.is_measured() {
        notes.push(format!(
            "repeated runs are pooled, and the noise is what they differ by, at least {:.0} %",
            100.0 * LEAST_NOISE
        ));
    }
    if !noise.is_measured() && rows.iter().any(|row| row.verdict == Verdict::Unclear) {
        notes.push(
            "single runs cannot tell slower code from a slower machine, so what they may differ by anyway is UNCLEAR; \
             `fourtap bench --against OTHER` times two builds in turns and tells, as do repeated runs, three a side or \
             more, taken alternately"
                .to_string(),
        );
    }
    notes
}

fn throttled(side: &str, run: &Run) -> Option<String> {
    let mut reasons = BTreeSet::new();
    let mut count = 0;
    for conditions in run.benches.iter().filter_map(|one| one.conditions.as_ref()) {
        let found = conditions.throttled_by();
        count += usize::from(!found.is_empty());
        reasons.extend(found);
    }
    let reasons: Vec<&str> = reasons.into_iter().collect();
    let (all, reasons) = (run.benches.len(), reasons.join(", "));
    (count > 0).then(|| {
        format!("clocks were throttled in {count} of {all} benchmarks of {side}: {reasons}")
    })
}

/// The mean of what the clocks read before and after each benchmark, in MHz.
fn clock(run: &Run) -> Option<f64> {
    let conditions = run.benches.iter().filter_map(|one| one.conditions.as_ref());
    let readings = conditions.flat_map(|both| [&both.before, &both.after]);
    let clocks: Vec<f64> = readings
        .filter_map(|reading| reading.clock_mhz.map(f64::from))
        .collect();
    (!clocks.is_empty()).then(|| clocks.iter().sum::<f64>() / clocks.len() as f64)
}
