//! Whether results differ between two runs.

use crate::record::Run;

/// What changed from one run to another.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Benchmarks of both.
    pub rows: Vec<Row>,
    /// Names of those that only the first has.
    pub only_before: Vec<String>,
    /// Names of those that only the second has.
    pub only_after: Vec<String>,
    /// What else a reader should know.
    pub notes: Vec<String>,
    /// What two runs of the same code differ by anyway, as a share.
    pub noise: f64,
}

/// One benchmark in both runs.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What can be said.
    pub verdict: Verdict,
    /// Hot median of the first.
    pub before_ms: f64,
    /// Hot median of the second.
    pub after_ms: f64,
    /// The second over the first.
    pub ratio: f64,
    /// Lower end of its confidence interval.
    pub ratio_low: f64,
    /// Upper end.
    pub ratio_high: f64,
    /// Samples of the first.
    pub samples_before: usize,
    /// Samples of the second.
    pub samples_after: usize,
}

/// What can be said of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// None that matters.
    Same,
    /// The second run is faster.
    Faster,
    /// The second run is slower.
    Slower,
    /// The timings are too unsteady to tell.
    Unclear,
}

/// Compares benchmarks of the same name and sizes.
pub fn compare(before: &Run, after: &Run) -> Comparison {
    // Stands in for the comparison proper, which replaces this file.
    let mut comparison = Comparison {
        noise: 0.01,
        ..Comparison::default()
    };
    for first in &before.benches {
        let second = after
            .benches
            .iter()
            .find(|second| second.name() == first.name() && second.problem == first.problem);
        let Some(second) = second else {
            comparison.only_before.push(first.name());
            continue;
        };
        let (Some(old), Some(new)) = (&first.hot, &second.hot) else {
            continue;
        };
        let (low, high) = (
            new.ci_low_ms / old.ci_high_ms,
            new.ci_high_ms / old.ci_low_ms,
        );
        comparison.rows.push(Row {
            name: first.name(),
            verdict: match (low, high) {
                (low, _) if low > 1.01 => Verdict::Slower,
                (_, high) if high < 0.99 => Verdict::Faster,
                (low, high) if low > 0.97 && high < 1.03 => Verdict::Same,
                _ => Verdict::Unclear,
            },
            before_ms: old.median_ms,
            after_ms: new.median_ms,
            ratio: new.median_ms / old.median_ms,
            ratio_low: low,
            ratio_high: high,
            samples_before: old.samples_ms.len(),
            samples_after: new.samples_ms.len(),
        });
    }
    for second in &after.benches {
        if !before
            .benches
            .iter()
            .any(|first| first.name() == second.name())
        {
            comparison.only_after.push(second.name());
        }
    }
    comparison
}
