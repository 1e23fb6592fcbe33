//! A sample of a result of deformable attention against the oracle.

use fourtap::View;
use fourtap::msda::oracle::{GradientReader, Reader, Sample, Sum};
use fourtap::verify::Pass;
use rayon::prelude::*;

use super::Trial;
use crate::array::Array;
use crate::error::Result;
use crate::generate::{below, sample_stream};
use crate::verification::{Row, Rule, Verification, judged, unwritten};

/// (image, query, head) rows compared.
pub(super) const ROWS: usize = 200;

/// (image, pixel, head) rows of grad_value compared: for each the oracle walks all queries of an image.
pub(super) const PIXELS: usize = 24;

/// Compares what `trial` computed into `outputs`.
pub fn verify(trial: &Trial<'_>, outputs: &[Array], seed: u64) -> Result<Verification> {
    if let Some(unwritten) = unwritten(trial.output_names(), outputs) {
        return Ok(unwritten);
    }
    let (pass, compared) = match trial.grad_out() {
        None => {
            let rows = choose_rows(trial, seed);
            (Pass::Forward, forward_rows(trial, outputs, &rows)?)
        }
        Some(grad_out) => (
            Pass::Backward,
            backward_rows(trial, grad_out, outputs, seed)?,
        ),
    };
    let names = trial.output_names();
    Ok(judged(names, outputs, pass, &compared, Rule::Operator))
}

/// Compares a result of forward by a rule of its own: sampled rows, or without a seed every row.
pub fn verify_forward(
    trial: &Trial<'_>,
    outputs: &[Array],
    seed: Option<u64>,
    rule: Rule,
) -> Result<Verification> {
    if let Some(unwritten) = unwritten(trial.output_names(), outputs) {
        return Ok(unwritten);
    }
    let rows = match seed {
        Some(seed) => choose_rows(trial, seed),
        None => all_rows(trial),
    };
    let compared = forward_rows(trial, outputs, &rows)?;
    let names = trial.output_names();
    Ok(judged(names, outputs, Pass::Forward, &compared, rule))
}

fn forward_rows(
    trial: &Trial<'_>,
    outputs: &[Array],
    rows: &[[usize; 3]],
) -> Result<Vec<Vec<Row>>> {
    let reader = Reader::new(trial.inputs())?;
    let sizes = *trial.problem().sizes();
    let compare = |&[n, q, m]: &[usize; 3]| {
        let first = ((n * sizes.queries + q) * sizes.heads + m) * sizes.channels;
        let found = outputs[0].to_f64(first, sizes.channels);
        (
            found,
            reader.forward_row([n, q, m]),
            reader.forward_row([n, q, m]),
        )
    };
    Ok(vec![rows.par_iter().map(compare).collect()])
}

fn backward_rows(
    trial: &Trial<'_>,
    grad_out: &View<'_>,
    outputs: &[Array],
    seed: u64,
) -> Result<Vec<Vec<Row>>> {
    let reader = GradientReader::new(trial.inputs(), grad_out)?;
    let sizes = *trial.problem().sizes();
    let of_value = |&[n, s, m]: &[usize; 3]| {
        let first = ((n * sizes.pixels + s) * sizes.heads + m) * sizes.channels;
        let found = outputs[0].to_f64(first, sizes.channels);
        (
            found,
            reader.grad_value_at([n, s, m]),
            reader.grad_value_at([n, s, m]),
        )
    };
    let of_samples = |&[n, q, m]: &[usize; 3]| -> (Row, Row) {
        let samples = sizes.levels * sizes.points;
        let first = ((n * sizes.queries + q) * sizes.heads + m) * samples;
        let (locations, weights) = reader.sample_gradients_row::<f64>([n, q, m]);
        let (naive_locations, naive_weights) = reader.sample_gradients_row::<f32>([n, q, m]);
        (
            (
                outputs[1].to_f64(2 * first, 2 * samples),
                flat(locations),
                flat(naive_locations),
            ),
            (outputs[2].to_f64(first, samples), weights, naive_weights),
        )
    };
    let values = choose_pixels(trial, seed)?
        .par_iter()
        .map(of_value)
        .collect();
    let (locations, weights) = choose_rows(trial, seed).par_iter().map(of_samples).unzip();
    Ok(vec![values, locations, weights])
}

fn flat<R: Copy>(pairs: Vec<[Sum<R>; 2]>) -> Vec<Sum<R>> {
    pairs.into_iter().flatten().collect()
}

fn all_rows(trial: &Trial<'_>) -> Vec<[usize; 3]> {
    let sizes = trial.problem().sizes();
    let (queries, heads) = (sizes.queries, sizes.heads);
    let row = |row: usize| [row / heads / queries, row / heads % queries, row % heads];
    (0..sizes.images * queries * heads).map(row).collect()
}

fn choose_rows(trial: &Trial<'_>, seed: u64) -> Vec<[usize; 3]> {
    let sizes = trial.problem().sizes();
    let mut rng = sample_stream(seed);
    (0..ROWS)
        .map(|_| [sizes.images, sizes.queries, sizes.heads].map(|size| below(&mut rng, size)))
        .collect()
}

/// Half of them anywhere, and half where samples are, which may be in a few pixels only. Each level as often as the
/// others: the small ones gather the longest sums.
fn choose_pixels(trial: &Trial<'_>, seed: u64) -> Result<Vec<[usize; 3]>> {
    let (sizes, levels) = (trial.problem().sizes(), trial.problem().levels());
    let levels: Vec<_> = levels.iter().filter(|level| level.pixels() > 0).collect();
    if levels.is_empty() {
        return Ok(Vec::new());
    }
    let mut rng = sample_stream(seed);
    let mut pixels: Vec<_> = (0..PIXELS / 2)
        .map(|index| {
            let level = levels[index % levels.len()];
            let pixel = level.start + below(&mut rng, level.pixels());
            [
                below(&mut rng, sizes.images),
                pixel,
                below(&mut rng, sizes.heads),
            ]
        })
        .collect();
    let reader = Reader::new(trial.inputs())?;
    // Rows are plenty, so that a few without samples inside do not matter.
    for [image, query, head] in choose_rows(trial, seed) {
        let level = levels[pixels.len() % levels.len()];
        let level = level.start..level.start + level.pixels();
        let mut sampled = None;
        reader.each_sample([image, query, head], |sample: Sample<f64>| {
            let mut inside = sample.corners.iter().flatten().map(|corner| corner.pixel);
            sampled = sampled.or(inside.find(|pixel| level.contains(pixel)));
        });
        pixels.extend(sampled.map(|pixel| [image, pixel, head]));
        if pixels.len() == PIXELS {
            break;
        }
    }
    Ok(pixels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Distribution;
    use crate::computation::Computation;
    use crate::operators::msda::{Workload, generate};
    use fourtap::msda::Inputs;
    use fourtap::verify::Case;
    use fourtap::{Backend, DType};
    use std::path::Path;

    /// Both passes of some random problems that have samples.
    fn each_trial(test: impl Fn(&Trial<'_>, Vec<Array>)) {
        for seed in 0..40 {
            let case = Case::random(seed);
            let forward = Trial::forward(Backend::Auto, case.inputs()).unwrap();
            let backward = Trial::backward(Backend::Auto, case.inputs(), case.grad_out()).unwrap();
            let sizes = forward.problem().sizes();
            if sizes.samples() == 0 || sizes.pixels == 0 {
                continue;
            }
            for trial in [&forward, &backward] {
                let mut outputs = trial.outputs().unwrap();
                trial.compute(&mut outputs).unwrap();
                test(trial, outputs);
            }
        }
    }

    #[test]
    fn accepts_right_results() {
        each_trial(|trial, outputs| {
            let verified = verify(trial, &outputs, 0).unwrap();
            assert!(verified.passed, "{:?}: {verified:?}", trial.problem());
        });
    }

    #[test]
    fn refuses_results_never_written() {
        each_trial(|trial, mut outputs| {
            *outputs.last_mut().unwrap() = trial.outputs().unwrap().pop().unwrap();
            let found = verify(trial, &outputs, 0).unwrap().found.unwrap();
            assert!(found.contains("never written"), "{found}");
        });
    }

    #[test]
    fn refuses_results_a_little_wrong() {
        // In a window most of grad_value is zero, and stays so however wrong the rest is.
        for distribution in [Distribution::Local, Distribution::Window] {
            refuses_a_little_wrong(distribution);
        }
    }

    fn refuses_a_little_wrong(distribution: Distribution) {
        let workload = Workload::named(Path::new("rtdetr-decoder"), None).unwrap();
        let levels = workload.levels().unwrap();
        let sizes = workload.sizes(&levels);
        let value = generate::value(&sizes, DType::F32, 0).unwrap();
        let grad_out = generate::grad_out(&sizes, DType::F32, 0).unwrap();
        let weights = generate::weights(&sizes, 0).unwrap();
        let reference = workload.reference;
        let locations = generate::locations(&sizes, &levels, reference, distribution, 0).unwrap();
        let inputs = Inputs {
            value: value.view(),
            levels: (&levels).into(),
            sampling_locations: locations.view(),
            attention_weights: weights.view(),
        };
        let forward = Trial::forward(Backend::Auto, inputs).unwrap();
        let backward = Trial::backward(Backend::Auto, inputs, grad_out.view()).unwrap();
        for trial in [forward, backward] {
            for (index, name) in trial.output_names().iter().enumerate() {
                let mut outputs = trial.outputs().unwrap();
                trial.compute(&mut outputs).unwrap();
                // One part in a thousand, everywhere.
                outputs[index]
                    .elements_mut::<f32>()
                    .iter_mut()
                    .for_each(|element| *element *= 1.001);
                let found = verify(&trial, &outputs, 0).unwrap().found.unwrap();
                assert!(found.starts_with(name), "{name}: {found}");
            }
        }
    }
}
