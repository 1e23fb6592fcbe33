//! A sample of a result of dense attention against the oracle, or all of a small one.

use fourtap::dense::oracle::{self, Attention};
use fourtap::dense::{AttnMask, Inputs, Mask, Options};
use fourtap::msda::oracle::Sum;
use fourtap::verify::Pass;
use fourtap::{BoolView, Layout, Place, Real, View};
use rayon::prelude::*;
use std::ops::Range;

use super::Trial;
use crate::array::Array;
use crate::computation::Computation;
use crate::error::Result;
use crate::generate::{below, sample_stream};
use crate::verification::{Row, Rule, Verification, judged, unwritten};

/// (sequence, head, query) rows compared: for each the oracle walks all keys it sees.
const ROWS: usize = 128;

/// Compares what `trial` computed into `outputs`: every row if those are few, else a sample.
pub fn verify(trial: &Trial<'_>, outputs: &[Array], seed: u64) -> Result<Verification> {
    let all: usize = trial.problem().sizes().lse().iter().product();
    match all <= ROWS {
        true => verify_all(trial, outputs),
        false => verify_rows(trial, outputs, &some_rows(trial, seed)),
    }
}

/// Compares every row.
pub fn verify_all(trial: &Trial<'_>, outputs: &[Array]) -> Result<Verification> {
    let [sequences, heads, queries] = trial.problem().sizes().lse();
    let row = |row: usize| [row / queries / heads, row / queries % heads, row % queries];
    let rows: Vec<_> = (0..sequences * heads * queries).map(row).collect();
    verify_rows(trial, outputs, &rows)
}

fn verify_rows(trial: &Trial<'_>, outputs: &[Array], rows: &[[usize; 3]]) -> Result<Verification> {
    let names = trial.output_names();
    if let Some(unwritten) = unwritten(names, outputs) {
        return Ok(unwritten);
    }
    let compare = |&row: &[usize; 3]| compared(trial, outputs, row);
    let rows: Vec<Vec<Row>> = rows.par_iter().map(compare).collect::<Result<_>>()?;
    let mut tensors: Vec<Vec<Row>> = vec![Vec::new(); names.len()];
    for row in rows {
        for (tensor, row) in tensors.iter_mut().zip(row) {
            tensor.push(row);
        }
    }
    Ok(judged(
        names,
        outputs,
        Pass::Forward,
        &tensors,
        Rule::Operator,
    ))
}

/// Which rows: the first and last query of some heads, where tiles begin and end, and others anywhere.
fn some_rows(trial: &Trial<'_>, seed: u64) -> Vec<[usize; 3]> {
    let [sequences, heads, queries] = trial.problem().sizes().lse();
    let mut rng = sample_stream(seed);
    (0..ROWS)
        .map(|index| {
            let [sequence, head, query] =
                [sequences, heads, queries].map(|size| below(&mut rng, size));
            let query = match index % 16 {
                0 => 0,
                1 => queries - 1,
                _ => query,
            };
            [sequence, head, query]
        })
        .collect()
}

/// One row of each output, with what the oracle and the naive implementation say.
fn compared(trial: &Trial<'_>, outputs: &[Array], row: [usize; 3]) -> Result<Vec<Row>> {
    let [sequence, head, query] = row;
    let (exact, naive): (Attention<f64>, Attention<f32>) =
        (attention(trial, row)?, attention(trial, row)?);
    let sizes = trial.problem().sizes();
    let index = (sequence * sizes.query_heads + head) * sizes.queries + query;
    let channels = sizes.value_channels;
    let out = outputs[0].to_f64(index * channels, channels);
    let mut compared = vec![(out, exact.out, naive.out)];
    if let Some(lse) = outputs.get(1) {
        let found = lse.to_f64(index, 1);
        // From the minus infinity of a query that sees nothing there is no distance: equal, or wrong.
        let nothing = f64::NEG_INFINITY;
        compared.push(match found == [nothing] && exact.lse[0].total == nothing {
            true => (vec![0.0], vec![Sum::default()], vec![Sum::default()]),
            false => (found, exact.lse, naive.lse),
        });
    }
    Ok(compared)
}

/// The attention of one query: a problem of its own, of the keys it sees.
fn attention<R: Real>(
    trial: &Trial<'_>,
    [sequence, head, query]: [usize; 3],
) -> Result<Attention<R>> {
    let (inputs, problem) = (trial.inputs(), trial.problem());
    let visible = problem.visible(query);
    let kept = head / problem.sizes().group();
    let keys = |view| part(view, [sequence, kept, visible.start], visible.len());
    let one = Inputs {
        query: part(&inputs.query, [sequence, head, query], 1),
        key: keys(&inputs.key),
        value: keys(&inputs.value),
        attn_mask: part_of_mask(trial, [sequence, head, query], visible.clone()),
    };
    let options = Options {
        scale: Some(problem.scale()),
        mask: Mask::default(),
    };
    Ok(oracle::forward(&one, options)?)
}

/// `count` rows of a head, from `row` on.
fn part<'a>(view: &View<'a>, [b, h, row]: [usize; 3], count: usize) -> View<'a> {
    let (layout, channels) = (view.layout(), view.shape().sizes()[3]);
    let shape = [1, 1, count, channels];
    let part = Layout::strided(layout.dtype(), &shape, layout.strides());
    let offset: isize = [b, h, row]
        .iter()
        .zip(layout.strides())
        .map(|(&at, &stride)| at as isize * stride)
        .sum();
    let bytes = offset * layout.dtype().size() as isize;
    assert_eq!(view.place(), Place::Host, "trials read host memory");
    // SAFETY: these rows are rows of `view`, which was checked when the problem was made; of none nothing is read.
    unsafe { View::from_raw(view.as_ptr().wrapping_offset(bytes), part) }
}

/// Of the mask, what it says of one query and the keys in `visible`.
fn part_of_mask<'a>(
    trial: &Trial<'a>,
    [b, h, query]: [usize; 3],
    visible: Range<usize>,
) -> Option<AttnMask<'a>> {
    let (mask, described) = (trial.inputs().attn_mask?, trial.problem().attn_mask()?);
    // These are 0 along axes that are the same for all, so that each index is one of the mask.
    let offset: isize = [b, h, query, visible.start]
        .iter()
        .zip(described.strides)
        .map(|(&at, stride)| at as isize * stride)
        .sum();
    let shape = [1, 1, 1, visible.len()];
    let strides = [0, 0, 0, described.strides[3]];
    assert_eq!(
        trial.inputs().query.place(),
        Place::Host,
        "trials read host memory"
    );
    Some(match mask {
        AttnMask::Seen(view) => {
            let first = view.as_ptr().wrapping_offset(offset);
            // SAFETY: these are elements of `view`, which was checked when the problem was made to be where queries are and to
            // broadcast to all queries and keys; of none nothing is read.
            AttnMask::Seen(unsafe { BoolView::from_raw(first, &shape, &strides) })
        }
        AttnMask::Bias(view) => {
            let layout = Layout::strided(view.dtype(), &shape, &strides);
            let bytes = offset * view.dtype().size() as isize;
            // SAFETY: as above.
            AttnMask::Bias(unsafe { View::from_raw(view.as_ptr().wrapping_offset(bytes), layout) })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourtap::Backend;
    use fourtap::verify::DenseCase;

    /// Some random problems of more than one row, every layout and mask there is among them.
    fn each_trial(test: impl Fn(&Trial<'_>, Vec<Array>)) {
        for seed in 0..60 {
            let case = DenseCase::random(seed);
            let trial = Trial::new(Backend::Auto, case.inputs(), case.options).unwrap();
            let trial = trial.with_lse();
            if trial.traffic().pairs == 0 {
                continue;
            }
            let mut outputs = trial.outputs().unwrap();
            trial.compute(&mut outputs).unwrap();
            test(&trial, outputs);
        }
    }

    #[test]
    fn accepts_right_results() {
        each_trial(|trial, outputs| {
            for verified in [verify(trial, &outputs, 1), verify_all(trial, &outputs)] {
                let verified = verified.unwrap();
                assert!(verified.passed, "{:?}: {verified:?}", trial.problem());
            }
        });
    }

    #[test]
    fn refuses_results_never_written() {
        each_trial(|trial, mut outputs| {
            outputs[1] = trial.outputs().unwrap().pop().unwrap();
            let found = verify(trial, &outputs, 0).unwrap().found.unwrap();
            assert!(found.starts_with("lse") && found.contains("never written"));
        });
    }

    #[test]
    fn refuses_results_a_little_wrong() {
        let case = DenseCase::with_sizes(
            3,
            fourtap::DType::F32,
            &fourtap::dense::Sizes {
                batch: 2,
                query_heads: 4,
                key_heads: 2,
                queries: 100,
                keys: 80,
                channels: 16,
                value_channels: 16,
            },
        );
        let trial = Trial::new(Backend::Auto, case.inputs(), Options::default()).unwrap();
        let trial = trial.with_lse();
        for (index, name) in ["out", "lse"].into_iter().enumerate() {
            let mut outputs = trial.outputs().unwrap();
            trial.compute(&mut outputs).unwrap();
            // One part in a thousand, everywhere.
            let wrong = outputs[index].elements_mut::<f32>().iter_mut();
            wrong.for_each(|element| *element *= 1.001);
            let found = verify(&trial, &outputs, 0).unwrap().found.unwrap();
            assert!(found.starts_with(name), "{name}: {found}");
        }
    }

    #[test]
    fn first_and_last_queries_are_among_the_rows() {
        let number = [0f32];
        let all = |shape: [usize; 4]| View::strided(&number, 0, &shape, &[0; 4]);
        let inputs = Inputs {
            query: all([3, 5, 700, 8]),
            key: all([3, 5, 9, 8]),
            value: all([3, 5, 9, 8]),
            attn_mask: None,
        };
        let trial = Trial::new(Backend::Auto, inputs, Options::default()).unwrap();
        let rows = some_rows(&trial, 0);
        assert_eq!(rows.len(), ROWS);
        for query in [0, 699] {
            assert!(rows.iter().any(|row| row[2] == query), "{query}");
        }
    }
}
