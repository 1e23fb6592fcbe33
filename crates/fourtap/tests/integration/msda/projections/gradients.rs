//! The gradients are the derivatives of forward: finite differences in f64.

use fourtap::Backend;
use fourtap::msda::projections::{Interpolation, oracle};

use super::example::{Example, NAMES, Size};

const SIZE: Size = Size {
    n: 2,
    q: 3,
    m: 2,
    d: 5,
};
const STEP: f64 = 1e-6;

/// `grad_out` times the output: the number whose gradients backward computes.
fn loss(example: &Example<f64>) -> f64 {
    let out = example.forward(&Backend::default());
    out.iter()
        .zip(&example.grad_out)
        .map(|(out, grad)| out * grad)
        .sum()
}

/// Compares the oracle's gradients and the backend's with the slopes of forward.
fn check(mut example: Example<f64>, what: &str) {
    let exact = oracle::backward::<f64>(&example.call(), &example.grad_out()).unwrap();
    let totals = |sums: &[fourtap::msda::oracle::Sum<f64>]| -> Vec<f64> {
        sums.iter().map(|sum| sum.total).collect()
    };
    let of_oracle = [
        totals(&exact.value),
        totals(&exact.reference_points),
        totals(&exact.sampling_offsets),
        totals(&exact.attention_logits),
    ];
    let found = example.backward(&Backend::default(), [true; 4]);
    for (input, name) in NAMES.into_iter().enumerate() {
        // Every entry of the small tensors, and about 100 of a large one.
        let length = example.inputs[input].len();
        for index in (0..length).step_by(length / 100 + 1) {
            let before = example.inputs[input][index];
            let mut shifted = |by: f64| {
                example.inputs[input][index] = before + by;
                loss(&example)
            };
            let slope = (shifted(STEP) - shifted(-STEP)) / (2.0 * STEP);
            example.inputs[input][index] = before;
            for (whose, gradient) in [("oracle", &of_oracle), ("backend", &found)] {
                let gradient = gradient[input][index];
                assert!(
                    (slope - gradient).abs() <= 1e-5 + 1e-6 * slope.abs(),
                    "{what}: the {whose}'s gradient of {name}[{index}] is {gradient}, the slope {slope}"
                );
            }
        }
    }
}

#[test]
fn gradients_are_the_slopes_of_forward() {
    let shapes = [(4, 5), (2, 3)];
    for (what, points, references) in [
        ("points", [2, 2], vec![2, 3, 2, 2, 2]),
        ("one point for all", [2, 2], vec![1, 1, 1, 1, 2]),
        ("points without axis P", [2, 3], vec![2, 3, 2, 2]),
        ("points that take turns", [4, 4], vec![2, 3, 2, 2, 2]),
        ("boxes", [3, 3], vec![2, 3, 2, 3, 4]),
        ("boxes of every image", [1, 4], vec![1, 3, 2, 4]),
        ("boxes of every query", [2, 2], vec![2, 1, 2, 1, 4]),
        (
            "boxes of every level that take turns",
            [4, 4],
            vec![2, 3, 1, 2, 4],
        ),
        ("no points on the first level", [0, 17], vec![2, 3, 1, 4]),
    ] {
        check(Example::new(SIZE, &shapes, &points, &references, 1), what);
    }
}

#[test]
fn gradients_of_masked_and_scaled_problems_are_the_slopes_of_forward() {
    let mut example = Example::<f64>::new(SIZE, &[(4, 5), (2, 3)], &[2, 3], &[2, 3, 2, 4], 2);
    let pixels = SIZE.n * example.levels.pixels();
    example.mask = Some((0..pixels).map(|pixel| pixel % 3 == 1).collect());
    check(example.clone(), "masked");
    example.box_scale = Some(-0.2);
    check(example, "with another scale");
}

#[test]
fn the_nearest_pixel_has_no_gradient_by_place() {
    for references in [vec![2, 3, 2, 4], vec![2, 3, 2, 2]] {
        let mut example = Example::<f64>::new(SIZE, &[(4, 5), (2, 3)], &[2, 3], &references, 3);
        example.interpolation = Interpolation::Nearest;
        let [_, references, offsets, _] = example.backward(&Backend::default(), [true; 4]);
        assert!(references.iter().chain(&offsets).all(|&zero| zero == 0.0));
        // Steps this small do not move a point to another pixel.
        check(example, "nearest");
    }
}
