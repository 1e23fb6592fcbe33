//! The same as computing locations and weights first, and then attention.

use fourtap::Backend;
use fourtap::View;
use fourtap::ViewMut;
use fourtap::msda::{self, Gradients, Inputs};

use super::example::{Example, Size};

const SIZE: Size = Size {
    n: 2,
    q: 37,
    m: 3,
    d: 40,
};

/// Locations and weights, computed as a model does.
fn first_step(example: &Example<f64>) -> [Vec<f64>; 2] {
    let Size { n, q, m, .. } = example.size;
    let k = example.samples();
    let (mut locations, mut weights) = (Vec::new(), Vec::new());
    for row in 0..n * q * m {
        let (image, query) = (row / m / q, row / m % q);
        let mut sample = row * k;
        for (l, level) in example.levels.iter().enumerate() {
            for point in 0..example.points[l] {
                for (xy, size) in [level.width, level.height].into_iter().enumerate() {
                    let [centre, step] = example.reference([image, query, l, point], xy);
                    let offset = example.inputs[2][2 * sample + xy];
                    locations.push(centre + offset * step / size as f64);
                }
                sample += 1;
            }
        }
        let powers: Vec<f64> = example.inputs[3][row * k..][..k]
            .iter()
            .map(|logit| logit.exp())
            .collect();
        let sum: f64 = powers.iter().sum();
        weights.extend(powers.iter().map(|power| power / sum));
    }
    [locations, weights]
}

fn assert_near(what: &str, found: &[f64], expected: &[f64]) {
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= 1e-11,
            "{what}[{index}] is {found}, in two steps {expected}"
        );
    }
}

#[test]
fn one_step_gives_what_two_steps_give() {
    let shapes = [(12, 17), (6, 9), (1, 2)];
    for (what, references) in [
        ("points", vec![2, 37, 3, 2]),
        ("points that take turns", vec![2, 37, 3, 2, 2]),
        ("boxes", vec![1, 37, 1, 4]),
    ] {
        let example = Example::<f64>::new(SIZE, &shapes, &[4; 3], &references, 5);
        let [locations, weights] = first_step(&example);
        let Size { n, q, m, d } = SIZE;
        let value_shape = [n, example.levels.pixels(), m, d];
        let inputs = Inputs {
            value: View::new(&example.inputs[0], &value_shape),
            levels: (&example.levels).into(),
            sampling_locations: View::new(&locations, &[n, q, m, 3, 4, 2]),
            attention_weights: View::new(&weights, &[n, q, m, 3, 4]),
        };
        let backend = Backend::default();
        let mut out = vec![f64::NAN; example.grad_out.len()];
        let view = ViewMut::new(&mut out, &example.out_shape());
        msda::forward(&backend, inputs, view).unwrap();
        let mut grad_value = vec![f64::NAN; example.inputs[0].len()];
        let gradients = Gradients {
            value: Some(ViewMut::new(&mut grad_value, &value_shape)),
            ..Gradients::default()
        };
        msda::backward(&backend, inputs, example.grad_out(), gradients).unwrap();
        let found = example.run(&backend);
        assert_near(what, &found.out, &out);
        assert_near(what, &found.gradients[0], &grad_value);
    }
}
