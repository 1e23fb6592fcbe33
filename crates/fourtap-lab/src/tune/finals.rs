//! Which of the fastest is the fastest, beyond doubt.

use serde::{Deserialize, Serialize};

use crate::statistics::{FEWEST_SAMPLES, median, median_interval};

/// How sure a difference must be.
const CONFIDENCE: f64 = 0.999;

/// Two that differ by no more than this are the same.
const SAME: f64 = 0.005;

/// What a choice must gain to be kept: less is not worth another machine's surprise.
const WORTH: f64 = 1.01;

/// Times of the defaults and the finalists, taken alternately: a round is one sample of each, so what disturbs the machine
/// for a while disturbs all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finals {
    /// Milliseconds; one row a finalist, the defaults first, one column a round.
    pub samples_ms: Vec<Vec<f64>>,
}

/// How the finals ended.
#[derive(Clone, Debug, PartialEq)]
pub struct FinalsResult {
    /// Whose choice to keep; 0: the defaults.
    pub winner: usize,
    /// Speed of each against the defaults: the middle, and what it lies between.
    pub speeds: Vec<(f64, f64, f64)>,
    /// Those that cannot be told from the fastest.
    pub equal: Vec<usize>,
}

impl Finals {
    fn rounds(&self) -> usize {
        self.samples_ms.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// How many times as fast `a` is as `b`, round by round.
    fn speed(&self, a: usize, b: usize) -> (f64, f64, f64) {
        let pairs = self.samples_ms[a].iter().zip(&self.samples_ms[b]);
        let ratios: Vec<f64> = pairs.map(|(a, b)| b / a).collect();
        median_interval(&ratios, CONFIDENCE)
    }

    fn fastest(&self) -> usize {
        let medians: Vec<f64> = self.samples_ms.iter().map(|row| median(row)).collect();
        (0..medians.len())
            .min_by(|&a, &b| medians[a].total_cmp(&medians[b]))
            .unwrap_or(0)
    }

    /// Whether more rounds would tell nothing new: each is slower than the fastest for sure, or the same.
    pub fn is_settled(&self) -> bool {
        if self.rounds() < FEWEST_SAMPLES {
            return false;
        }
        let fastest = self.fastest();
        (0..self.samples_ms.len()).all(|other| {
            let (_, low, high) = self.speed(fastest, other);
            other == fastest || low > 1.0 || (low > 1.0 - SAME && high < 1.0 + SAME)
        })
    }

    /// What to make of it. `distances` says how many values of each differ from the defaults: of those that cannot be
    /// told from the fastest, the one nearest to the defaults is kept.
    pub fn settled(&self, distances: &[usize]) -> FinalsResult {
        let fastest = self.fastest();
        let all = 0..self.samples_ms.len();
        let speeds: Vec<_> = all.clone().map(|it| self.speed(it, 0)).collect();
        let is_equal = |&it: &usize| it == fastest || self.speed(fastest, it).1 <= 1.0;
        let equal: Vec<usize> = all.filter(is_equal).collect();
        let worth = |&&it: &&usize| speeds[it].1 > 1.0 && speeds[it].0 >= WORTH;
        let winner = equal
            .iter()
            .filter(worth)
            .min_by_key(|&&it| distances.get(it).copied().unwrap_or(usize::MAX));
        FinalsResult {
            winner: winner.copied().unwrap_or(0),
            speeds,
            equal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};

    /// Rounds of finalists of these speeds, each round disturbed as a whole by up to a half, each sample by up to 1 %.
    fn finals(times: &[f64], rounds: usize) -> Finals {
        let mut rng = rand::rngs::Xoshiro256PlusPlus::seed_from_u64(3);
        let mut samples_ms = vec![vec![]; times.len()];
        for _ in 0..rounds {
            let disturbed = 1.0 + 0.5 * rng.random::<f64>();
            for (row, time) in samples_ms.iter_mut().zip(times) {
                row.push(time * disturbed * (1.0 + 0.01 * rng.random::<f64>()));
            }
        }
        Finals { samples_ms }
    }

    #[test]
    fn a_difference_smaller_than_the_disturbance_is_seen() {
        let finals = finals(&[1.0, 0.97, 1.1], 60);
        assert!(finals.is_settled());
        let settled = finals.settled(&[0, 2, 1]);
        assert_eq!((settled.winner, settled.equal), (1, vec![1]));
        let (speed, low, high) = settled.speeds[1];
        assert!(low < 1.0 / 0.97 && 1.0 / 0.97 < high, "{low} to {high}");
        assert!((speed - 1.0 / 0.97).abs() < 0.01);
        assert_eq!(settled.speeds[0].0, 1.0);
    }

    #[test]
    fn of_equals_the_one_nearest_to_the_defaults_is_kept() {
        let finals = finals(&[1.0, 0.9, 0.9], 60);
        let settled = finals.settled(&[0, 3, 1]);
        assert_eq!((settled.winner, settled.equal.len()), (2, 2));
    }

    #[test]
    fn what_is_no_better_than_the_defaults_does_not_win() {
        for other in [1.0, 1.2, 0.998] {
            let finals = finals(&[1.0, other], 60);
            assert_eq!(finals.settled(&[0, 1]).winner, 0, "{other}");
        }
    }

    #[test]
    fn few_rounds_settle_nothing() {
        assert!(!finals(&[1.0, 0.5], FEWEST_SAMPLES - 1).is_settled());
        assert!(finals(&[1.0, 0.5], FEWEST_SAMPLES).is_settled());
        assert!(!finals(&[1.0], 1).is_settled());
        assert!(finals(&[1.0], FEWEST_SAMPLES).is_settled());
    }
}
