//! Two sets of results, benchmark by benchmark: what changed, as far as the samples show.
//!
//! **Ratio.** Median of the hot samples of B over that of A. Its interval is made of the intervals of both medians
//! ([`statistics::median_interval`]), their distances to the medians added as squares on the scale of logarithms. It
//! is so wide that among all benchmarks compared not one misses its true ratio, 99 times in 100.
//!
//! **Noise.** Two runs of the same code differ by more than their samples tell: by where memory came to lie, by clocks
//! and by neighbours. No difference within the noise is called one. It is measured where
//! benchmarks were run several times, at least [`LEAST_NOISE`], and a documented bound where not ([`Noise`]).
//!
//! What no statistic of two runs can tell: whether a state that lasts longer than a run, such as a lower clock, belongs
//! to the code. So single runs are held against what single runs of one build were seen to differ by. Repeated runs
//! tell more, and programs timed in turns tell for sure ([`turns`]).

mod benchmark;
mod noise;
mod notes;
#[cfg(test)]
mod simulation;
pub mod turns;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use self::benchmark::{Benchmark, matched};
use self::noise::Noise;
use crate::record::{BenchRecord, Run};
use crate::statistics::{self, FEWEST_SAMPLES};

pub use self::benchmark::wrong;

/// How often all intervals together hold the true ratios.
const CONFIDENCE: f64 = 0.99;

/// What two runs of the same code on the same machine differ by, unless it was measured to be more.
pub const LEAST_NOISE: f64 = 0.01;

/// Results are the same if no difference larger than this is likely.
pub const SAME_WITHIN: f64 = 0.03;

/// What became of the benchmarks of one run in another.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Benchmarks of both, those that changed first.
    pub rows: Vec<Row>,
    /// Benchmarks of A that B does not have.
    pub only_before: Vec<String>,
    /// Benchmarks of B that A does not have.
    pub only_after: Vec<String>,
    /// What to know before believing it, in sentences.
    pub notes: Vec<String>,
    /// What two runs of the same code differ by anyway, as a share; the largest that was used.
    pub noise: f64,
}

/// One benchmark in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// As in "detr-encoder/local/f16/forward".
    pub name: String,
    /// What became of it.
    pub verdict: Verdict,
    /// Hot median of A.
    pub before_ms: f64,
    /// Hot median of B.
    pub after_ms: f64,
    /// The second over the first: more than 1 is slower.
    pub ratio: f64,
    /// Lower end of its confidence interval.
    pub ratio_low: f64,
    /// Upper end.
    pub ratio_high: f64,
    /// Samples in A, of all its records.
    pub samples_before: usize,
    /// Samples in B.
    pub samples_after: usize,
}

/// What became of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// It takes longer, and by more than noise.
    Slower,
    /// It takes less time, and by more than noise.
    Faster,
    /// The samples leave it open.
    Unclear,
    /// Any difference is smaller than [`SAME_WITHIN`].
    Same,
}

impl Verdict {
    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Slower => "SLOWER",
            Verdict::Faster => "FASTER",
            Verdict::Unclear => "UNCLEAR",
            Verdict::Same => "SAME",
        }
    }

    /// Of a ratio between these ends. What is certain to differ is not called the same, however small the difference.
    fn of(low: f64, high: f64, noise: f64) -> Self {
        if low > 1.0 + noise {
            Verdict::Slower
        } else if high < 1.0 / (1.0 + noise) {
            Verdict::Faster
        } else if low >= 1.0 - SAME_WITHIN && high <= 1.0 + SAME_WITHIN {
            Verdict::Same
        } else {
            Verdict::Unclear
        }
    }
}

/// Compares the results of `after`, called B, with those of `before`, called A.
pub fn compare(before: &Run, after: &Run) -> Comparison {
    let benchmarks = matched(before, after);
    let timed: Vec<&Benchmark<'_>> = benchmarks.iter().filter(|one| one.is_timed()).collect();
    let noise = Noise::of(&timed);
    let confidence = 1.0 - (1.0 - CONFIDENCE) / timed.len().max(1) as f64;
    let mut rows: Vec<Row> = timed
        .iter()
        .map(|benchmark| row(benchmark, confidence, &noise))
        .collect();
    sort(&mut rows);
    let names = |wanted: fn(&Benchmark<'_>) -> bool| {
        let wanted = benchmarks.iter().filter(|one| wanted(one));
        wanted.map(|one| one.name.clone()).collect()
    };
    Comparison {
        only_before: names(|one| one.after.is_empty()),
        only_after: names(|one| one.before.is_empty()),
        notes: notes::notes(before, after, &benchmarks, &rows, &noise),
        noise: timed
            .iter()
            .map(|benchmark| noise.of_benchmark(benchmark))
            .fold(LEAST_NOISE, f64::max),
        rows,
    }
}

impl Comparison {
    /// Of benchmarks that both programs were timed with in turns.
    pub fn in_turns(mut rows: Vec<Row>, notes: Vec<String>, noise: f64) -> Self {
        sort(&mut rows);
        Comparison {
            rows,
            only_before: Vec::new(),
            only_after: Vec::new(),
            notes,
            noise,
        }
    }
}

/// What changed first, and of that what changed most.
fn sort(rows: &mut [Row]) {
    rows.sort_by(|a, b| {
        let by_size = || size(b).partial_cmp(&size(a)).unwrap_or(Ordering::Equal);
        a.verdict.cmp(&b.verdict).then_with(by_size)
    });
}

/// How much changed, in whichever direction.
fn size(row: &Row) -> f64 {
    row.ratio.ln().abs()
}

fn row(benchmark: &Benchmark<'_>, confidence: f64, noise: &Noise) -> Row {
    let [before, after] =
        [&benchmark.before, &benchmark.after].map(|records| Side::of(records, confidence));
    let ratio = after.median / before.median;
    let ratio_low = ratio * (-after.down.hypot(before.up)).exp();
    let ratio_high = ratio * after.up.hypot(before.down).exp();
    Row {
        name: benchmark.name.clone(),
        verdict: Verdict::of(ratio_low, ratio_high, noise.of_benchmark(benchmark)),
        before_ms: before.median,
        after_ms: after.median,
        ratio,
        ratio_low,
        ratio_high,
        samples_before: before.samples,
        samples_after: after.samples,
    }
}

/// The median of all samples of a benchmark in A or in B.
struct Side {
    samples: usize,
    median: f64,
    /// Logarithm of the median over the lower end of its interval.
    down: f64,
    /// Logarithm of the upper end over the median.
    up: f64,
}

impl Side {
    /// Of records with times. What repeated runs differ by is for [`Noise`] to say, so for the interval each is brought
    /// to the common median; else it would count twice.
    fn of(records: &[&BenchRecord], confidence: f64) -> Self {
        let timings: Vec<_> = records.iter().filter_map(|one| one.hot.as_ref()).collect();
        let samples = timings
            .iter()
            .flat_map(|hot| hot.samples_ms.iter().copied());
        let samples: Vec<f64> = samples.collect();
        let median = statistics::median(&samples);
        let brought = timings.iter().flat_map(|hot| {
            let by = median / statistics::median(&hot.samples_ms);
            hot.samples_ms.iter().map(move |sample| by * sample)
        });
        let brought: Vec<f64> = brought.collect();
        let (middle, low, high) = statistics::median_interval(&brought, confidence);
        Side {
            samples: samples.len(),
            median,
            down: (middle / low).ln(),
            up: (high / middle).ln(),
        }
    }
}

impl Row {
    /// Whether a side has fewer samples than `bench` takes.
    fn has_few_samples(&self) -> bool {
        self.samples_before.min(self.samples_after) < FEWEST_SAMPLES
    }
}
