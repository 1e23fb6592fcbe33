//! Two programs timed in turns: rounds, each with new processes, in which both are timed in an order drawn by lot.
//!
//! What lasts longer than a turn disturbs both alike, and what a process has by luck, such as where its memory lies, is
//! drawn anew each round. For equal programs each round's ratio is above 1 as likely as below, whatever the machine
//! does meanwhile; so the signed-rank interval over rounds holds the true ratio as often as it says.

use super::{CONFIDENCE, LEAST_NOISE, Row, Verdict};
use crate::record::{Round, TurnsRecord};
use crate::signed_rank;
use crate::statistics::median;

/// Fewest rounds: with them a quarter of all may be disturbed, and the interval is still about as narrow as the others say.
const FEWEST_ROUNDS: usize = 16;

/// How sure each interval must be so that all of so many hold 99 times in 100.
pub fn confidence(benchmarks: usize) -> f64 {
    1.0 - (1.0 - CONFIDENCE) / benchmarks.max(1) as f64
}

/// How many rounds so many benchmarks take.
pub fn rounds(benchmarks: usize) -> usize {
    FEWEST_ROUNDS.max(signed_rank::fewest(confidence(benchmarks)))
}

/// What the rounds of a benchmark say.
pub fn judged(name: &str, rounds: &[Round], confidence: f64) -> Row {
    let ratio = |round: &Round| (round.after_ms / round.before_ms).ln();
    let ratios: Vec<f64> = rounds.iter().map(ratio).collect();
    let (middle, low, high) = signed_rank::interval(&ratios, confidence);
    let all = |time: fn(&Round) -> f64| -> Vec<f64> { rounds.iter().map(time).collect() };
    let count = |samples: fn(&Round) -> usize| rounds.iter().map(samples).sum();
    let (ratio_low, ratio_high) = (low.exp(), high.exp());
    Row {
        name: name.to_string(),
        verdict: Verdict::of(ratio_low, ratio_high, LEAST_NOISE),
        before_ms: median(&all(|round| round.before_ms)),
        after_ms: median(&all(|round| round.after_ms)),
        ratio: middle.exp(),
        ratio_low,
        ratio_high,
        samples_before: count(|round| round.samples_before),
        samples_after: count(|round| round.samples_after),
    }
}

/// A round of these timings. Of each side the lowest tenth counts, its upper end: others that use the machine only ever
/// make a computation slower, so its faster timings tell more about it, but a single one may be luck.
pub fn round(before_ms: &[f64], after_ms: &[f64]) -> Round {
    let fast = |samples: &[f64]| {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let tenth = sorted.len().saturating_sub(1) / 10;
        sorted.get(tenth).copied().unwrap_or(f64::NAN)
    };
    Round {
        before_ms: fast(before_ms),
        after_ms: fast(after_ms),
        samples_before: before_ms.len(),
        samples_after: after_ms.len(),
    }
}

impl From<&TurnsRecord> for Row {
    fn from(record: &TurnsRecord) -> Row {
        judged(&record.name, &record.rounds, record.confidence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt, SeedableRng};
    use rand_distr::{Distribution, StandardNormal};

    /// Rounds on a machine that is up to twice as slow for a while, whose processes differ by some 5 %, and of which
    /// each turn scatters by 10 %.
    fn busy(slower: f64, rng: &mut Xoshiro256PlusPlus) -> Vec<Round> {
        let normal = |rng: &mut Xoshiro256PlusPlus| -> f64 { StandardNormal.sample(rng) };
        let mut state = 1.0;
        let mut one = || {
            if rng.random_bool(0.3) {
                state = 1.0 + rng.random::<f64>();
            }
            let luck = [(); 2].map(|()| (0.05 * normal(rng)).exp());
            let mut turn = |of: f64| state * of * (0.1 * normal(rng)).exp();
            let (mut before_ms, mut after_ms) = (vec![], vec![]);
            for _ in 0..6 {
                before_ms.push(turn(luck[0]));
                after_ms.push(turn(slower * luck[1]));
            }
            round(&before_ms, &after_ms)
        };
        (0..FEWEST_ROUNDS).map(|_| one()).collect()
    }

    #[test]
    fn a_busy_machine_raises_no_alarm_and_hides_no_large_slowdown() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
        let (mut alarms, mut caught) = (0, 0);
        for _ in 0..2000 {
            let row = judged("a", &busy(1.0, &mut rng), CONFIDENCE);
            alarms += usize::from(matches!(row.verdict, Verdict::Slower | Verdict::Faster));
            let row = judged("a", &busy(1.2, &mut rng), CONFIDENCE);
            caught += usize::from(row.verdict == Verdict::Slower);
        }
        assert!(alarms <= 20, "{alarms} of 2000");
        assert!(caught >= 1900, "{caught} of 2000");
    }

    #[test]
    fn more_benchmarks_take_more_rounds() {
        assert_eq!((rounds(1), rounds(100), rounds(1000)), (16, 16, 18));
    }
}
