//! Timing of computations on the CPU.

use std::time::{Duration, Instant};

use crate::array::Array;
use crate::computation::Computation;
use crate::error::Result;
use crate::interrupt;
use crate::statistics::{FEWEST_SAMPLES, median_interval};

/// Half the confidence interval, as a share of the median, that is narrow enough: with two such results `compare` sees a
/// difference of 5 %, and can call two that are the same the same.
const NARROW: f64 = 0.015;

/// How sure that interval must be: what `compare` asks of each of a hundred benchmarks.
const CONFIDENCE: f64 = 1.0 - 0.01 / 100.0;

/// More samples than this narrow the interval too slowly to be worth the wait.
const MOST_SAMPLES: usize = 200;

/// Milliseconds of each repetition on the CPU, after one that does not count.
pub fn measure(
    trial: &dyn Computation,
    outputs: &mut [Array],
    budget: Duration,
) -> Result<Vec<f64>> {
    trial.compute(outputs)?;
    repeat(budget, || {
        let begun = Instant::now();
        trial.compute(outputs)?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    })
}

/// What `once` says each time, repeated until the median is certain to 1.5 % or `budget` is spent.
pub fn repeat(budget: Duration, once: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    let started = Instant::now();
    repeat_by(|| started.elapsed(), budget, once)
}

/// [`repeat`] by a clock that says how long it has been.
pub fn repeat_by(
    clock: impl Fn() -> Duration,
    budget: Duration,
    mut once: impl FnMut() -> Result<f64>,
) -> Result<Vec<f64>> {
    let mut samples = Vec::new();
    let mut look = FEWEST_SAMPLES;
    loop {
        interrupt::check()?;
        samples.push(once()?);
        let count = samples.len();
        if count < FEWEST_SAMPLES {
            continue;
        }
        if count >= MOST_SAMPLES || clock() >= budget {
            return Ok(samples);
        }
        if count == look {
            if is_certain(&samples) {
                return Ok(samples);
            }
            // Ever more rarely: each look is a chance to stop because of luck.
            look += count / 4;
        }
    }
}

fn is_certain(samples: &[f64]) -> bool {
    let (median, low, high) = median_interval(samples, CONFIDENCE);
    (high - low) / 2.0 <= NARROW * median
}
