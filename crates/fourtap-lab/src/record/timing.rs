//! Timings and what they say.

use serde::{Deserialize, Serialize};

use crate::statistics::Summary;

/// How long something takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Every timing, in the order taken.
    pub samples_ms: Vec<f64>,
    /// The middle one.
    pub median_ms: f64,
    /// Lower end of its 95 % confidence interval.
    pub ci_low_ms: f64,
    /// Upper end.
    pub ci_high_ms: f64,
    /// Width of the middle half of the samples, as a share of the median.
    pub spread: f64,
    /// Computations that make one sample together.
    pub launches_a_sample: u32,
    /// Copies of inputs and outputs the computations rotated through; 1: the same ones repeatedly.
    pub input_sets: u32,
}

impl Timing {
    /// Of samples of single computations on the same inputs.
    pub fn of(samples_ms: Vec<f64>) -> Self {
        let summary = Summary::of(&samples_ms);
        Timing {
            median_ms: summary.median,
            ci_low_ms: summary.low,
            ci_high_ms: summary.high,
            spread: summary.spread,
            samples_ms,
            launches_a_sample: 1,
            input_sets: 1,
        }
    }

    /// Whether there are samples, each of them a time.
    pub fn is_sound(&self) -> bool {
        let is_time = |time: &f64| time.is_finite() && *time > 0.0;
        !self.samples_ms.is_empty()
            && self.samples_ms.iter().all(is_time)
            && is_time(&self.median_ms)
    }

    /// Half the width of the confidence interval, as a share of the median.
    pub fn uncertainty(&self) -> f64 {
        (self.ci_high_ms - self.ci_low_ms) / 2.0 / self.median_ms
    }
}
