//! A sample of a result from projections against the oracle.

use fourtap::View;
use fourtap::msda::projections::oracle::{GradientReader, Reader};
use fourtap::verify::Pass;
use rayon::prelude::*;

use super::trial::ProjectedTrial;
use crate::array::Array;
use crate::computation::Computation;
use crate::error::Result;
use crate::generate::{below, sample_stream};
use crate::operators::msda::verification::{PIXELS, ROWS};
use crate::verification::{Row, Rule, Verification, judged, unwritten};

/// Compares what `trial` computed into `outputs`.
pub fn verify(trial: &ProjectedTrial<'_>, outputs: &[Array], seed: u64) -> Result<Verification> {
    let names = trial.output_names();
    if let Some(unwritten) = unwritten(names, outputs) {
        return Ok(unwritten);
    }
    let (pass, compared) = match trial.grad_out() {
        None => (Pass::Forward, forward_rows(trial, outputs, seed)?),
        Some(grad_out) => {
            let compared = backward_rows(trial, grad_out, outputs, seed)?;
            (Pass::Backward, compared)
        }
    };
    Ok(judged(names, outputs, pass, &compared, Rule::Operator))
}

fn forward_rows(trial: &ProjectedTrial<'_>, outputs: &[Array], seed: u64) -> Result<Vec<Vec<Row>>> {
    let reader = Reader::new(trial.inputs())?;
    let sizes = *trial.problem().sizes();
    let compare = |&[n, q, m]: &[usize; 3]| {
        let first = ((n * sizes.queries + q) * sizes.heads + m) * sizes.channels;
        let found = outputs[0].to_f64(first, sizes.channels);
        let row = [n, q, m];
        (found, reader.forward_row(row), reader.forward_row(row))
    };
    let rows = choose_rows(trial, seed);
    Ok(vec![rows.par_iter().map(compare).collect()])
}

/// In the order of the outputs: of value, reference points, offsets and logits.
fn backward_rows(
    trial: &ProjectedTrial<'_>,
    grad_out: &View<'_>,
    outputs: &[Array],
    seed: u64,
) -> Result<Vec<Vec<Row>>> {
    let reader = GradientReader::new(trial.inputs(), grad_out)?;
    let sizes = *trial.problem().sizes();
    let samples = trial.problem().samples();
    let of_value = |&at: &[usize; 3]| {
        let [n, s, m] = at;
        let first = ((n * sizes.pixels + s) * sizes.heads + m) * sizes.channels;
        let found = outputs[0].to_f64(first, sizes.channels);
        (found, reader.grad_value_at(at), reader.grad_value_at(at))
    };
    let shape = outputs[1].shape();
    let &[reference_images, reference_queries, ref each @ ..] = shape.sizes() else {
        return Ok(Vec::new());
    };
    let length: usize = each.iter().product();
    let of_references = |&at: &[usize; 2]| {
        let found = outputs[1].to_f64((at[0] * reference_queries + at[1]) * length, length);
        let exact = reader.grad_references_at(at);
        (found, exact, reader.grad_references_at(at))
    };
    let of_samples = |&row: &[usize; 3]| -> (Row, Row) {
        let [n, q, m] = row;
        let first = ((n * sizes.queries + q) * sizes.heads + m) * samples;
        let (exact, naive) = (reader.row::<f64>(row), reader.row::<f32>(row));
        let offsets = outputs[2].to_f64(2 * first, 2 * samples);
        let logits = outputs[3].to_f64(first, samples);
        (
            (offsets, exact.sampling_offsets, naive.sampling_offsets),
            (logits, exact.attention_logits, naive.attention_logits),
        )
    };
    let rows = choose_rows(trial, seed);
    let pixels = choose_pixels(trial, &rows, seed)?;
    // References that stand for all queries or images are few, and each takes all of those to compute.
    let mut referenced: Vec<[usize; 2]> = rows
        .iter()
        .map(|&[n, q, _]| [n % reference_images, q % reference_queries])
        .collect();
    referenced.sort_unstable();
    referenced.dedup();
    let (offsets, logits) = rows.par_iter().map(of_samples).unzip();
    Ok(vec![
        pixels.par_iter().map(of_value).collect(),
        referenced.par_iter().map(of_references).collect(),
        offsets,
        logits,
    ])
}

fn choose_rows(trial: &ProjectedTrial<'_>, seed: u64) -> Vec<[usize; 3]> {
    let sizes = trial.problem().sizes();
    let mut rng = sample_stream(seed);
    (0..ROWS)
        .map(|_| [sizes.images, sizes.queries, sizes.heads].map(|size| below(&mut rng, size)))
        .collect()
}

/// Half of them anywhere, and half where `rows` sample, each level as often as the others.
fn choose_pixels(
    trial: &ProjectedTrial<'_>,
    rows: &[[usize; 3]],
    seed: u64,
) -> Result<Vec<[usize; 3]>> {
    let (sizes, levels) = (trial.problem().sizes(), trial.problem().levels());
    let levels: Vec<_> = levels.iter().filter(|level| level.pixels() > 0).collect();
    if levels.is_empty() {
        return Ok(Vec::new());
    }
    let mut rng = sample_stream(seed);
    let anywhere = |index: usize| {
        let level = levels[index % levels.len()];
        let pixel = level.start + below(&mut rng, level.pixels());
        let [n, m] = [sizes.images, sizes.heads].map(|size| below(&mut rng, size));
        [n, pixel, m]
    };
    let mut pixels: Vec<_> = (0..PIXELS / 2).map(anywhere).collect();
    let reader = Reader::new(trial.inputs())?;
    for &[n, q, m] in rows {
        let level = levels[pixels.len() % levels.len()];
        let level = level.start..level.start + level.pixels();
        let mut sampled = reader.pixels([n, q, m]).into_iter();
        let sampled = sampled.find(|pixel| level.contains(pixel));
        pixels.extend(sampled.map(|pixel| [n, pixel, m]));
        if pixels.len() == PIXELS {
            break;
        }
    }
    Ok(pixels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourtap::Backend;
    use fourtap::verify::ProjectedCase;

    /// Both passes of some random problems that have samples.
    fn each_trial(test: impl Fn(u64, &ProjectedTrial<'_>, Vec<Array>)) {
        for seed in 0..40 {
            let case = ProjectedCase::random(seed);
            for grad_out in [None, Some(case.grad_out())] {
                let trial =
                    ProjectedTrial::new(Backend::Auto, case.inputs(), None, grad_out).unwrap();
                let sizes = trial.problem().sizes();
                if sizes.samples() == 0 || sizes.pixels == 0 || trial.problem().samples() == 0 {
                    continue;
                }
                let mut outputs = trial.outputs().unwrap();
                trial.compute(&mut outputs).unwrap();
                // Hostile numbers make some results NaN, which here means that they were never written.
                if outputs.iter().any(|output| output.find_nan().is_some()) {
                    continue;
                }
                test(seed, &trial, outputs);
            }
        }
    }

    #[test]
    fn accepts_right_results() {
        each_trial(|seed, trial, outputs| {
            let verified = verify(trial, &outputs, 0).unwrap();
            assert!(verified.passed, "seed {seed}: {verified:?}");
        });
    }

    #[test]
    fn refuses_results_never_written() {
        each_trial(|seed, trial, mut outputs| {
            *outputs.last_mut().unwrap() = trial.outputs().unwrap().pop().unwrap();
            let found = verify(trial, &outputs, 0).unwrap().found.unwrap();
            assert!(found.contains("never written"), "seed {seed}: {found}");
        });
    }
}
