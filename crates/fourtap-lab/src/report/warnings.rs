//! What a reader must know before believing a run.

use std::collections::BTreeSet;

use super::implementations::grouped;
use super::number::{counted, counted_as, listed, percent};
use super::overview::is_broken;
use super::part::measured;
use super::probes::outcome;
use crate::record::{BenchRecord, Conditions, Outcome, Run, RungRecord, Timing};
use crate::verification::Verification;

/// A median less certain than this is worth a warning; half its confidence interval, as a share.
const UNCERTAIN: f64 = 0.02;

/// Names in a warning before the rest is counted.
const MOST_NAMES: usize = 3;

/// What is doubtful in a run, in sentences.
pub fn warnings(run: &Run) -> Vec<String> {
    let mut warnings: Vec<String> = run.benches.iter().flat_map(unverified).collect();
    warnings.extend(broken(run));
    warnings.extend(of_timings(run));
    let suspicious = run.benches.iter();
    let suspicious = suspicious.filter(|it| it.roof.as_ref().is_some_and(|roof| roof.suspicious));
    let suspicious: Vec<String> = suspicious.map(BenchRecord::name).collect();
    if !suspicious.is_empty() {
        warnings.push(format!(
            "{} suspicious: faster than the measured ceilings allow, so a ceiling, the count of bytes or the result \
             is wrong: {}.",
            counted_as(suspicious.len(), "result is", "results are"),
            listed(&suspicious, MOST_NAMES)
        ));
    }
    if let Some(interrupted) = &run.interrupted {
        warnings.push(format!("The run was {}.", interrupted.in_words()));
    }
    if run.cut_short {
        let words = "The file ends in the middle of a line: the run was interrupted.";
        warnings.push(words.to_string());
    }
    let measured = measured(run);
    let origins = || measured.iter().map(|it| it.origin);
    let commits: BTreeSet<&str> = origins().filter_map(|it| it.commit.as_deref()).collect();
    for commit in commits.iter().filter_map(|commit| commit.strip_suffix('+')) {
        warnings.push(format!(
            "The code was built from {commit} with changes that are not committed."
        ));
    }
    let hashes: BTreeSet<&String> = origins().filter_map(|it| it.source_hash.as_ref()).collect();
    if hashes.len() > 1 {
        let versions = hashes.len();
        warnings.push(format!(
            "The results come from {versions} versions of the code."
        ));
    }
    warnings
}

/// That a benchmark, or a variant timed beside it, has no time because it was wrong.
fn unverified(record: &BenchRecord) -> Vec<String> {
    let name = record.name();
    let own = (name.clone(), &record.verification);
    let beside = record.beside.iter();
    let beside = beside.map(|it| (format!("{name}: the variant {}", it.role), &it.verification));
    let failed = [own].into_iter().chain(beside).filter(|(_, it)| !it.passed);
    let sentence = |(name, verification): (String, &Verification)| {
        let found = verification.found.as_deref();
        let found = found.unwrap_or("no reason was recorded");
        format!("{name} failed its verification, so it has no time: {found}.")
    };
    failed.map(sentence).collect()
}

/// Rungs that are broken, in a sentence each: mostly the reason is the same on every problem.
fn broken(run: &Run) -> Vec<String> {
    let broken = run.rungs.iter().filter(|it| is_broken(it));
    let reasons = grouped(broken, |it| (it.rung.clone(), it.outcome, it.words.clone()));
    let sentence = |records: Vec<&RungRecord>| {
        let problems = records.iter();
        let problems = problems.map(|it| format!("{}/{}", it.workload, it.distribution));
        let problems: Vec<String> = problems.collect();
        let ended = match records[0].outcome {
            Outcome::Wrong => "was wrong",
            other => outcome(other),
        };
        let reason = match records[0].words.trim_end_matches('.') {
            "" => "no reason was recorded",
            words => words,
        };
        let (rung, problems) = (&records[0].rung, listed(&problems, MOST_NAMES));
        format!("Rung {rung} {ended} on {problems}, so it has no time there: {reason}.")
    };
    reasons.into_iter().map(sentence).collect()
}

/// Medians that are uncertain, and clocks that were throttled.
fn of_timings(run: &Run) -> Vec<String> {
    let mut warnings = vec![];
    let timed = timed(run);
    let uncertainty = |it: &TimedResult<'_>| it.hot.map_or(0.0, Timing::uncertainty);
    let uncertain = timed.iter().filter(|it| uncertainty(it) > UNCERTAIN);
    let uncertain: Vec<_> = uncertain.map(|it| &it.name).collect();
    if !uncertain.is_empty() {
        warnings.push(format!(
            "{} uncertain by more than {}, the worst by {}: {}.",
            counted_as(uncertain.len(), "median is", "medians are"),
            percent(UNCERTAIN),
            percent(timed.iter().map(uncertainty).fold(0.0, f64::max)),
            listed(&uncertain, MOST_NAMES)
        ));
    }
    let slowed = timed.iter().filter(|it| !it.throttled_by.is_empty());
    let slowed: Vec<_> = slowed.map(|it| &it.name).collect();
    if !slowed.is_empty() {
        let reasons: BTreeSet<&str> = timed
            .iter()
            .flat_map(|it| it.throttled_by.clone())
            .collect();
        warnings.push(format!(
            "Clocks were throttled ({}) around {}: {}.",
            reasons.into_iter().collect::<Vec<_>>().join(", "),
            counted(slowed.len(), "result"),
            listed(&slowed, MOST_NAMES)
        ));
    }
    warnings
}

/// A result that may have a time, whatever kind of record it is.
struct TimedResult<'a> {
    name: String,
    hot: Option<&'a Timing>,
    throttled_by: Vec<&'a str>,
}

fn timed(run: &Run) -> Vec<TimedResult<'_>> {
    let benches = run.benches.iter().map(|it| TimedResult {
        name: it.name(),
        hot: it.hot.as_ref(),
        throttled_by: throttled_by(&it.conditions),
    });
    let rungs = run.rungs.iter().map(|it| TimedResult {
        name: format!("{}/{}/{}", it.workload, it.distribution, it.rung),
        hot: it.hot.as_ref(),
        throttled_by: throttled_by(&it.conditions),
    });
    benches.chain(rungs).collect()
}

fn throttled_by(conditions: &Option<Conditions>) -> Vec<&str> {
    conditions.as_ref().map_or(vec![], Conditions::throttled_by)
}
