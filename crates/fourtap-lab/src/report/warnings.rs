//! What a reader must know before believing a run.

use std::collections::BTreeSet;

use super::number::{self, counted};
use super::overview::{is_broken, origins};
use super::probes::outcome;
use crate::record::{BenchRecord, Conditions, Outcome, Run, RungRecord, Timing};

/// A median less certain than this is worth a warning; half its confidence interval, as a share.
const UNCERTAIN: f64 = 0.02;

/// Names in a warning before the rest is counted.
const MOST_NAMES: usize = 3;

/// What is doubtful in a run, in sentences.
pub fn warnings(run: &Run) -> Vec<String> {
    let mut warnings = vec![];
    let named = |test: &dyn Fn(&BenchRecord) -> bool| -> Vec<String> {
        let found = run.benches.iter().filter(|record| test(record));
        found.map(BenchRecord::name).collect()
    };
    for record in &run.benches {
        let found = record.verification.found.as_deref();
        if !record.verification.passed {
            warnings.push(format!(
                "{} failed its verification, so it has no time: {}.",
                record.name(),
                found.unwrap_or("no reason was recorded")
            ));
        }
        for beside in record.beside.iter().filter(|it| !it.verification.passed) {
            warnings.push(format!(
                "{}: the variant {} failed its verification, so it has no time: {}.",
                record.name(),
                beside.role,
                beside
                    .verification
                    .found
                    .as_deref()
                    .unwrap_or("no reason was recorded")
            ));
        }
    }
    warnings.extend(broken(run));
    let timed = timed(run);
    let uncertainty = |it: &TimedResult<'_>| it.hot.map(Timing::uncertainty);
    let is_uncertain =
        |it: &&TimedResult<'_>| uncertainty(it).is_some_and(|share| share > UNCERTAIN);
    let uncertain = timed.iter().filter(is_uncertain);
    let uncertain: Vec<String> = uncertain.map(|it| it.name.clone()).collect();
    let widest = timed.iter().filter_map(uncertainty).fold(0.0, f64::max);
    if !uncertain.is_empty() {
        warnings.push(format!(
            "{} uncertain by more than {}, the worst by {}: {}.",
            is_or_are(uncertain.len(), "median"),
            number::percent(UNCERTAIN),
            number::percent(widest),
            listed(&uncertain)
        ));
    }
    let slowed = timed.iter().filter(|it| !it.throttled_by.is_empty());
    let slowed: Vec<String> = slowed.map(|it| it.name.clone()).collect();
    if !slowed.is_empty() {
        let reasons: BTreeSet<_> = timed
            .iter()
            .flat_map(|it| &it.throttled_by)
            .copied()
            .collect();
        let reasons: Vec<_> = reasons.into_iter().collect();
        let noun = match run.rungs.is_empty() {
            true => "benchmark",
            false => "result",
        };
        warnings.push(format!(
            "Clocks were throttled ({}) around {}: {}.",
            reasons.join(", "),
            counted(slowed.len(), noun),
            listed(&slowed)
        ));
    }
    let suspicious = named(&|record| record.roof.as_ref().is_some_and(|roof| roof.suspicious));
    if !suspicious.is_empty() {
        warnings.push(format!(
            "{} suspicious: faster than the measured ceilings allow, so a ceiling, the count of bytes or the result \
             is wrong: {}.",
            is_or_are(suspicious.len(), "result"),
            listed(&suspicious)
        ));
    }
    if let Some(interrupted) = &run.interrupted {
        warnings.push(format!("The run was {}.", interrupted.in_words()));
    }
    if run.cut_short {
        warnings
            .push("The file ends in the middle of a line: the run was interrupted.".to_string());
    }
    let dirty = origins(run).filter_map(|origin| origin.commit.as_ref());
    let dirty: BTreeSet<_> = dirty.filter(|commit| commit.ends_with('+')).collect();
    for commit in dirty {
        warnings.push(format!(
            "The code was built from {} with changes that are not committed.",
            commit.trim_end_matches('+')
        ));
    }
    let hashes: BTreeSet<_> = origins(run)
        .filter_map(|it| it.source_hash.as_ref())
        .collect();
    if hashes.len() > 1 {
        warnings.push(format!(
            "The results come from {} versions of the code.",
            hashes.len()
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
    let benches = run.benches.iter().map(|record| TimedResult {
        name: record.name(),
        hot: record.hot.as_ref(),
        throttled_by: throttled_by(record.conditions.as_ref()),
    });
    let rungs = run.rungs.iter().map(|record| TimedResult {
        name: rung_name(record),
        hot: record.hot.as_ref(),
        throttled_by: throttled_by(record.conditions.as_ref()),
    });
    benches.chain(rungs).collect()
}

fn throttled_by(conditions: Option<&Conditions>) -> Vec<&str> {
    conditions.map_or(vec![], Conditions::throttled_by)
}

fn rung_name(record: &RungRecord) -> String {
    format!(
        "{}/{}/{}",
        record.workload, record.distribution, record.rung
    )
}

/// Rungs that are broken, in a sentence each: mostly the reason is the same on every problem.
fn broken(run: &Run) -> Vec<String> {
    let mut found: Vec<(&RungRecord, Vec<String>)> = vec![];
    for record in run.rungs.iter().filter(|it| is_broken(it)) {
        let same = |known: &RungRecord| {
            known.rung == record.rung
                && known.outcome == record.outcome
                && known.words == record.words
        };
        let problem = format!("{}/{}", record.workload, record.distribution);
        match found.iter_mut().find(|(known, _)| same(known)) {
            Some((_, problems)) => problems.push(problem),
            None => found.push((record, vec![problem])),
        }
    }
    let sentence = |(record, problems): (&RungRecord, Vec<String>)| {
        let ended = match record.outcome {
            Outcome::Wrong => "was wrong",
            other => outcome(other),
        };
        format!(
            "Rung {} {ended} on {}, so it has no time there: {}.",
            record.rung,
            listed(&problems),
            match record.words.trim_end_matches('.') {
                "" => "no reason was recorded",
                words => words,
            }
        )
    };
    found.into_iter().map(sentence).collect()
}

fn is_or_are(count: usize, noun: &str) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    format!("{} {verb}", counted(count, noun))
}

fn listed(names: &[String]) -> String {
    let shown = names[..names.len().min(MOST_NAMES)].join(", ");
    match names.len() - names.len().min(MOST_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
