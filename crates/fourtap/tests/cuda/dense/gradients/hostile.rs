//! NaN and infinity: what a query does not see contributes to no gradient, what it sees acts by the rules of arithmetic.

use fourtap::DType;
use fourtap::cuda::{Cuda, SpecialisedKernel};
use fourtap::dense::{Alignment, Mask, Options, Sizes};
use fourtap::verify::{
    DenseBackwardCase, DenseCase, DenseGradientSelection, DenseGradientTensors,
    DenseGradientsOnCuda, ExpectedDenseGradients, RandomMask, Storage, Tensor,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::{TYPES, kernels, ways};
use crate::gpu::{self, Tally};

fn sizes(queries: usize, keys: usize, channels: usize) -> Sizes {
    Sizes {
        batch: 1,
        query_heads: 2,
        key_heads: 1,
        queries,
        keys,
        channels,
        value_channels: channels,
    }
}

/// Logits around 1, and everything without gaps.
fn clean_case(seed: u64, dtype: DType, sizes: &Sizes, mask: Mask) -> DenseCase {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut tensor = |shape: &[usize]| {
        Tensor::from_fn(dtype, shape, &Storage::dense(4), || {
            rng.random_range(-1.0..1.0)
        })
    };
    DenseCase {
        seed,
        query: tensor(&sizes.query()),
        key: tensor(&sizes.key()),
        value: tensor(&sizes.value()),
        options: Options {
            mask,
            ..Options::default()
        },
        outputs: [4, 3].map(Storage::dense),
        attn_mask: None,
    }
}

/// The tensor with some numbers replaced.
fn changed(tensor: &Tensor, mut change: impl FnMut(usize, f64) -> f64) -> Tensor {
    let numbers = tensor.to_f64();
    let mut numbers = numbers.into_iter().enumerate();
    let storage = Storage::dense(tensor.shape().rank());
    Tensor::from_fn(tensor.dtype(), tensor.shape().sizes(), &storage, || {
        let (index, number) = numbers.next().expect("as many as there were");
        change(index, number)
    })
}

fn run(case: &DenseBackwardCase, cuda: Cuda) -> DenseGradientTensors {
    let mut on_device = DenseGradientsOnCuda::new(case, cuda, DenseGradientSelection::ALL).unwrap();
    on_device.backward().unwrap();
    on_device.read().unwrap()
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_row_of_nan_spoils_only_the_keys_it_sees() {
    let (queries, keys, spoiled) = (200, 250, 70);
    let mask = Mask::window(Alignment::TopLeft, Some(20), Some(0));
    for (number, channels) in [17, 64, 96, 128, 256].into_iter().enumerate() {
        let (dtype, sizes) = (TYPES[number % 2], sizes(queries, keys, channels));
        let clean = clean_case(2, dtype, &sizes, mask);
        // In the query, or in the gradient of the output, of both heads.
        for in_query in [true, false] {
            let mut forward = clean.clone();
            let spoil = |tensor: &Tensor| {
                changed(tensor, |index, number| {
                    match index / channels % queries == spoiled {
                        true => f64::NAN,
                        false => number,
                    }
                })
            };
            if in_query {
                forward.query = spoil(&forward.query);
            }
            let mut case = DenseBackwardCase::whole(forward).unwrap();
            if !in_query {
                case.grad_out = spoil(&case.grad_out);
            }
            let sees = |query: usize, key: usize| mask.visible(query, queries, keys).contains(&key);
            for cuda in ways(&gpu::device(), &case) {
                let found = run(&case, cuda);
                let what = format!("{dtype}, {channels} channels, in the query: {in_query}");
                let query = found.query.unwrap().to_f64();
                for (row, numbers) in query.chunks(channels).enumerate() {
                    let is_spoiled = row % queries == spoiled;
                    let all = numbers.iter().all(|x| x.is_nan() == is_spoiled);
                    assert!(all, "{what}: row {row}");
                }
                for tensor in [found.key, found.value] {
                    let tensor = tensor.unwrap().to_f64();
                    for (key, numbers) in tensor.chunks(channels).enumerate() {
                        let is_spoiled = sees(spoiled, key);
                        let all = numbers.iter().all(|x| x.is_nan() == is_spoiled);
                        assert!(all, "{what}: key {key}");
                    }
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn what_is_hidden_may_hold_anything() {
    // The first queries stand before the first key; the last keys are hidden by a bias, or by booleans.
    let (queries, keys, hidden) = (190, 170, 30);
    let mask = Mask::causal(Alignment::BottomRight);
    for (number, channels) in [8, 64, 128, 256].into_iter().enumerate() {
        let (dtype, sizes) = (TYPES[number % 2], sizes(queries, keys, channels));
        for with_bias in [false, true] {
            let mut forward = clean_case(3, dtype, &sizes, mask);
            let mut key = 0;
            let bias = Tensor::from_fn(dtype, &[keys], &Storage::dense(1), || {
                key += 1;
                match key > keys - hidden {
                    true => f64::NEG_INFINITY,
                    false => key as f64 / 100.0,
                }
            });
            let in_bias = |index: usize| index / channels % keys >= keys - hidden;
            if with_bias {
                forward.attn_mask = Some(RandomMask::Bias(bias));
                forward.key = changed(&forward.key, |index, number| match in_bias(index) {
                    true => f64::NAN,
                    false => number,
                });
                forward.value = changed(&forward.value, |index, number| match in_bias(index) {
                    true => f64::INFINITY,
                    false => number,
                });
            }
            let unseen = queries - keys;
            forward.query = changed(&forward.query, |index, number| {
                match index / channels % queries < unseen {
                    true => f64::NAN,
                    false => number,
                }
            });
            let mut case = DenseBackwardCase::whole(forward).unwrap();
            case.grad_out = changed(&case.grad_out, |index, number| {
                match index / channels % queries < unseen {
                    true => f64::INFINITY,
                    false => number,
                }
            });
            let expected = ExpectedDenseGradients::stored(&case).unwrap();
            for cuda in ways(&gpu::device(), &case) {
                let found = run(&case, cuda);
                if let Err(failure) = expected.compare(&found) {
                    panic!("{dtype}, {channels} channels, bias {with_bias}: {failure}");
                }
                let query = found.query.unwrap().to_f64();
                for (row, numbers) in query.chunks(channels).enumerate() {
                    let is_zero = numbers.iter().all(|&x| x == 0.0);
                    assert!(is_zero || row % queries >= unseen, "{dtype}, row {row}");
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn queries_that_have_the_lowest_bias_everywhere_match_the_oracle() {
    let device = gpu::device();
    // Neither is a whole number of tiles, and the last tile of keys is mostly empty.
    let (queries, keys, padding) = (190, 261, 30);
    for (number, channels) in [64, 128, 256, 64, 40].into_iter().enumerate() {
        let (dtype, sizes) = (TYPES[number % 2], sizes(queries, keys, channels));
        for bias_type in [dtype, DType::F32] {
            let lowest = match bias_type {
                DType::F16 => -65504.0,
                DType::BF16 => -3.389_531_389_251_535_5e38,
                _ => f64::from(f32::MIN),
            };
            let mut forward = clean_case(4, dtype, &sizes, Mask::default());
            let mut at = 0;
            let mut next = || {
                let (query, key) = (at / keys, at % keys);
                at += 1;
                let is_padding = query % 5 == 0 || key >= keys - padding;
                if is_padding { lowest } else { 0.0 }
            };
            let bias = Tensor::from_fn(bias_type, &[queries, keys], &Storage::dense(2), &mut next);
            forward.attn_mask = Some(RandomMask::Bias(bias));
            let case = DenseBackwardCase::whole(forward).unwrap();
            let naive = ExpectedDenseGradients::stored(&case).unwrap().naive;
            let expected = [&naive.query, &naive.key, &naive.value];
            for cuda in ways(&device, &case) {
                let found = run(&case, cuda);
                let found = [found.query, found.key, found.value].map(Option::unwrap);
                for (tensor, (found, naive)) in found.iter().zip(expected).enumerate() {
                    let totals = naive.iter().map(|sum| f64::from(sum.total));
                    let largest = totals.clone().map(f64::abs).fold(0.0, f64::max);
                    for (index, (found, expected)) in found.to_f64().iter().zip(totals).enumerate()
                    {
                        assert!(
                            (found - expected).abs() <= 2e-2 * largest,
                            "{dtype}, bias {bias_type}, {channels} channels, gradient {tensor}: {index} is {found}, \
                             not {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn numbers_of_any_kind_give_what_the_oracle_gives() {
    // Large queries and keys would make logits whose last bits decide everything.
    const HOSTILE: [f64; 4] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 30.0];
    const LARGE: [f64; 4] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e37];
    let (device, tally) = (gpu::device(), Tally::default());
    for seed in 0..200 {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let dtype = TYPES[seed as usize % 2];
        let channels = *[17, 32, 64, 128, 256].choose(rng).unwrap();
        let sizes = sizes(rng.random_range(1..200), rng.random_range(1..300), channels);
        let mask = *[Mask::default(), Mask::causal(Alignment::BottomRight)]
            .choose(rng)
            .unwrap();
        let mut spoil = |tensor: &mut Tensor, numbers: [f64; 4]| {
            let places: Vec<usize> = (0..rng.random_range(0..3))
                .map(|_| rng.random_range(0..tensor.len()))
                .collect();
            *tensor = changed(tensor, |index, number| match places.contains(&index) {
                true => *numbers.choose(rng).unwrap(),
                false => number,
            });
        };
        let mut forward = clean_case(seed, dtype, &sizes, mask);
        spoil(&mut forward.query, HOSTILE);
        spoil(&mut forward.key, HOSTILE);
        spoil(&mut forward.value, LARGE);
        if seed % 3 == 0 {
            forward = forward.with_mask();
        }
        let mut case = DenseBackwardCase::whole(forward).unwrap();
        spoil(&mut case.grad_out, LARGE);
        let naive = ExpectedDenseGradients::stored(&case).unwrap().naive;
        let expected = [
            Some(&naive.query),
            Some(&naive.key),
            Some(&naive.value),
            naive.bias.as_ref(),
        ];
        for cuda in ways(&device, &case) {
            let all = DenseGradientSelection::ALL;
            let mut on_device = DenseGradientsOnCuda::new(&case, cuda, all).unwrap();
            let plan = on_device.plan().unwrap();
            on_device.backward().unwrap();
            let found = on_device.read().unwrap();
            for ((name, found), naive) in found.named().into_iter().zip(expected) {
                let (Some(found), Some(naive)) = (found, naive) else {
                    continue;
                };
                let found = found.to_f64();
                let largest = (naive.iter().map(|sum| sum.total.abs()))
                    .filter(|number| number.is_finite())
                    .fold(1.0, f32::max);
                for (index, (&found, naive)) in found.iter().zip(naive).enumerate() {
                    let expected = f64::from(naive.total);
                    // Where numbers just overflow, one order of terms gives infinity and another NaN; f16 overflows sooner.
                    let limit = if dtype == DType::F16 { 6e4 } else { 1e36 };
                    let alike = found == expected
                        || !(found.is_finite() || expected.abs() < limit)
                        || (found - expected).abs() <= 2e-2 * f64::from(largest);
                    assert!(
                        alike,
                        "{dtype} of seed {seed}, {plan}: {name} {index} is {found}, not {expected}"
                    );
                }
            }
            tally.add(plan.steps().map(|step| step.kernel.entry()));
        }
    }
    let details = "results with NaN, infinities and huge numbers, 0 mismatches";
    tally.evidence(&device, "hostile", &kernels(), details);
}
