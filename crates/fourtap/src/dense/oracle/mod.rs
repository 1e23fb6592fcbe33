//! The reference implementation of the operator, which every backend is checked against.
//!
//! With `R = f64` this is the reference. With `R = f32` the same code is the naive implementation whose error
//! sets the error tolerance.

mod backward;

pub use backward::{Gradients, backward, backward_stored};

use crate::dense::{AttnMask, Inputs, MOST_BIAS, Options, Problem, Sizes};
use crate::dtype::{DType, Real};
use crate::error::Result;
use crate::oracle::{Sum, read, read_at};
use crate::place::Place;
use crate::tensor::View;

/// Both outputs, each in its own row-major order. The mass of a sum bounds how much it changes, relative to the rounding
/// unit, when every product and sum that leads to it is rounded.
#[derive(Clone, Debug)]
pub struct Attention<R> {
    /// `[B, Hq, Sq, Dv]`.
    pub out: Vec<Sum<R>>,
    /// `[B, Hq, Sq]`.
    pub lse: Vec<Sum<R>>,
}

/// When weights are divided by their sum.
#[derive(Clone, Copy, PartialEq)]
enum Division {
    /// Before they are multiplied by values.
    First,
    /// Once, when all are summed.
    Last,
}

/// The attention of `inputs`.
pub fn forward<R: Real>(inputs: &Inputs<'_>, options: Options) -> Result<Attention<R>> {
    attention(inputs, options, Division::First)
}

/// The naive implementation: weights are divided first or last, for each output whichever is further from the reference. Where
/// terms are alike, their rounding errors are, too, and one of the two may have none by luck.
pub fn naive(
    inputs: &Inputs<'_>,
    options: Options,
    reference: &Attention<f64>,
) -> Result<Attention<f32>> {
    let first = attention::<f32>(inputs, options, Division::First)?;
    let last = attention::<f32>(inputs, options, Division::Last)?.out;
    let out = first.out.into_iter().zip(last).zip(&reference.out);
    let out = out.map(|((first, last), exact)| {
        let error = |sum: &Sum<f32>| (sum.total as f64 - exact.total).abs();
        match error(&last) > error(&first) {
            true => last,
            false => first,
        }
    });
    Ok(Attention {
        out: out.collect(),
        lse: first.lse,
    })
}

fn attention<R: Real>(
    inputs: &Inputs<'_>,
    options: Options,
    division: Division,
) -> Result<Attention<R>> {
    let problem = Problem::new(inputs, options)?;
    problem.expect_in(Place::Host)?;
    let sizes = *problem.sizes();
    let mut attention = Attention {
        out: Vec::new(),
        lse: Vec::new(),
    };
    for b in 0..sizes.batch {
        for head in 0..sizes.query_heads {
            let kept = head / sizes.group();
            let keys: Vec<Vec<R>> = rows(&inputs.key, [b, kept], sizes.keys, sizes.channels);
            let values = rows(&inputs.value, [b, kept], sizes.keys, sizes.value_channels);
            let queries = rows(&inputs.query, [b, head], sizes.queries, sizes.channels);
            for (i, query) in queries.iter().enumerate() {
                let scale = R::from_f64(problem.scale());
                let seen = problem.visible(i).filter_map(|j| {
                    let bias = bias(inputs, &problem, [b, head, i, j])?;
                    let logit = logit(scale, query, &keys[j], R::from_f64(bias));
                    Some((logit, &values[j][..]))
                });
                let (out, lse) = row(seen.collect(), &sizes, division);
                attention.out.extend(out);
                attention.lse.push(lse);
            }
        }
    }
    Ok(attention)
}

/// What is added to a logit; `None` if the key is hidden.
fn bias(inputs: &Inputs<'_>, problem: &Problem, index: [usize; 4]) -> Option<f64> {
    let (Some(mask), Some(described)) = (&inputs.attn_mask, problem.attn_mask()) else {
        return Some(0.0);
    };
    let steps = index.iter().zip(described.strides);
    let offset: isize = steps.map(|(&index, stride)| index as isize * stride).sum();
    match mask {
        // SAFETY: the problem was checked, and is in host memory; the index lies in the shape that the mask broadcasts to.
        AttnMask::Seen(view) => unsafe { *view.as_ptr().offset(offset) != 0 }.then_some(0.0),
        AttnMask::Bias(view) => {
            // SAFETY: as above.
            let bias = unsafe { read_at(view, offset) };
            let counts = match bias.is_finite() {
                true => bias.clamp(-MOST_BIAS, MOST_BIAS),
                false => bias,
            };
            (bias != f64::NEG_INFINITY).then_some(counts)
        }
    }
}

/// The attention of one query, given the logits and values of the keys it sees.
fn row<R: Real>(
    seen: Vec<(Sum<R>, &[R])>,
    sizes: &Sizes,
    division: Division,
) -> (Vec<Sum<R>>, Sum<R>) {
    let (logits, values): (Vec<Sum<R>>, Vec<&[R]>) = seen.into_iter().unzip();
    let highest = logits.iter().fold(R::NEG_INFINITY, |highest, logit| {
        if logit.total > highest {
            logit.total
        } else {
            highest
        }
    });
    let weigh = |logit: &Sum<R>| match logit.total == R::NEG_INFINITY {
        true => R::ZERO,
        false => (logit.total - highest).exp(),
    };
    let weights: Vec<R> = logits.iter().map(weigh).collect();
    let sum = weights.iter().fold(R::ZERO, |sum, &weight| sum + weight);
    let mut out = vec![Sum::default(); sizes.value_channels];
    if sum == R::ZERO {
        let lse = Sum {
            total: R::NEG_INFINITY,
            mass: R::ZERO,
        };
        return (out, lse);
    }
    let mut lost = vec![R::ZERO; sizes.value_channels];
    for (&weight, &value) in weights.iter().zip(&values) {
        for ((out, lost), &value) in out.iter_mut().zip(&mut lost).zip(value) {
            let before = out.total;
            let term = match division {
                Division::First => weight / sum * value,
                Division::Last => weight * value,
            };
            out.add(term);
            *lost += lost_by_rounding(before, term, out.total);
        }
    }
    for (out, lost) in out.iter_mut().zip(lost) {
        // The reference keeps what its sums have lost, the naive implementation does not.
        if R::DTYPE == DType::F64 {
            out.total += lost;
        }
        if division == Division::Last {
            *out = Sum {
                total: out.total / sum,
                mass: out.mass / sum,
            };
        }
    }
    // A relative error of a logit moves every output by the weight of its key times the difference of value and output.
    let mut lse = Sum {
        total: highest + sum.ln(),
        mass: R::ZERO,
    };
    let totals: Vec<R> = out.iter().map(|out| out.total).collect();
    for ((weight, logit), &value) in weights.iter().zip(&logits).zip(&values) {
        let share = *weight / sum * logit.mass;
        lse.mass += share;
        for ((out, &total), &value) in out.iter_mut().zip(&totals).zip(value) {
            out.mass += share * (value - total).magnitude();
        }
    }
    lse.mass += lse.total.magnitude();
    (out, lse)
}

/// What `sum`, of two numbers, is short of; exact, but for overflow.
fn lost_by_rounding<R: Real>(a: R, b: R, sum: R) -> R {
    let (large, small) = match a.magnitude() < b.magnitude() {
        true => (b, a),
        false => (a, b),
    };
    let lost = large - sum + small;
    // Not a number where the sum is infinite, or is none itself.
    lost.partial_cmp(&lost).map_or(R::ZERO, |_| lost)
}

fn logit<R: Real>(scale: R, query: &[R], key: &[R], bias: R) -> Sum<R> {
    let mut dot = Sum::default();
    for (&q, &k) in query.iter().zip(key) {
        dot.add(q * k);
    }
    Sum {
        total: scale * dot.total + bias,
        mass: scale.magnitude() * dot.mass + bias.magnitude(),
    }
}

/// All rows of one head.
fn rows<R: Real>(
    view: &View<'_>,
    [b, h]: [usize; 2],
    count: usize,
    channels: usize,
) -> Vec<Vec<R>> {
    let number = |s, d| R::from_f64(read(view, [b, h, s, d]));
    (0..count)
        .map(|s| (0..channels).map(|d| number(s, d)).collect())
        .collect()
}
