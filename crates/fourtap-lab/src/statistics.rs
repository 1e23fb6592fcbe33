//! What a set of timings says.

/// The middle of some timings, and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Half of the samples are below.
    pub median: f64,
    /// Lower end of the 95 % confidence interval of the median.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Width of the middle half of the samples, as a share of the median.
    pub spread: f64,
}

/// With 6 samples the whole range is a 95 % confidence interval of the median. It takes 12 before `compare` can be sure
/// of a difference when it looks at a hundred benchmarks at once.
pub const FEWEST_SAMPLES: usize = 12;

/// How sure the intervals in records are.
const CONFIDENCE: f64 = 0.95;

impl Summary {
    /// Of at least one sample. The interval is made of order statistics, so it assumes nothing about how timings are
    /// distributed: with outliers to one side, as timings have, an interval of mean and deviation would lie.
    pub fn of(samples: &[f64]) -> Self {
        let sorted = sorted(samples);
        let median = middle(&sorted);
        let (low, high) = around_median(&sorted, CONFIDENCE);
        let count = sorted.len();
        let quarter = (count - 1) / 4;
        Summary {
            median,
            low,
            high,
            spread: (sorted[count - 1 - quarter] - sorted[quarter]) / median,
        }
    }

    /// Half the width of the interval, as a share of the median.
    pub fn uncertainty(&self) -> f64 {
        (self.high - self.low) / 2.0 / self.median
    }
}

/// The median, and an interval that holds the true one with at least this `confidence`, as far as there are samples
/// enough: else the whole range.
pub fn median_interval(samples: &[f64], confidence: f64) -> (f64, f64, f64) {
    let sorted = sorted(samples);
    let (low, high) = around_median(&sorted, confidence);
    (middle(&sorted), low, high)
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn middle(sorted: &[f64]) -> f64 {
    let count = sorted.len();
    (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0
}

fn around_median(sorted: &[f64], confidence: f64) -> (f64, f64) {
    let outside = samples_outside(sorted.len(), confidence);
    (sorted[outside], sorted[sorted.len() - 1 - outside])
}

/// How many samples to leave out at each end so that the rest spans the median as often as `confidence` says: each
/// sample lies below it with probability 1/2.
fn samples_outside(count: usize, confidence: f64) -> usize {
    let mut probability = 0.5f64.powi(count as i32);
    let mut below = probability;
    let mut outside = 0;
    while 2.0 * below <= 1.0 - confidence && 2 * outside + 2 < count {
        probability *= (count - outside) as f64 / (outside + 1) as f64;
        below += probability;
        outside += 1;
    }
    outside.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(Summary::of(&[3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(
            Summary::of(&[7.0]),
            Summary {
                median: 7.0,
                low: 7.0,
                high: 7.0,
                spread: 0.0
            }
        );
    }

    #[test]
    fn interval_has_the_ranks_of_the_tables() {
        // Ranks of the 95 % interval from tables of the sign test: 1-based, lower end.
        let tables = [
            (6, 1),
            (8, 1),
            (9, 2),
            (10, 2),
            (12, 3),
            (15, 4),
            (20, 6),
            (25, 8),
            (50, 18),
            (100, 40),
        ];
        for (count, rank) in tables {
            assert_eq!(
                samples_outside(count, CONFIDENCE),
                rank - 1,
                "{count} samples"
            );
        }
    }

    #[test]
    fn few_samples_give_their_whole_range() {
        for count in 1..=6 {
            let samples: Vec<f64> = (0..count).map(|x| x as f64).collect();
            let summary = Summary::of(&samples);
            assert_eq!((summary.low, summary.high), (0.0, count as f64 - 1.0));
        }
    }

    #[test]
    fn interval_covers_the_median_as_often_as_it_says() {
        use rand::{RngExt, SeedableRng};
        let mut rng = rand::rngs::Xoshiro256PlusPlus::seed_from_u64(1);
        let covered = (0..2000).filter(|_| {
            // Skewed as timings are: the median of x^4 is (1/2)^4.
            let samples: Vec<f64> = (0..21).map(|_| rng.random::<f64>().powi(4)).collect();
            let Summary { low, high, .. } = Summary::of(&samples);
            (low..=high).contains(&0.0625)
        });
        let share = covered.count() as f64 / 2000.0;
        assert!((0.95..1.0).contains(&share), "{share}");
    }

    #[test]
    fn an_outlier_moves_nothing() {
        let mut samples = vec![1.0; 30];
        samples[4] = 1e9;
        assert_eq!(
            Summary::of(&samples),
            Summary {
                median: 1.0,
                low: 1.0,
                high: 1.0,
                spread: 0.0
            }
        );
    }
}
