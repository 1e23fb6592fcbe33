//! NaN, infinities and numbers near the end of the range, in every tensor; levels that are nonsense.

use fourtap::cuda::driver::Buffer;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::{self, CudaLevels, Levels, Sizes, oracle};
use fourtap::verify::{Case, CudaCase, Failure, HOSTILE, LevelsIn, Storage, Tensor};
use fourtap::{Backend, DType, f16};
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::gpu;
use crate::tensors::{OnDevice, Problem};

/// Whether a sum of this magnitude may come out as infinity or NaN in one order of terms or another.
fn may_overflow(mass: f64, dtype: DType) -> bool {
    let limit = if dtype == DType::F16 { 6e4 } else { 1e37 };
    mass.is_nan() || mass >= limit
}

#[test]
#[ignore = "needs a CUDA device"]
fn numbers_of_any_kind_give_what_the_oracle_gives() {
    let cuda = gpu::device();
    let mut on_matrix = 0;
    for seed in 0..1_000u64 {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let small = *[(1, 1), (3, 2)].choose(rng).unwrap();
        let levels = Levels::packed(&[(3, 4), small]).unwrap();
        let (q, m) = (5, 2);
        let p = *[3, 8, 16].choose(rng).unwrap();
        let d = *[8, 16, 32, 19, 48].choose(rng).unwrap();
        let dtype = *DType::ALL.choose(rng).unwrap();
        let where_hostile = rng.random_range(1..8);
        let mut tensor = |dtype, shape: &[usize], bit: i32| {
            Tensor::from_fn(dtype, shape, &Storage::dense(shape.len()), || {
                match where_hostile & bit != 0 && rng.random_bool(0.1) {
                    true => *HOSTILE.choose(rng).unwrap(),
                    false => rng.random_range(-0.01..1.01),
                }
            })
        };
        let case = Case {
            seed,
            value: tensor(dtype, &[1, levels.pixels(), m, d], 1),
            sampling_locations: tensor(DType::F32, &[1, q, m, 2, p, 2], 2),
            attention_weights: tensor(DType::F32, &[1, q, m, 2, p], 4),
            grad_out: Tensor::poisoned(dtype, &[1, q, m * d], &Storage::dense(3)),
            outputs: [3, 4, 6, 5].map(Storage::dense),
            levels,
        };
        let reference = oracle::forward::<f64>(&case.inputs()).unwrap();
        for (wanted, levels) in [
            (KernelChoice::Best, LevelsIn::Host),
            (KernelChoice::Channel, LevelsIn::Host),
            (KernelChoice::Matrix, LevelsIn::Host),
            (KernelChoice::Matrix, LevelsIn::Device),
        ] {
            let on_device = CudaCase::new(&case, cuda.with_msda(wanted)).unwrap();
            let out = match on_device.forward(levels) {
                Err(Failure::Refused(_)) if wanted == KernelChoice::Matrix => continue,
                out => out.unwrap(),
            };
            on_matrix += u32::from(wanted == KernelChoice::Matrix);
            for (index, (found, expected)) in out.to_f64().into_iter().zip(&reference).enumerate() {
                let near = (found - expected.total).abs() <= 0.02 * (1.0 + expected.mass);
                assert!(
                    near || may_overflow(expected.mass, dtype),
                    "seed {seed}, {dtype}, {wanted:?}, levels in {levels:?}: out[{index}] is {found}, the oracle says {expected:?}"
                );
            }
        }
    }
    assert!(on_matrix > 40, "{on_matrix} on tensor cores");
    gpu::evidence(
        &cuda,
        "hostile",
        &gpu::kernels("msda_forward_"),
        "1000 problems of NaN, infinities and 1e38",
    );
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_neighbour_outside_adds_nothing_even_next_to_infinity() {
    let cuda = gpu::device();
    // One column of infinity beside a column of ones: at the border only the ones count.
    let (height, width, channels) = (4, 2, 32);
    let levels = Levels::packed(&[(height, width)]).unwrap();
    let value: Vec<f16> = (0..height * width * channels)
        .map(|i| match i / channels % width {
            0 => f16::ONE,
            _ => f16::INFINITY,
        })
        .collect();
    // Half a pixel outside on the left: half of a one. A whole pixel outside: nothing.
    let locations = [0.0f32, 0.5, -0.5 / width as f32, 0.5];
    let sizes = Sizes {
        images: 1,
        pixels: levels.pixels(),
        heads: 1,
        channels,
        queries: 2,
        levels: 1,
        points: 1,
    };
    for wanted in [KernelChoice::Gather, KernelChoice::Channel] {
        let problem = Problem {
            sizes,
            value: OnDevice::new(&cuda, &value, &sizes.value()),
            locations: OnDevice::new(&cuda, &locations, &sizes.sampling_locations()),
            weights: OnDevice::new(&cuda, &[1.0f32, 1.0], &sizes.attention_weights()),
        };
        let mut out = OnDevice::poisoned(&cuda, DType::F16, &sizes.out());
        let cuda = cuda.with_msda(wanted);
        msda::forward(
            &Backend::Cuda(cuda),
            problem.inputs(&levels),
            out.view_mut(),
        )
        .unwrap();
        gpu::wait(&cuda);
        let out = out.buffer.to_vec::<f16>().unwrap();
        let (first, second) = out.split_at(channels);
        assert!(
            first.iter().all(|&x| x == f16::from_f32(0.5)),
            "{wanted:?}: {first:?}"
        );
        assert!(
            second.iter().all(|&x| x == f16::ZERO),
            "{wanted:?}: {second:?}"
        );
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn levels_that_lie_outside_are_empty_and_never_read() {
    let cuda = gpu::device();
    let sizes = Sizes {
        images: 1,
        pixels: 100,
        heads: 1,
        channels: 32,
        queries: 64,
        levels: 1,
        points: 4,
    };
    let problem = Problem::new::<f32>(&cuda, sizes);
    let nonsense: [(i64, i64, i64); 9] = [
        (-1, 10, 0),
        (10, -10, 0),
        (i64::MAX, i64::MAX, 0),
        (1 << 32, 1, 0),
        (10, 11, 0),
        (10, 10, 1),
        (10, 10, -1),
        (10, 10, i64::MIN),
        (0, 0, 1 << 40),
    ];
    for wanted in [KernelChoice::Gather, KernelChoice::Channel] {
        let cuda = cuda.with_msda(wanted);
        for (height, width, start) in nonsense {
            let shapes = Buffer::from_slice(cuda.context(), &[height, width]).unwrap();
            let starts = Buffer::from_slice(cuda.context(), &[start]).unwrap();
            // SAFETY: the buffers hold a pair and a number, and outlive the call's work.
            let levels = unsafe { CudaLevels::new(0, 1, shapes.as_ptr(), Some(starts.as_ptr())) };
            let mut out = OnDevice::poisoned(&cuda, DType::F32, &sizes.out());
            msda::forward(&Backend::Cuda(cuda), problem.inputs(levels), out.view_mut()).unwrap();
            gpu::wait(&cuda);
            let out = out.buffer.to_vec::<f32>().unwrap();
            assert!(
                out.iter().all(|&x| x == 0.0),
                "{wanted:?}: ({height}, {width}) at {start} gave something"
            );
        }
    }
}
