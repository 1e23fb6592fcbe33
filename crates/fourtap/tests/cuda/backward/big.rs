//! More than 2^31 elements of grad_value: offsets do not wrap, and every element that gets nothing is zero.

use std::collections::BTreeMap;

use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::oracle::{GradientReader, Reader, Sample};
use fourtap::msda::{self, Inputs, Levels, Sizes};
use fourtap::verify::GradientSelection;
use fourtap::{Backend, View, f16};
use rayon::prelude::*;

use super::tensors::BackwardProblem;
use crate::gpu;
use crate::tensors::{OnDevice, Problem};

const CHANNELS: usize = 64;

fn few_samples_on_many_pixels(height: usize, width: usize, images: usize, wanted: KernelChoice) {
    let cuda = gpu::device();
    let cuda = cuda.with_msda(wanted).deterministic(true);
    let levels = Levels::packed(&[(height, width)]).unwrap();
    let sizes = Sizes {
        images,
        pixels: levels.pixels(),
        heads: 1,
        channels: CHANNELS,
        queries: 1,
        levels: 1,
        points: 3,
    };
    let elements: usize = sizes.value().iter().product();
    assert!(elements > 1 << 31);
    let free = cuda.context().memory_info().unwrap().free;
    // value, grad_value, and a workspace of at most twice the first.
    let needed = 4 * 2 * elements + (1 << 30);
    if free < needed {
        eprintln!("skipped: {} GiB needed, {} free", needed >> 30, free >> 30);
        return;
    }
    // The first pixel, the last one, and halfway between two in the middle.
    let (x, y) = (width as f32, height as f32);
    let points = [
        [0.5 / x, 0.5 / y],
        [1.0 - 0.5 / x, 1.0 - 0.5 / y],
        [(width / 2) as f32 / x, ((height / 2) as f32 + 0.5) / y],
    ];
    let locations = points.as_flattened().repeat(images);
    let weights = [1.0f32, 2.0, 3.0].repeat(images);
    let grad_out: Vec<f16> = (0..images * CHANNELS)
        .map(|i| f16::from_f32((i % 7) as f32 - 2.0))
        .collect();
    // Ones, and threes where the last pixel is.
    let mut value = OnDevice::poisoned(&cuda, fourtap::DType::F16, &sizes.value());
    let ones = u32::from(f16::ONE.to_bits()) * 0x1_0001;
    value.buffer.fill_words(ones, cuda.stream()).unwrap();
    let threes = OnDevice::new(&cuda, &[f16::from_f32(3.0); CHANNELS], &[CHANNELS]);
    value
        .buffer
        .copy_part_from((elements - CHANNELS) * 2, &threes.buffer, cuda.stream())
        .unwrap();
    let problem = BackwardProblem {
        inputs: Problem {
            sizes,
            value,
            locations: OnDevice::new(&cuda, &locations, &sizes.sampling_locations()),
            weights: OnDevice::new(&cuda, &weights, &sizes.attention_weights()),
        },
        grad_out: OnDevice::new(&cuda, &grad_out, &sizes.out()),
    };
    let mut results = problem.results(&cuda);
    let (inputs, gradient) = problem.inputs(&levels);
    msda::backward(
        &Backend::Cuda(cuda),
        inputs,
        gradient,
        results.gradients(GradientSelection::ALL),
    )
    .unwrap();
    gpu::wait(&cuda);

    // To the oracle, all pixels are one in memory: it reads them only where samples are. In f32, because at 32,800 pixels
    // its coordinates are good for two digits after the point, and no kernel knows more.
    let one_pixel = [f16::ONE; CHANNELS];
    let on_host = Inputs {
        value: View::strided(&one_pixel, 0, &sizes.value(), &[0, 0, 0, 1]),
        levels: (&levels).into(),
        sampling_locations: View::new(&locations, &sizes.sampling_locations()),
        attention_weights: View::new(&weights, &sizes.attention_weights()),
    };
    let reader = Reader::new(&on_host).unwrap();
    let grad_view = View::new(&grad_out, &sizes.out());
    let gradient_reader = GradientReader::new(&on_host, &grad_view).unwrap();
    // What pixels that get something get, by their number among all images'; and the gradients of weights.
    let mut touched = BTreeMap::new();
    let mut of_weights = Vec::new();
    for [n, q, m] in reader.rows() {
        let grads = &grad_out[n * CHANNELS..][..CHANNELS];
        let total: f32 = grads.iter().map(|grad| grad.to_f32()).sum();
        reader.each_sample([n, q, m], |sample: Sample<f32>| {
            let mut mean = 0.0;
            for corner in sample.corners.iter().flatten() {
                let pixel = n * sizes.pixels + corner.pixel;
                let last = pixel + 1 == images * sizes.pixels;
                mean += corner.share * if last { 3.0 } else { 1.0 };
                touched
                    .entry(pixel)
                    .or_insert_with(|| gradient_reader.grad_value_at::<f32>([n, corner.pixel, m]));
            }
            of_weights.push(mean * total);
        });
    }
    let found = results.value.buffer.to_vec::<f16>().unwrap();
    let right = |(pixel, found): (usize, &[f16])| match touched.get(&pixel) {
        None => found.iter().all(|x| x.to_bits() & 0x7fff == 0),
        Some(sums) => found
            .iter()
            .zip(sums)
            .all(|(found, sum)| (found.to_f32() - sum.total).abs() <= 2e-3 * sum.mass + 6e-8),
    };
    let pixels = found.par_chunks(CHANNELS).enumerate();
    let wrong = pixels.find_first(|&pixel| !right(pixel));
    if let Some((pixel, found)) = wrong {
        let expected = touched.get(&pixel);
        panic!("{wanted:?}: pixel {pixel} is {found:?}, the oracle says {expected:?}");
    }
    let found = results.weights.buffer.to_vec::<f32>().unwrap();
    for (index, (found, expected)) in found.iter().zip(&of_weights).enumerate() {
        let apart = (found - expected).abs();
        assert!(
            apart <= 1e-3 * (1.0 + expected.abs()),
            "{wanted:?}: grad_weights[{index}] is {found}, expected {expected}"
        );
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn one_image_of_more_than_two_billion_elements() {
    few_samples_on_many_pixels(32_800, 1_025, 1, KernelChoice::Channel);
}

#[test]
#[ignore = "needs a CUDA device"]
fn many_images_of_together_more_than_two_billion_elements() {
    few_samples_on_many_pixels(1_024, 1_025, 33, KernelChoice::GatherMany);
}
