//! What runs of the same code differ by.

use std::f64::consts::FRAC_2_PI;

use super::LEAST_NOISE;
use super::benchmark::Benchmark;
use crate::record::BenchRecord;

/// How many standard deviations two runs of the same code may differ by.
const DEVIATIONS: f64 = 3.0;

/// How much the median of a benchmark varies from run to run, learned from benchmarks that were run several times.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    /// Standard deviation of the logarithm of a run's median; none if nothing was run twice.
    deviation: Option<f64>,
}

impl Noise {
    /// From all benchmarks together: each alone has too few runs.
    pub fn of(benchmarks: &[&Benchmark<'_>]) -> Self {
        let (mut squares, mut degrees) = (0.0, 0);
        for benchmark in benchmarks {
            for records in [&benchmark.before, &benchmark.after] {
                let medians: Vec<f64> = logarithms(records).collect();
                if medians.len() > 1 {
                    let mean = medians.iter().sum::<f64>() / medians.len() as f64;
                    let square = |median: &f64| (median - mean).powi(2);
                    squares += medians.iter().map(square).sum::<f64>();
                    degrees += medians.len() - 1;
                }
            }
        }
        Noise {
            deviation: (degrees > 0).then(|| (squares / degrees as f64).sqrt()),
        }
    }

    /// Whether there were repeated runs to learn from.
    pub fn is_measured(&self) -> bool {
        self.deviation.is_some()
    }

    /// By how much the two sides of a benchmark may differ though the code is the same. The more runs each has, the less.
    pub fn of_benchmark(&self, benchmark: &Benchmark<'_>) -> f64 {
        // The middle of so many runs is as sure as the mean of 2/pi times as many.
        let runs = |records| (FRAC_2_PI * logarithms(records).count() as f64).max(1.0);
        let (before, after) = (runs(&benchmark.before), runs(&benchmark.after));
        let deviation = self.deviation.unwrap_or(0.0) * (1.0 / before + 1.0 / after).sqrt();
        LEAST_NOISE.max((DEVIATIONS * deviation).exp_m1())
    }
}

fn logarithms(records: &[&BenchRecord]) -> impl Iterator<Item = f64> {
    records
        .iter()
        .filter_map(|record| record.median_ms())
        .map(f64::ln)
}
