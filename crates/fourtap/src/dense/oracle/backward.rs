//! The gradients, pair by pair.

use super::{bias, logit, rows};
use crate::dense::{self, AttnMask, Backward, ForwardResults, Inputs, Options};
use crate::dtype::{DType, Real, bf16, f16};
use crate::error::Result;
use crate::oracle::{Sum, read};
use crate::place::Place;
use crate::tensor::View;

/// The gradients, each in its own row-major order. The mass of a sum bounds how much it changes, relative to the
/// rounding unit, when every product and sum that leads to it is rounded; `out` and `lse` count as exact.
#[derive(Clone, Debug)]
pub struct Gradients<R> {
    /// `[B, Hq, Sq, D]`.
    pub query: Vec<Sum<R>>,
    /// `[B, Hk, Sk, D]`.
    pub key: Vec<Sum<R>>,
    /// `[B, Hk, Sk, Dv]`.
    pub value: Vec<Sum<R>>,
    /// Of the shape of the bias, if there is one.
    pub bias: Option<Vec<Sum<R>>>,
}

/// The gradients of `inputs`.
pub fn backward<R: Real>(
    inputs: &Inputs<'_>,
    options: Options,
    results: &ForwardResults<'_>,
    grad_out: &View<'_>,
) -> Result<Gradients<R>> {
    backward_with(inputs, options, results, grad_out, |number| number)
}

/// The same, where weights and gradients of logits are stored in the type of the queries before they are multiplied: the naive
/// implementation in 16 bits, and what tensor cores are given. The gradient of a bias is made of them before.
pub fn backward_stored<R: Real>(
    inputs: &Inputs<'_>,
    options: Options,
    results: &ForwardResults<'_>,
    grad_out: &View<'_>,
) -> Result<Gradients<R>> {
    let dtype = inputs.query.dtype();
    let stored = |number: R| {
        R::from_f64(match dtype {
            DType::F16 => f16::from_f64(number.to_f64()).to_f64(),
            DType::BF16 => bf16::from_f64(number.to_f64()).to_f64(),
            DType::F32 | DType::F64 => number.to_f64(),
        })
    };
    backward_with(inputs, options, results, grad_out, stored)
}

fn backward_with<R: Real>(
    inputs: &Inputs<'_>,
    options: Options,
    results: &ForwardResults<'_>,
    grad_out: &View<'_>,
    stored: impl Fn(R) -> R,
) -> Result<Gradients<R>> {
    let nothing = dense::Gradients::default();
    let problem = Backward::new(*inputs, options, *results, *grad_out, nothing)?.problem;
    problem.expect_in(Place::Host)?;
    let sizes = *problem.sizes();
    let zeros = |shape: &[usize]| vec![Sum::default(); shape.iter().product()];
    let bias_shape = match &inputs.attn_mask {
        Some(AttnMask::Bias(bias)) => Some(bias.shape()),
        _ => None,
    };
    let mut gradients = Gradients {
        query: zeros(&sizes.query()),
        key: zeros(&sizes.key()),
        value: zeros(&sizes.value()),
        bias: bias_shape.map(|shape| zeros(shape.sizes())),
    };
    let scale = R::from_f64(problem.scale());
    let (d, dv) = (sizes.channels, sizes.value_channels);
    for b in 0..sizes.batch {
        for head in 0..sizes.query_heads {
            let kept = head / sizes.group();
            let keys: Vec<Vec<R>> = rows(&inputs.key, [b, kept], sizes.keys, d);
            let values = rows(&inputs.value, [b, kept], sizes.keys, dv);
            let queries = rows(&inputs.query, [b, head], sizes.queries, d);
            let outs = rows(&results.out, [b, head], sizes.queries, dv);
            let grads = rows(grad_out, [b, head], sizes.queries, dv);
            for i in 0..sizes.queries {
                let lse = R::from_f64(read(&results.lse, [b, head, i]));
                if lse == R::NEG_INFINITY {
                    continue;
                }
                let delta = dot(&grads[i], &outs[i]);
                for j in problem.visible(i) {
                    let Some(added) = bias(inputs, &problem, [b, head, i, j]) else {
                        continue;
                    };
                    let logit = logit(scale, &queries[i], &keys[j], R::from_f64(added));
                    if logit.total == R::NEG_INFINITY {
                        continue;
                    }
                    let weight = (logit.total - lse).exp();
                    // A relative error of the logit, or of the LSE, is an absolute one of the exponent.
                    let rounded = R::ONE + logit.mass + lse.magnitude();
                    let grad_weight = dot(&grads[i], &values[j]);
                    let difference = grad_weight.total - delta.total;
                    let of_logit = Sum {
                        total: weight * difference,
                        mass: weight
                            * (grad_weight.mass + delta.mass + rounded * difference.magnitude()),
                    };
                    let multiplied = Sum {
                        total: stored(of_logit.total),
                        ..of_logit
                    };
                    let (row, key) = (
                        (b * sizes.query_heads + head) * sizes.queries + i,
                        (b * sizes.key_heads + kept) * sizes.keys + j,
                    );
                    for c in 0..d {
                        add(
                            &mut gradients.query[row * d + c],
                            multiplied,
                            scale * keys[j][c],
                        );
                        add(
                            &mut gradients.key[key * d + c],
                            multiplied,
                            scale * queries[i][c],
                        );
                    }
                    let weight = Sum {
                        total: stored(weight),
                        mass: weight * rounded,
                    };
                    for c in 0..dv {
                        add(&mut gradients.value[key * dv + c], weight, grads[i][c]);
                    }
                    if let (Some(sums), Some(shape)) = (&mut gradients.bias, bias_shape) {
                        let index = broadcast_index(shape.sizes(), [b, head, i, j]);
                        add(&mut sums[index], of_logit, R::ONE);
                    }
                }
            }
        }
    }
    Ok(gradients)
}

/// Adds the product of a number that is off by its mass and one that is exact.
fn add<R: Real>(sum: &mut Sum<R>, number: Sum<R>, factor: R) {
    sum.total += number.total * factor;
    sum.mass += number.mass * factor.magnitude();
}

fn dot<R: Real>(left: &[R], right: &[R]) -> Sum<R> {
    let mut dot = Sum::default();
    for (&left, &right) in left.iter().zip(right) {
        dot.add(left * right);
    }
    dot
}

/// The element, in row-major order, of a tensor of this shape that is broadcast to `[B, Hq, Sq, Sk]`.
fn broadcast_index(shape: &[usize], index: [usize; 4]) -> usize {
    let axes = shape.iter().zip(&index[4 - shape.len()..]);
    axes.fold(0, |element, (&size, &index)| {
        element * size + if size == 1 { 0 } else { index }
    })
}
