//! Levels that do not tile the pixels in order, as only device memory can hold them, and levels too many to sort by.

use std::ops::{AddAssign, Range};

use fourtap::DType;
use fourtap::cuda::Cuda;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::{Level, Levels, oracle};
use fourtap::verify::{Case, CudaCase, ExpectedGradients, LevelsIn, Storage, Tensor};
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rayon::prelude::*;

use super::oracle::{BackwardSetting, SETTINGS, check, compute_and_compare};
use crate::gpu::{self, Tally};

/// A level as device memory claims it to be.
#[derive(Clone, Copy, Debug)]
struct ClaimedLevel {
    height: i64,
    width: i64,
    start: i64,
}

impl ClaimedLevel {
    /// The pixels it covers, unless it is nonsense.
    fn pixels(&self, all: usize) -> Option<Range<usize>> {
        let axis = 1..=i64::from(i32::MAX);
        if !axis.contains(&self.height) || !axis.contains(&self.width) {
            return None;
        }
        let start = usize::try_from(self.start).ok()?;
        let end = start.checked_add((self.height * self.width) as usize)?;
        (end <= all).then_some(start..end)
    }
}

/// Claims that no level can keep.
const NONSENSE: [[i64; 3]; 8] = [
    [-1, 3, 0],
    [3, -3, 0],
    [i64::MAX, i64::MAX, 0],
    [1 << 32, 1, 0],
    [2, 2, -1],
    [2, 2, i64::MIN],
    [2, 2, i64::MAX],
    [0, 0, 1 << 40],
];

/// A problem whose levels leave pixels out, share some, come in any order or are nonsense.
struct NonTilingProblem {
    case: Case,
    claims: Vec<ClaimedLevel>,
    /// Whether the starts are in device memory too; otherwise each level begins where the one before it ends.
    with_starts: bool,
}

impl NonTilingProblem {
    fn new(seed: u64) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let pixels = rng.random_range(5..150usize);
        let with_starts = rng.random_bool(0.75);
        let claims = loop {
            let count = pick(rng, &[1, 2, 3, 5, 17, 20]);
            let claims = claims(rng, count, pixels, with_starts);
            if !tile_in_order(&claims, pixels) {
                break claims;
            }
        };
        let case = random_case(rng, seed, pixels, claims.len(), Levels::default());
        NonTilingProblem {
            case,
            claims,
            with_starts,
        }
    }

    fn on_device(&self, cuda: Cuda) -> CudaCase<'_> {
        let shapes: Vec<i64> = self
            .claims
            .iter()
            .flat_map(|claim| [claim.height, claim.width])
            .collect();
        let starts: Vec<i64> = self.claims.iter().map(|claim| claim.start).collect();
        CudaCase::new(&self.case, cuda)
            .unwrap()
            .with_level_table(&shapes, self.with_starts.then_some(&starts))
            .unwrap()
    }

    /// Each level is a problem of its own to the oracle, and gradients add up.
    fn expected(&self) -> ExpectedGradients {
        let case = &self.case;
        let mut all = ExpectedGradients {
            exact: nothing(case),
            naive: nothing(case),
        };
        for (level, claim) in self.claims.iter().enumerate() {
            let Some(pixels) = claim.pixels(case.value.shape().sizes()[1]) else {
                continue;
            };
            let own = level..level + 1;
            let shape = (claim.height as usize, claim.width as usize);
            let expected = ExpectedGradients::new(&Case {
                seed: case.seed,
                levels: Levels::packed(&[shape]).unwrap(),
                value: part(&case.value, 1, &pixels),
                sampling_locations: part(&case.sampling_locations, 3, &own),
                attention_weights: part(&case.attention_weights, 3, &own),
                grad_out: case.grad_out.clone(),
                outputs: case.outputs.clone(),
            })
            .unwrap();
            let at = [
                places(&case.value, 1, &pixels),
                places(&case.sampling_locations, 3, &own),
                places(&case.attention_weights, 3, &own),
            ];
            add(&mut all.exact, &at, &expected.exact);
            add(&mut all.naive, &at, &expected.naive);
        }
        all
    }
}

fn pick<T: Copy>(rng: &mut Xoshiro256PlusPlus, from: &[T]) -> T {
    *from.choose(rng).unwrap()
}

fn claims(
    rng: &mut Xoshiro256PlusPlus,
    count: usize,
    pixels: usize,
    with_starts: bool,
) -> Vec<ClaimedLevel> {
    let mut next = 0;
    (0..count)
        .map(|_| {
            if with_starts && rng.random_bool(0.2) {
                let [height, width, start] = pick(rng, &NONSENSE);
                return ClaimedLevel {
                    height,
                    width,
                    start,
                };
            }
            let height = rng.random_range(1..=pixels.min(6));
            let width = rng.random_range(1..=(pixels / height).min(20));
            let start = match with_starts {
                true => rng.random_range(0..=pixels - height * width),
                false => next,
            };
            next = start + height * width;
            ClaimedLevel {
                height: height as i64,
                width: width as i64,
                start: start as i64,
            }
        })
        .collect()
}

/// Whether samples can be sorted by these levels, so that nobody need search.
fn tile_in_order(claims: &[ClaimedLevel], pixels: usize) -> bool {
    let mut next = 0;
    let in_order = claims
        .iter()
        .filter_map(|claim| claim.pixels(pixels))
        .all(|level| level.start == std::mem::replace(&mut next, level.end));
    in_order && next == pixels && claims.len() <= 16
}

fn random_case(
    rng: &mut Xoshiro256PlusPlus,
    seed: u64,
    pixels: usize,
    levels: usize,
    table: Levels,
) -> Case {
    let dtype = pick(rng, &DType::ALL);
    let [of_locations, of_weights] = [0, 1].map(|_| pick(rng, &[DType::F32, dtype]));
    let [n, m] = [0, 1].map(|_| pick(rng, &[1, 2]));
    let (q, p) = (pick(rng, &[1, 7, 20]), pick(rng, &[1, 4, 5]));
    let d = pick(rng, &[1, 8, 32, 33, 64]);
    let mut tensor = |dtype, shape: &[usize], range: Range<f64>| {
        Tensor::from_fn(dtype, shape, &Storage::dense(shape.len()), || {
            rng.random_range(range.clone())
        })
    };
    Case {
        seed,
        levels: table,
        value: tensor(dtype, &[n, pixels, m, d], -1.0..1.0),
        sampling_locations: tensor(of_locations, &[n, q, m, levels, p, 2], -0.2..1.2),
        attention_weights: tensor(of_weights, &[n, q, m, levels, p], -0.5..1.0),
        grad_out: tensor(dtype, &[n, q, m * d], -1.0..1.0),
        outputs: [3, 4, 6, 5].map(Storage::dense),
    }
}

/// More levels than samples are sorted by, in host memory too.
pub fn many_levels(seed: u64) -> Case {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let shapes: Vec<_> = (0..rng.random_range(17..30))
        .map(|_| (rng.random_range(1..4), rng.random_range(1..10)))
        .collect();
    let levels = Levels::packed(&shapes).unwrap();
    random_case(rng, seed, levels.pixels(), levels.len(), levels)
}

/// Where, in row-major order, the elements of a tensor with these indices on `axis` are.
fn places(tensor: &Tensor, axis: usize, range: &Range<usize>) -> Vec<usize> {
    let shape = tensor.shape();
    let (before, rest) = shape.sizes().split_at(axis);
    let (size, inner) = (rest[0], rest[1..].iter().product::<usize>());
    (0..before.iter().product())
        .flat_map(|row: usize| {
            let first = row * size;
            (first + range.start) * inner..(first + range.end) * inner
        })
        .collect()
}

/// Those elements as a tensor of their own.
fn part(tensor: &Tensor, axis: usize, range: &Range<usize>) -> Tensor {
    let numbers = tensor.to_f64();
    let mut places = places(tensor, axis, range).into_iter();
    let mut shape = tensor.shape().sizes().to_vec();
    shape[axis] = range.len();
    let next = || numbers[places.next().unwrap()];
    Tensor::from_fn(tensor.dtype(), &shape, &Storage::dense(shape.len()), next)
}

fn add<R: AddAssign + Copy>(
    all: &mut oracle::Gradients<R>,
    at: &[Vec<usize>; 3],
    part: &oracle::Gradients<R>,
) {
    let parts = [
        (&mut all.value, &part.value),
        (&mut all.sampling_locations, &part.sampling_locations),
        (&mut all.attention_weights, &part.attention_weights),
    ];
    for ((all, part), at) in parts.into_iter().zip(at) {
        assert_eq!(part.len(), at.len());
        for (&place, sum) in at.iter().zip(part) {
            all[place].total += sum.total;
            all[place].mass += sum.mass;
        }
    }
}

fn nothing<R: Default + Clone>(case: &Case) -> oracle::Gradients<R> {
    let zeros = |tensor: &Tensor| vec![oracle::Sum::default(); tensor.len()];
    oracle::Gradients {
        value: zeros(&case.value),
        sampling_locations: zeros(&case.sampling_locations),
        attention_weights: zeros(&case.attention_weights),
    }
}

#[test]
fn what_levels_give_one_by_one_adds_up_to_the_whole() {
    // A test of this file, not of the device: the expected gradients are right where the oracle can compute them itself.
    for case in (0..30).map(many_levels) {
        let whole = ExpectedGradients::new(&case).unwrap();
        let claim = |level: &Level| ClaimedLevel {
            height: level.height as i64,
            width: level.width as i64,
            start: level.start as i64,
        };
        let loose = NonTilingProblem {
            claims: case.levels.iter().map(claim).collect(),
            with_starts: true,
            case,
        };
        for (whole, parts) in whole.each().into_iter().zip(loose.expected().each()) {
            assert_eq!(whole.len(), parts.len());
            for (one, other) in whole.iter().zip(parts) {
                assert!((one.total - other.total).abs() <= 1e-12 * one.mass);
            }
        }
    }
}

/// Backward of problems with such levels in every way that can serve them; the host's memory holds none.
pub fn check_loose(
    cuda: &Cuda,
    seeds: Range<u64>,
    settings: &[(KernelChoice, bool)],
    tally: &Tally,
) {
    seeds.into_par_iter().for_each(|seed| {
        let loose = NonTilingProblem::new(seed);
        let (expected, on_device) = (loose.expected(), loose.on_device(*cuda));
        for &(wanted, deterministic) in settings {
            let setting = BackwardSetting {
                wanted,
                deterministic,
                levels: LevelsIn::Device,
            };
            let computed = compute_and_compare(&on_device, cuda, setting, &expected);
            // What sorts is launched too, and finds that it cannot.
            let serves = |kernel: &&str| kernel.ends_with("search") || kernel.contains("samples");
            tally.add(computed.into_iter().flat_map(|c| c.kernels).filter(serves));
        }
    });
}

#[test]
#[ignore = "needs a CUDA device"]
fn levels_that_do_not_tile_or_are_many_match_the_oracle() {
    let cuda = gpu::device();
    let tally = Tally::default();
    check_loose(&cuda, 0..200, &SETTINGS, &tally);
    check(
        &cuda,
        0..100,
        many_levels,
        &BackwardSetting::all(&SETTINGS),
        &tally,
    );
    tally.evidence(
        &cuda,
        "oracle",
        &["msda_backward_value_search"],
        "results of levels with gaps, overlaps and nonsense, or more than 16, every element, 0 mismatches",
    );
}
