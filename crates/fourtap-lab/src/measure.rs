//! How long a computation takes.

use std::time::{Duration, Instant};

use crate::array::Array;
use crate::error::Result;
use crate::statistics::{FEWEST_SAMPLES, Summary};
use crate::trial::Trial;

/// Half the confidence interval, as a share of the median, that is narrow enough.
const NARROW: f64 = 0.02;

/// More samples than this narrow the interval too slowly to be worth the wait.
const MOST_SAMPLES: usize = 200;

/// Milliseconds of each repetition on the CPU, after one that does not count.
pub fn measure(trial: &Trial<'_>, outputs: &mut [Array], budget: Duration) -> Result<Vec<f64>> {
    trial.compute(outputs)?;
    repeat(budget, || {
        let begun = Instant::now();
        trial.compute(outputs)?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    })
}

/// What `once` says each time, repeated until the median is certain to 2 % or `budget` is spent.
pub fn repeat(budget: Duration, mut once: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    let mut samples = Vec::new();
    let started = Instant::now();
    loop {
        samples.push(once()?);
        let certain = || Summary::of(&samples).uncertainty() <= NARROW;
        let spent = started.elapsed() >= budget || samples.len() >= MOST_SAMPLES;
        if samples.len() >= FEWEST_SAMPLES && (spent || certain()) {
            return Ok(samples);
        }
    }
}
