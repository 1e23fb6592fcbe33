//! What runs of the same code differ by.

use std::f64::consts::FRAC_2_PI;

use super::LEAST_NOISE;
use super::benchmark::Benchmark;
use crate::record::BenchRecord;

/// How many standard deviations two runs of the same code may differ by, if that deviation is well known.
const DEVIATIONS: f64 = 3.0;

/// With fewer repeated runs than this, their spread says nothing about the next one.
const FEWEST_DEGREES: usize = 2;

/// What single runs of one build differ by at most, on a processor that others use too: of 50 pairs of runs on two
/// cores with 10 to 20 programs waiting for them the medians differed by up to 1.63 times
/// (runs/2026-11-17-cpu-compare), so twice is beyond that. On a quiet processor it is less, but records do not tell how
/// quiet the minutes between two runs were.
const SINGLE_ON_CPU: f64 = 1.0;

/// The same on a GPU, which one program has to itself: of 118 pairs on H200s (runs/2026-11-15-h200-lab, and against
/// runs/2026-11-15-h200) all but two differed by less than 3 %, those by 9 and 13 %.
const SINGLE_ON_GPU: f64 = 0.15;

/// How much the median of a benchmark varies from run to run, learned from benchmarks that were run several times.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    /// Standard deviation of the logarithm of a run's median; 0 if nothing was run twice.
    deviation: f64,
    /// Runs it was learned from, of both sides, less one a side. All benchmarks of a run share what disturbed it, so
    /// they count once.
    degrees: usize,
}

impl Noise {
    /// From all benchmarks together: each alone has too few runs.
    pub fn of(benchmarks: &[&Benchmark<'_>]) -> Self {
        let (mut squares, mut count, mut degrees) = (0.0, 0, 0);
        for benchmark in benchmarks {
            let mut own = 0;
            for records in [&benchmark.before, &benchmark.after] {
                let medians: Vec<f64> = logarithms(records).collect();
                if medians.len() > 1 {
                    let mean = medians.iter().sum::<f64>() / medians.len() as f64;
                    let square = |median: &f64| (median - mean).powi(2);
                    squares += medians.iter().map(square).sum::<f64>();
                    own += medians.len() - 1;
                }
            }
            count += own;
            degrees = degrees.max(own);
        }
        Noise {
            deviation: (squares / count.max(1) as f64).sqrt(),
            degrees,
        }
    }

    /// Whether there were repeated runs enough to learn from.
    pub fn is_measured(&self) -> bool {
        self.degrees >= FEWEST_DEGREES
    }

    /// By how much the two sides of a benchmark may differ though the code is the same. The more runs each has, the less.
    pub fn of_benchmark(&self, benchmark: &Benchmark<'_>) -> f64 {
        // The middle of so many runs is as sure as the mean of 2/pi times as many.
        let runs = |records| (FRAC_2_PI * logarithms(records).count() as f64).max(1.0);
        let (before, after) = (runs(&benchmark.before), runs(&benchmark.after));
        let deviation = self.deviation * (1.0 / before + 1.0 / after).sqrt();
        let measured = (self.deviations() * deviation).exp_m1();
        let least = match self.is_measured() {
            true => LEAST_NOISE,
            false => single(benchmark),
        };
        least.max(measured)
    }

    /// Student's: the fewer runs the deviation is from, the more of them it takes to be 99 % sure.
    fn deviations(&self) -> f64 {
        match self.degrees {
            0 | 1 => DEVIATIONS,
            2 => 9.92,
            3 => 5.84,
            4 => 4.60,
            5 => 4.03,
            6 | 7 => 3.71,
            8 | 9 => 3.36,
            10..=15 => 3.17,
            _ => DEVIATIONS,
        }
    }
}

/// What single runs differ by where this benchmark ran.
fn single(benchmark: &Benchmark<'_>) -> f64 {
    let mut records = benchmark.before.iter().chain(&benchmark.after);
    match records.all(|record| record.device.kind == "cuda") {
        true => SINGLE_ON_GPU,
        false => SINGLE_ON_CPU,
    }
}

fn logarithms(records: &[&BenchRecord]) -> impl Iterator<Item = f64> {
    records
        .iter()
        .filter_map(|record| record.median_ms())
        .map(f64::ln)
}
