//! What a comparison promises, tested with simulated timings, sampled by the code that samples real ones.

use std::cell::Cell;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1, StandardNormal};
use serde_json::json;

use super::*;
use crate::measure::repeat_by;
use crate::record::Timing;

const BENCHMARKS: usize = 30;
const COMPARISONS: usize = 100;

/// How long a benchmark takes, and may be repeated.
const MEDIAN_MS: f64 = 10.0;
const BUDGET: Duration = Duration::from_secs(3);

/// Standard deviation of what runs of the same code differ by, as runs on a quiet machine do.
const QUIET: f64 = 0.002;

/// How timings scatter.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Around a mean, little.
    Small,
    /// Around a mean, much.
    Large,
    /// Log-normal: a short tail to one side, a long one to the other.
    Skewed,
    /// One in 20 takes longer, by half on average.
    Outliers,
    /// Up or down by 1 % in the first 100 timings.
    Drifting,
    /// One in five at a clock that is 6 % lower.
    TwoClocks,
    /// Each much like the one before.
    Persistent,
}

const SHAPES: [Shape; 7] = [
    Shape::Small,
    Shape::Large,
    Shape::Skewed,
    Shape::Outliers,
    Shape::Drifting,
    Shape::TwoClocks,
    Shape::Persistent,
];

/// Timings of one run of one benchmark, until they suffice.
fn timings(shape: Shape, between_runs: f64, rng: &mut Xoshiro256PlusPlus) -> Vec<f64> {
    let normal = |rng: &mut Xoshiro256PlusPlus| -> f64 { StandardNormal.sample(rng) };
    let level = MEDIAN_MS * (between_runs * normal(rng)).exp();
    let direction = if rng.random::<bool>() { 0.01 } else { -0.01 };
    let mut state = normal(rng);
    let mut count = 0;
    let elapsed = Cell::new(0.0);
    let clock = || Duration::from_secs_f64(elapsed.get() / 1e3);
    let samples = repeat_by(clock, BUDGET, || {
        count += 1;
        let time = match shape {
            Shape::Small => 1.0 + 0.005 * normal(rng),
            Shape::Large => 1.0 + 0.03 * normal(rng),
            Shape::Skewed => 1.0 + 0.02 * (0.8 * normal(rng)).exp(),
            Shape::Outliers => {
                let longer: f64 = Exp1.sample(rng);
                let is_outlier = rng.random_bool(0.05);
                1.0 + 0.01 * normal(rng) + if is_outlier { 0.5 * longer } else { 0.0 }
            }
            Shape::Drifting => {
                1.0 + 0.01 * normal(rng) + direction * f64::from(count.min(100)) / 100.0
            }
            Shape::TwoClocks => {
                let lower = if rng.random_bool(0.2) { 1.06 } else { 1.0 };
                lower * (1.0 + 0.003 * normal(rng))
            }
            Shape::Persistent => {
                state = 0.6 * state + 0.8 * normal(rng);
                1.0 + 0.02 * state
            }
        };
        elapsed.set(elapsed.get() + level * time);
        Ok(level * time)
    });
    samples.expect("timing made-up work cannot fail")
}

static TEMPLATE: LazyLock<BenchRecord> = LazyLock::new(|| {
    serde_json::from_value(json!({
        "schema": 2, "version": "0", "unix_time": 0, "workload": "", "distribution": "local", "seed": 0,
        "problem": {"images": 1, "queries": 1, "heads": 1, "channels": 1, "points": 1, "pixels": 1, "levels": [[1, 1]]},
        "dtypes": {"value": "f32", "locations": "f32", "weights": "f32"}, "direction": "forward",
        "device": {"kind": "cuda", "model": "made up"}, "kernel": {"words": "none", "reproducible": true},
        "verification": {"passed": true, "rows": 1, "tensors": []}, "in_bounds_fraction": 1.0,
        "traffic": {"compulsory_bytes": 1, "gathered_bytes": 1, "flop": 1}}))
    .expect("a record")
});

fn record(number: usize, samples_ms: Vec<f64>) -> BenchRecord {
    BenchRecord {
        workload: format!("w{number:02}"),
        hot: Some(Timing::of(samples_ms)),
        ..TEMPLATE.clone()
    }
}

fn name(number: usize) -> String {
    format!("w{number:02}/local/f32/forward")
}

/// A run of every benchmark, each so many times.
fn run(shape: Shape, repeats: usize, between_runs: f64, rng: &mut Xoshiro256PlusPlus) -> Run {
    let repeated = (0..repeats).flat_map(|_| 0..BENCHMARKS);
    let benches = repeated.map(|number| record(number, timings(shape, between_runs, rng)));
    Run {
        path: Path::new("made-up.jsonl").to_path_buf(),
        benches: benches.collect(),
        ..Run::default()
    }
}

/// The same with one benchmark so many times slower. Nothing in measuring or comparing depends on how long a
/// millisecond is, so this is what measuring slower code would have given.
fn slowed(run: &Run, number: usize, factor: f64) -> Run {
    let mut run = run.clone();
    let slower = run.benches.iter_mut();
    for record in slower.filter(|one| one.name() == name(number)) {
        let samples = record.hot.iter().flat_map(|hot| &hot.samples_ms);
        record.hot = Some(Timing::of(samples.map(|time| factor * time).collect()));
    }
    run
}

fn alarms(comparison: &Comparison) -> usize {
    let alarm = |row: &&Row| matches!(row.verdict, Verdict::Slower | Verdict::Faster);
    comparison.rows.iter().filter(alarm).count()
}

fn verdict(comparison: &Comparison, number: usize) -> Verdict {
    let name = name(number);
    let mut rows = comparison.rows.iter();
    rows.find(|row| row.name == name).expect("a row").verdict
}

#[test]
#[ignore = "long: a simulation of many comparisons"]
fn single_runs_of_a_version_are_not_called_changed_and_a_slowdown_of_25_percent_is_caught() {
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed as u64);
        let (mut false_alarms, mut caught, mut same) = (0, 0, 0);
        for _ in 0..COMPARISONS {
            let before = run(shape, 1, QUIET, &mut rng);
            let after = run(shape, 1, QUIET, &mut rng);
            let comparison = compare(&before, &after);
            assert_eq!(comparison.rows.len(), BENCHMARKS);
            false_alarms += usize::from(alarms(&comparison) > 0);
            let unchanged = |row: &&Row| row.verdict == Verdict::Same;
            same += comparison.rows.iter().filter(unchanged).count();
            let slower = compare(&before, &slowed(&after, 7, 1.25));
            caught += usize::from(verdict(&slower, 7) == Verdict::Slower);
        }
        let said = format!(
            "{shape:?}: {false_alarms} false alarms, {caught} caught, {same} of {} the same",
            COMPARISONS * BENCHMARKS
        );
        println!("{said}");
        assert!(false_alarms <= COMPARISONS / 100, "{said}");
        assert!(caught >= COMPARISONS * 95 / 100, "{said}");
        assert!(same >= COMPARISONS * BENCHMARKS * 3 / 4, "{said}");
    }
}

#[test]
fn a_speedup_is_caught_as_well() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(11);
    let [before, after] = [(); 2].map(|()| run(Shape::Skewed, 1, QUIET, &mut rng));
    let comparison = compare(&before, &slowed(&after, 3, 0.75));
    assert_eq!(verdict(&comparison, 3), Verdict::Faster);
    assert_eq!(alarms(&comparison), 1);
    assert_eq!(comparison.rows[0].name, name(3));
}

#[test]
fn what_repeated_runs_differ_by_is_no_change() {
    const RESTLESS: f64 = 0.02;
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(12);
    let (mut false_alarms, mut caught) = (0, 0);
    for _ in 0..25 {
        let [before, after] = [(); 2].map(|()| run(Shape::Small, 1, RESTLESS, &mut rng));
        false_alarms += alarms(&compare(&before, &after));
        let [before, after] = [(); 2].map(|()| run(Shape::Small, 4, RESTLESS, &mut rng));
        let comparison = compare(&before, &after);
        assert!(
            (0.02..0.08).contains(&comparison.noise),
            "{}",
            comparison.noise
        );
        false_alarms += alarms(&comparison);
        let slower = compare(&before, &slowed(&after, 7, 1.12));
        caught += usize::from(verdict(&slower, 7) == Verdict::Slower);
    }
    assert_eq!(false_alarms, 0);
    assert!(caught >= 24, "{caught}");
}
