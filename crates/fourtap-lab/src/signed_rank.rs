//! The middle of a few numbers that scatter alike to both sides, and where it lies for sure: the Hodges–Lehmann estimate
//! with the interval of Wilcoxon's signed-rank test.
//!
//! It assumes symmetry, which differences of pairs have whose order was drawn by lot, and nothing about tails: a few
//! pairs disturbed by something else move it little.

/// How many numbers an interval of this confidence takes at least.
pub fn fewest(confidence: f64) -> usize {
    (2.0 / (1.0 - confidence)).log2().ceil() as usize
}

/// The middle of some numbers, and an interval that holds the true one with this confidence; everything where they are
/// fewer than [`fewest`].
pub fn interval(numbers: &[f64], confidence: f64) -> (f64, f64, f64) {
    let mut averages = Vec::new();
    for (index, a) in numbers.iter().enumerate() {
        averages.extend(numbers[index..].iter().map(|b| (a + b) / 2.0));
    }
    averages.sort_by(f64::total_cmp);
    let count = averages.len();
    let Some(last) = count.checked_sub(1) else {
        return (0.0, f64::NEG_INFINITY, f64::INFINITY);
    };
    let middle = (averages[last / 2] + averages[count / 2]) / 2.0;
    match outside(numbers.len(), confidence) {
        Some(outside) => (middle, averages[outside], averages[last - outside]),
        None => (middle, f64::NEG_INFINITY, f64::INFINITY),
    }
}

/// How many averages to leave out at each end: the largest sum of ranks that is too rare to be luck. Each of the 2^n
/// choices of signs is as likely as any other.
fn outside(numbers: usize, confidence: f64) -> Option<usize> {
    let most = numbers * (numbers + 1) / 2;
    let mut ways = vec![0.0; most + 1];
    ways[0] = 1.0;
    for rank in 1..=numbers {
        for sum in (rank..=most).rev() {
            ways[sum] += ways[sum - rank];
        }
    }
    let all = 2.0_f64.powi(numbers as i32);
    let mut below = 0.0;
    let mut outside = None;
    for (sum, ways) in ways.iter().enumerate() {
        below += ways;
        if 2.0 * below > (1.0 - confidence) * all {
            break;
        }
        outside = Some(sum);
    }
    outside
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn sums_of_ranks_are_those_of_the_tables() {
        // Largest sums of ranks that are significant at 1 % on both sides, from tables of the test.
        for (numbers, sum) in [(8, 0), (10, 3), (12, 7), (15, 15), (20, 37)] {
            assert_eq!(outside(numbers, 0.99), Some(sum), "{numbers}");
        }
        assert_eq!(outside(7, 0.99), None);
        assert_eq!((fewest(0.99), fewest(0.9999)), (8, 15));
    }

    #[test]
    fn the_interval_holds_the_middle_as_often_as_it_says() {
        let mut rng = rand::rngs::Xoshiro256PlusPlus::seed_from_u64(1);
        let missed = (0..10_000).filter(|_| {
            // Heavy tails to both sides.
            let mut number = || {
                let uniform = rng.random::<f64>() - 0.5;
                uniform / (0.5 - uniform.abs() + 1e-9)
            };
            let numbers: Vec<f64> = (0..12).map(|_| number()).collect();
            let (_, low, high) = interval(&numbers, 0.99);
            !(low..=high).contains(&0.0)
        });
        let missed = missed.count();
        assert!((50..=130).contains(&missed), "{missed} of 10000");
    }

    #[test]
    fn too_few_numbers_say_nothing() {
        assert_eq!(
            interval(&[1.0; 7], 0.99),
            (1.0, f64::NEG_INFINITY, f64::INFINITY)
        );
        assert_eq!(interval(&[], 0.99).1, f64::NEG_INFINITY);
        assert_eq!(interval(&[1.0; 8], 0.99), (1.0, 1.0, 1.0));
    }
}
