//! `fourtap compare`: what changed from one set of results to another.

use serde::Serialize;

use super::{json_line, note, print};
use crate::cli::{CompareArgs, FailOn};
use crate::comparison::{Comparison, Row, Verdict, compare, wrong};
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::record::Run;
use crate::table;
use std::path::Path;

pub fn execute(arguments: &CompareArgs) -> Result<ExitCode> {
    let mut before = Run::read(&arguments.before)?;
    let mut after = Run::read(&arguments.after)?;
    if let Some(filter) = &arguments.filter {
        let count = before.benches.len() + after.benches.len();
        for run in [&mut before, &mut after] {
            run.benches.retain(|record| record.name().contains(filter));
        }
        if before.benches.is_empty() && after.benches.is_empty() {
            return Err(Error::NothingSelected {
                filter: filter.clone(),
                count,
            });
        }
    }
    let comparison = compare(&before, &after);
    let wrong = wrong(&after);
    if comparison.rows.is_empty() && wrong.is_empty() {
        return Err(Error::NothingInCommon {
            before: arguments.before.clone(),
            after: arguments.after.clone(),
        });
    }
    let shown = match arguments.json {
        true => Shown::Json,
        false => Shown::Table { all: arguments.all },
    };
    conclude(
        [&arguments.before, &arguments.after],
        &comparison,
        &wrong,
        shown,
        &arguments.fail_on,
    )
}

/// What standard output gets of a comparison.
#[derive(Clone, Copy, Debug)]
pub enum Shown {
    /// A record a benchmark.
    Json,
    /// What changed, or with `all` everything.
    Table { all: bool },
    /// Nothing: it has got records already.
    Nothing,
}

/// Shows a comparison of A and B, and says whether it met a condition to fail on.
pub fn conclude(
    sides: [&Path; 2],
    comparison: &Comparison,
    wrong: &[(String, String)],
    shown: Shown,
    conditions: &[FailOn],
) -> Result<ExitCode> {
    for text in &comparison.notes {
        note(&format!("note: {text}"));
    }
    match shown {
        Shown::Json => print(json(comparison, wrong)?)?,
        Shown::Table { all } => {
            let [a, b] = sides.map(Path::display);
            let table = table::comparison(comparison, all);
            let summary = summary(comparison, wrong.len());
            print(format!("A: {a}\nB: {b}\n{table}{summary}\n"))?;
        }
        Shown::Nothing => {}
    }
    let failed = failures(conditions, comparison, wrong.len());
    for failure in &failed {
        note(&format!("failed: {failure}"));
    }
    Ok(match failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::MISMATCH,
    })
}

/// A benchmark without a verdict: "MISSING" from B, "ADDED" by B, or "WRONG" in B.
#[derive(Serialize)]
struct NoVerdict<'a> {
    name: &'a str,
    verdict: &'static str,
}

fn json(comparison: &Comparison, wrong: &[(String, String)]) -> Result<String> {
    let mut lines = String::new();
    for row in &comparison.rows {
        lines += &json_line(row)?;
    }
    let missing = comparison.only_before.iter().map(|name| (name, "MISSING"));
    let added = comparison.only_after.iter().map(|name| (name, "ADDED"));
    let wrong = wrong.iter().map(|(name, _)| (name, "WRONG"));
    for (name, verdict) in missing.chain(added).chain(wrong) {
        lines += &json_line(&NoVerdict { name, verdict })?;
    }
    Ok(lines)
}

fn with_verdict(comparison: &Comparison, verdict: Verdict) -> impl Iterator<Item = &Row> {
    let rows = comparison.rows.iter();
    rows.filter(move |row| row.verdict == verdict)
}

/// As in "3 slower, 1 faster, 54 the same, 2 unclear".
fn summary(comparison: &Comparison, wrong: usize) -> String {
    let of = |verdict| with_verdict(comparison, verdict).count();
    let mut words = vec![
        format!("{} slower", of(Verdict::Slower)),
        format!("{} faster", of(Verdict::Faster)),
        format!("{} the same", of(Verdict::Same)),
        format!("{} unclear", of(Verdict::Unclear)),
    ];
    let others = [
        (comparison.only_before.len(), "only in A"),
        (comparison.only_after.len(), "only in B"),
        (wrong, "wrong in B"),
    ];
    let others = others.into_iter().filter(|(count, _)| *count > 0);
    words.extend(others.map(|(count, what)| format!("{count} {what}")));
    words.join(", ")
}

/// In words, each condition that is met.
fn failures(conditions: &[FailOn], comparison: &Comparison, wrong: usize) -> Vec<String> {
    let mut failures = Vec::new();
    if !conditions.is_empty() && wrong > 0 {
        failures.push(format!(
            "expected correct results in B, found {wrong} wrong"
        ));
    }
    for condition in conditions {
        let (count, what) = match condition {
            FailOn::Slower(share) => {
                let slower = with_verdict(comparison, Verdict::Slower);
                let count = slower.filter(|row| row.ratio >= 1.0 + share).count();
                let by = match *share {
                    0.0 => String::new(),
                    share => format!(" by {}% or more", 100.0 * share),
                };
                (count, format!("slower{by}"))
            }
            FailOn::Unclear => {
                let count = with_verdict(comparison, Verdict::Unclear).count();
                (count, "unclear".to_string())
            }
            FailOn::Missing => (comparison.only_before.len(), "missing".to_string()),
        };
        if count > 0 {
            failures.push(format!("expected no benchmark {what}, found {count}"));
        }
    }
    failures
}
