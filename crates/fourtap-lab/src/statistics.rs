//! Statistics of timings: medians and confidence intervals.

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

/// With 6 samples the whole range is a 95 % confidence interval of the median. It takes 15 until it is one of 99.99 %,
/// which `compare` asks for when it looks at a hundred benchmarks at once.
pub const FEWEST_SAMPLES: usize = 15;

/// In fewer samples than this no order can be seen.
const FEWEST_IN_ORDER: usize = 12;

/// Samples count for no fewer than this, however alike neighbours are: states that last for most of a run make its
/// interval wide, but a time beyond everything seen is still a difference.
const FEWEST_INDEPENDENT: f64 = 6.0;

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
}

/// The middle one of at least one sample.
pub fn median(samples: &[f64]) -> f64 {
    middle(&sorted(samples))
}

/// The median, and an interval that holds the true one with this `confidence`, of samples in the order they were taken.
///
/// Order statistics again, with two precautions. Samples that resemble those before them count for fewer than they
/// are, as many as would be as sure if each stood alone. And where even the whole range is not sure enough, it is
/// widened: see [`widening`].
pub fn median_interval(samples: &[f64], confidence: f64) -> (f64, f64, f64) {
    let sorted = sorted(samples);
    let (count, median) = (sorted.len(), middle(&sorted));
    if count < 2 {
        return (median, 0.0, f64::INFINITY);
    }
    let independent = independent_samples(samples, median);
    let outside = samples_outside(independent as usize, confidence);
    let outside = outside as f64 / (independent.floor() - 1.0) * (count - 1) as f64;
    let outside = outside as usize;
    let widening = widening(independent, confidence);
    let widened = |end: f64| median * (end / median).powf(widening);
    (
        median,
        widened(sorted[outside]),
        widened(sorted[count - 1 - outside]),
    )
}

/// How many independent samples would be as sure of the median: as the share of neighbours on the same side of it
/// tells. One standard error is added to that share, because measuring stops when the interval is narrow, which is
/// more often than not when the share looked small by luck.
fn independent_samples(samples: &[f64], median: f64) -> f64 {
    let count = samples.len() as f64;
    if samples.len() < FEWEST_IN_ORDER {
        return count;
    }
    let side = |sample: f64| match sample {
        above if above > median => 1.0,
        below if below < median => -1.0,
        _ => 0.0,
    };
    let sides: Vec<f64> = samples.iter().map(|&sample| side(sample)).collect();
    let off_the_median: f64 = sides.iter().map(|side| side * side).sum();
    if off_the_median == 0.0 {
        return count;
    }
    let neighbours: f64 = sides.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let alike = (neighbours / off_the_median + count.sqrt().recip()).clamp(0.0, 1.0);
    (count * (1.0 - alike) / (1.0 + alike)).max(FEWEST_INDEPENDENT)
}

/// How much wider than the range of so many samples an interval must be to be as sure as `confidence` says; 1 if there
/// are samples enough. The range of n samples misses the median with probability 2^(1-n); the exponent is what it
/// takes for samples that are normal, log-normal or uniform.
fn widening(samples: f64, confidence: f64) -> f64 {
    let needed = -(1.0 - confidence).log2();
    (needed / (samples - 1.0)).max(1.0).powf(1.5)
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

    /// Timings of which each is so much like the one before.
    fn alike(rng: &mut rand::rngs::Xoshiro256PlusPlus, count: usize, alike: f64) -> Vec<f64> {
        use rand_distr::{Distribution, StandardNormal};
        let mut draw = || -> f64 { StandardNormal.sample(rng) };
        let mut state = draw();
        let samples = (0..count).map(|_| {
            state = alike * state + (1.0 - alike * alike).sqrt() * draw();
            1.0 + 0.01 * state
        });
        samples.collect()
    }

    /// In how many of 10000 runs the interval does not hold the true median, which is 1.
    fn missed(count: usize, likeness: f64, interval: impl Fn(&[f64]) -> (f64, f64, f64)) -> usize {
        use rand::SeedableRng;
        let mut rng = rand::rngs::Xoshiro256PlusPlus::seed_from_u64(1);
        let runs = (0..10_000).filter(|_| {
            let (_, low, high) = interval(&alike(&mut rng, count, likeness));
            !(low..=high).contains(&1.0)
        });
        runs.count()
    }

    #[test]
    fn samples_that_resemble_their_neighbours_widen_the_interval() {
        let plain = |samples: &[f64]| {
            let sorted = sorted(samples);
            let (low, high) = around_median(&sorted, 0.99);
            (middle(&sorted), low, high)
        };
        let guarded = |samples: &[f64]| median_interval(samples, 0.99);
        assert!(missed(60, 0.0, guarded) <= 100);
        assert!(
            missed(60, 0.7, plain) > 1000,
            "or there is nothing to guard against"
        );
        assert!(missed(60, 0.7, guarded) <= 150);
    }

    #[test]
    fn few_samples_widen_the_interval() {
        for count in [6, 8, 10] {
            let missed = missed(count, 0.0, |samples| median_interval(samples, 0.999));
            assert!(missed <= 20, "{count} samples: {missed} of 10000");
        }
    }

    #[test]
    fn one_sample_says_nothing() {
        assert_eq!(median_interval(&[2.0], 0.9), (2.0, 0.0, f64::INFINITY));
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
