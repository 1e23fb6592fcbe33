//! The oracle's gradients of dense attention against finite differences of its forward.

use fourtap::dense::oracle::{self, Gradients};
use fourtap::dense::{Alignment, AttnMask, ForwardResults, Inputs, Mask, Options};
use fourtap::{BoolView, View};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// B, Hq, Hk, Sq, Sk, D, Dv.
const SIZES: [usize; 7] = [2, 4, 2, 5, 6, 3, 2];

/// A problem in f64; its four tensors can be changed one number at a time.
#[derive(Clone)]
struct Problem {
    sizes: [usize; 7],
    /// Queries, keys, values and the bias, which may be empty.
    tensors: [Vec<f64>; 4],
    bias_shape: Option<Vec<usize>>,
    seen: Option<Vec<bool>>,
    options: Options,
    grad_out: Vec<f64>,
}

impl Problem {
    fn new(seed: u64, sizes: [usize; 7], mask: Mask, bias_shape: Option<&[usize]>) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let [b, hq, hk, sq, sk, d, dv] = sizes;
        let mut random = |shape: &[usize]| -> Vec<f64> {
            let count = shape.iter().product();
            (0..count).map(|_| rng.random_range(-1.5..1.5)).collect()
        };
        let bias = bias_shape.map_or(Vec::new(), &mut random);
        Problem {
            sizes,
            tensors: [
                random(&[b, hq, sq, d]),
                random(&[b, hk, sk, d]),
                random(&[b, hk, sk, dv]),
                bias,
            ],
            bias_shape: bias_shape.map(<[usize]>::to_vec),
            seen: None,
            options: Options {
                scale: Some(0.7),
                mask,
            },
            grad_out: random(&[b, hq, sq, dv]),
        }
    }

    fn inputs(&self) -> Inputs<'_> {
        let [b, hq, hk, sq, sk, d, dv] = self.sizes;
        let [query, key, value, bias] = &self.tensors;
        let seen = self.seen.as_ref();
        let seen = seen.map(|seen| AttnMask::Seen(BoolView::new(seen, &[sq, sk])));
        let bias = (self.bias_shape.as_ref()).map(|shape| AttnMask::Bias(View::new(bias, shape)));
        Inputs {
            query: View::new(query, &[b, hq, sq, d]),
            key: View::new(key, &[b, hk, sk, d]),
            value: View::new(value, &[b, hk, sk, dv]),
            attn_mask: bias.or(seen),
        }
    }

    fn forward(&self) -> [Vec<f64>; 2] {
        let attention = oracle::forward::<f64>(&self.inputs(), self.options).unwrap();
        [attention.out, attention.lse].map(|sums| sums.iter().map(|sum| sum.total).collect())
    }

    /// The sum of the outputs, weighted by `grad_out`.
    fn loss(&self) -> f64 {
        let [out, _] = self.forward();
        out.iter().zip(&self.grad_out).map(|(o, g)| o * g).sum()
    }

    fn gradients(&self) -> Gradients<f64> {
        let [b, hq, _, sq, _, _, dv] = self.sizes;
        let [out, lse] = self.forward();
        let results = ForwardResults {
            out: View::new(&out, &[b, hq, sq, dv]),
            lse: View::new(&lse, &[b, hq, sq]),
        };
        let grad_out = View::new(&self.grad_out, &[b, hq, sq, dv]);
        oracle::backward(&self.inputs(), self.options, &results, &grad_out).unwrap()
    }

    fn check(&self, what: &str) {
        let found = self.gradients();
        let found = [
            found.query,
            found.key,
            found.value,
            found.bias.unwrap_or_default(),
        ];
        const STEP: f64 = 1e-5;
        for (tensor, found) in found.iter().enumerate() {
            assert_eq!(found.len(), self.tensors[tensor].len(), "{what}");
            for (element, found) in found.iter().enumerate() {
                if self.tensors[tensor][element] == f64::NEG_INFINITY {
                    assert_eq!(found.total, 0.0, "{what}: a hidden bias");
                    continue;
                }
                let moved = |by: f64| {
                    let mut moved = self.clone();
                    moved.tensors[tensor][element] += by;
                    moved.loss()
                };
                let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                assert!(
                    (found.total - slope).abs() < 1e-8,
                    "{what}: tensor {tensor}, element {element} is {} where finite differences say {slope}",
                    found.total
                );
            }
        }
    }
}

/// Bands that hide nothing, something, and all keys of some rows.
fn masks() -> Vec<Mask> {
    let mut masks = vec![Mask::default()];
    for alignment in [Alignment::TopLeft, Alignment::BottomRight] {
        masks.push(Mask::causal(alignment));
        masks.push(Mask::window(alignment, Some(1), Some(1)));
        masks.push(Mask::causal(alignment).with_window(Some(2), None));
    }
    masks
}

#[test]
fn gradients_are_the_slopes_of_forward() {
    for (index, mask) in masks().into_iter().enumerate() {
        for (queries, keys) in [(5, 6), (6, 3), (1, 4)] {
            let mut sizes = SIZES;
            sizes[3..5].copy_from_slice(&[queries, keys]);
            let problem = Problem::new(index as u64, sizes, mask, None);
            problem.check(&format!("{mask:?} {queries} x {keys}"));
        }
    }
}

#[test]
fn biases_of_every_broadcast_form_get_their_slopes() {
    let [b, hq, _, sq, sk, ..] = SIZES;
    for broadcast in 0..16usize {
        let shape: Vec<usize> = [b, hq, sq, sk]
            .into_iter()
            .enumerate()
            .map(|(axis, size)| if broadcast >> axis & 1 == 1 { 1 } else { size })
            .collect();
        // With all axes, and without the leading ones of size 1.
        let first = shape.iter().position(|&size| size != 1).unwrap_or(4);
        for shape in [&shape[..], &shape[first..]] {
            let mask = masks()[broadcast % 7];
            let mut problem = Problem::new(broadcast as u64, SIZES, mask, Some(shape));
            problem.check(&format!("{shape:?} {mask:?}"));
            // Hides some keys, and for some forms all of them.
            let bias = &mut problem.tensors[3];
            bias.iter_mut()
                .step_by(3)
                .for_each(|it| *it = f64::NEG_INFINITY);
            problem.check(&format!("{shape:?} {mask:?}, with -inf"));
        }
    }
}

#[test]
fn keys_hidden_by_booleans_get_no_gradient() {
    let mut problem = Problem::new(3, SIZES, Mask::default(), None);
    let [_, _, _, sq, sk, ..] = SIZES;
    // No query sees key 2; query 1 sees none.
    let seen = |row: usize, key: usize| row != 1 && key != 2 && !(row + key).is_multiple_of(3);
    problem.seen = Some((0..sq * sk).map(|at| seen(at / sk, at % sk)).collect());
    problem.check("booleans");
    let [.., d, dv] = SIZES;
    let found = problem.gradients();
    let of_key = |sums: &[fourtap::msda::oracle::Sum<f64>], channels: usize| {
        let rows = sums.chunks(channels).skip(2).step_by(sk);
        rows.flatten().all(|sum| sum.total == 0.0)
    };
    assert!(of_key(&found.key, d) && of_key(&found.value, dv));
    let query = found.query.chunks(d).skip(1).step_by(sq).flatten();
    assert!(query.into_iter().all(|sum| sum.total == 0.0));
}

#[test]
fn what_is_not_seen_contributes_nothing_whatever_it_holds() {
    let mask = Mask::causal(Alignment::TopLeft);
    let clean = Problem::new(4, SIZES, mask, None).gradients();
    let [_, _, hk, sq, sk, d, dv] = SIZES;
    // The last key is seen by no query: five queries aligned top left.
    let mut dirty = Problem::new(4, SIZES, mask, None);
    for head in 0..2 * hk {
        let key = head * sk + sq;
        dirty.tensors[1][key * d..][..d].fill(f64::NAN);
        dirty.tensors[2][key * dv..][..dv].fill(f64::INFINITY);
    }
    let dirty = dirty.gradients();
    for (clean, dirty) in [
        (clean.query, dirty.query),
        (clean.key, dirty.key),
        (clean.value, dirty.value),
    ] {
        assert_eq!(clean, dirty);
    }
}
