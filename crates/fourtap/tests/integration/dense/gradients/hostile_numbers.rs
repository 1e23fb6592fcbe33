//! NaN and infinity: what a query does not see contributes to no gradient, what it sees acts by the rules of arithmetic.

use fourtap::cpu::{Cpu, Simd};
use fourtap::dense::{self, Alignment, Mask, Options, Sizes};
use fourtap::verify::{
    DenseBackwardCase, DenseCase, DenseGradientSelection, DenseGradientTensors,
    ExpectedDenseGradients, Storage, Tensor,
};
use fourtap::{Backend, DType};
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn sizes(queries: usize, keys: usize) -> Sizes {
    Sizes {
        batch: 1,
        query_heads: 2,
        key_heads: 1,
        queries,
        keys,
        channels: 17,
        value_channels: 9,
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

fn run(case: &DenseBackwardCase, simd: Simd) -> DenseGradientTensors {
    let mut found = DenseGradientTensors::poisoned(case, DenseGradientSelection::ALL);
    let (inputs, options) = (case.forward.inputs(), case.forward.options);
    let (results, grad_out) = (case.results(), case.grad_out());
    let backend = Backend::Cpu(Cpu::with_simd(simd).unwrap());
    dense::backward(&backend, inputs, options, results, grad_out, found.views()).unwrap();
    found
}

#[test]
fn keys_that_no_query_sees_may_hold_anything() {
    for dtype in DTYPES {
        // The last keys are seen by no query, some in the tile of others that are.
        let (queries, keys, seen) = (40, 150, 70);
        let sizes = sizes(queries, keys);
        let mask = Mask::window(Alignment::TopLeft, None, Some(seen - queries));
        let clean = clean_case(1, dtype, &sizes, mask);
        let spoil = |tensor: &Tensor, channels: usize| {
            changed(tensor, |index, number| match index / channels >= seen {
                true => [f64::NAN, f64::INFINITY, -f64::INFINITY][index % 3],
                false => number,
            })
        };
        let clean = DenseBackwardCase::new(clean).unwrap();
        let mut dirty = clean.clone();
        dirty.forward.key = spoil(&clean.forward.key, sizes.channels);
        dirty.forward.value = spoil(&clean.forward.value, sizes.value_channels);
        let expected = ExpectedDenseGradients::new(&clean).unwrap();
        for simd in Simd::available() {
            let found = run(&dirty, simd);
            expected
                .compare(&found)
                .unwrap_or_else(|failure| panic!("{dtype} on {simd}: {failure}"));
            for (tensor, channels) in [
                (found.key, sizes.channels),
                (found.value, sizes.value_channels),
            ] {
                let of_unseen = &tensor.unwrap().to_f64()[seen * channels..];
                assert!(of_unseen.iter().all(|&x| x == 0.0), "{dtype} on {simd}");
            }
        }
    }
}

#[test]
fn a_row_of_nan_spoils_only_the_keys_it_sees() {
    for dtype in DTYPES {
        let (queries, keys, spoiled) = (100, 150, 30);
        let sizes = sizes(queries, keys);
        let mask = Mask::window(Alignment::TopLeft, Some(20), Some(0));
        let clean = clean_case(2, dtype, &sizes, mask);
        // In the query, or in the gradient of the output, of both heads.
        for in_query in [true, false] {
            let mut forward = clean.clone();
            let spoil = |tensor: &Tensor, channels: usize| {
                changed(tensor, |index, number| {
                    match index / channels % queries == spoiled {
                        true => f64::NAN,
                        false => number,
                    }
                })
            };
            if in_query {
                forward.query = spoil(&forward.query, sizes.channels);
            }
            let mut case = DenseBackwardCase::new(forward).unwrap();
            if !in_query {
                case.grad_out = spoil(&case.grad_out, sizes.value_channels);
            }
            let sees = |query: usize, key: usize| mask.visible(query, queries, keys).contains(&key);
            for simd in Simd::available() {
                let found = run(&case, simd);
                let what = format!("{dtype} on {simd}, in the query: {in_query}");
                let query = found.query.unwrap().to_f64();
                for (row, numbers) in query.chunks(sizes.channels).enumerate() {
                    let is_spoiled = row % queries == spoiled;
                    let all = numbers.iter().all(|x| x.is_nan() == is_spoiled);
                    assert!(all, "{what}: row {row}");
                }
                for (tensor, channels) in [
                    (found.key, sizes.channels),
                    (found.value, sizes.value_channels),
                ] {
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
fn rows_without_keys_get_zeros_and_give_nothing() {
    // The first queries stand before the first key, whatever they hold.
    let (queries, keys) = (90, 70);
    let sizes = sizes(queries, keys);
    let mask = Mask::causal(Alignment::BottomRight);
    for dtype in DTYPES {
        let mut forward = clean_case(3, dtype, &sizes, mask);
        let hidden = queries - keys;
        forward.query = changed(&forward.query, |index, number| {
            match index / sizes.channels % queries < hidden {
                true => f64::NAN,
                false => number,
            }
        });
        let mut case = DenseBackwardCase::new(forward).unwrap();
        case.grad_out = changed(&case.grad_out, |index, number| {
            match index / sizes.value_channels % queries < hidden {
                true => f64::INFINITY,
                false => number,
            }
        });
        let expected = ExpectedDenseGradients::new(&case).unwrap();
        for simd in Simd::available() {
            let found = run(&case, simd);
            expected
                .compare(&found)
                .unwrap_or_else(|failure| panic!("{dtype} on {simd}: {failure}"));
            let query = found.query.unwrap().to_f64();
            for (row, numbers) in query.chunks(sizes.channels).enumerate() {
                let is_zero = numbers.iter().all(|&x| x == 0.0);
                assert!(is_zero || row % queries >= hidden, "{dtype} on {simd}");
            }
        }
    }
}

#[test]
fn numbers_of_any_kind_give_what_the_oracle_gives() {
    // Large queries and keys would make logits whose last bits decide everything.
    const HOSTILE: [f64; 4] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 30.0];
    const LARGE: [f64; 4] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e37];
    for seed in 0..300 {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let dtype = *DTYPES.choose(rng).unwrap();
        let sizes = sizes(rng.random_range(1..80), rng.random_range(1..200));
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
        let mut case = DenseBackwardCase::new(forward).unwrap();
        spoil(&mut case.grad_out, LARGE);
        let naive = ExpectedDenseGradients::new(&case).unwrap().naive;
        let naive = [&naive.query, &naive.key, &naive.value];
        for simd in Simd::available() {
            let found = run(&case, simd);
            for ((name, found), naive) in found.named().into_iter().zip(naive) {
                let found = found.unwrap().to_f64();
                let largest = (naive.iter().map(|sum| sum.total.abs()))
                    .filter(|number| number.is_finite())
                    .fold(1.0, f32::max);
                for (index, (&found, naive)) in found.iter().zip(naive).enumerate() {
                    let expected = f64::from(naive.total);
                    // Where numbers just overflow, one order of terms gives infinity and another NaN; 16-bit types overflow
                    // sooner.
                    let limit = if dtype == DType::F16 { 6e4 } else { 1e36 };
                    let alike = found == expected
                        || !(found.is_finite() || expected.abs() < limit)
                        || (found - expected).abs() <= 2e-2 * f64::from(largest);
                    assert!(
                        alike,
                        "{dtype} of seed {seed} on {simd}: {name} {index} is {found}, not {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_logit_of_minus_infinity_gives_nothing() {
    let one = |numbers: &[f32]| {
        let mut numbers = numbers.iter();
        let shape = [1, 1, numbers.len(), 1];
        Tensor::from_fn(DType::F32, &shape, &Storage::dense(4), || {
            f64::from(*numbers.next().unwrap())
        })
    };
    let case = |key: &[f32]| {
        DenseBackwardCase::new(DenseCase {
            seed: 0,
            query: one(&[1.0]),
            key: one(key),
            value: one(&[3.0, 5.0, 9.0]),
            options: Options::default(),
            outputs: [4, 3].map(Storage::dense),
            attn_mask: None,
        })
        .unwrap()
    };
    for simd in Simd::available() {
        // The first key has no weight, infinite as it is; the others have the same.
        let found = run(&case(&[f32::NEG_INFINITY, 0.0, 0.0]), simd);
        let [query, key, value] =
            [found.query, found.key, found.value].map(|it| it.unwrap().to_f64());
        let grad = case(&[0.0; 3]).grad_out.to_f64()[0];
        let near = |found: &[f64], expected: [f64; 3]| {
            let mut pairs = found.iter().zip(expected);
            assert!(
                pairs.all(|(a, b)| (a - b).abs() < 1e-6),
                "{simd}: {found:?} is not {expected:?}"
            );
        };
        near(&value, [0.0, 0.5 * grad, 0.5 * grad]);
        near(&key, [0.0, -grad, grad]);
        assert_eq!([query[0], key[0], value[0]], [0.0; 3], "{simd}");
        let found = run(&case(&[f32::NEG_INFINITY; 3]), simd);
        for tensor in [found.query, found.key, found.value] {
            assert!(tensor.unwrap().to_f64().iter().all(|&x| x == 0.0));
        }
    }
}
