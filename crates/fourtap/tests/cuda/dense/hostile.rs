//! NaN and infinity: what a query does not see never touches its row, what it sees acts by the rules of arithmetic.

use fourtap::DType;
use fourtap::dense::{Alignment, Mask, Options, oracle};
use fourtap::verify::{DenseCase, DenseOnCuda, HOSTILE, RandomMask, Storage, Tensor};
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::{TYPES, forward_kernels, serving};
use crate::gpu;

/// One sequence and head; `spoil` changes what is at (tensor, row, channel), tensors counted from query.
pub fn case(
    seed: u64,
    dtype: DType,
    [queries, keys, channels]: [usize; 3],
    mask: Mask,
    mut spoil: impl FnMut(usize, usize, usize) -> Option<f64>,
) -> DenseCase {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut tensor = |which: usize, rows: usize| {
        let mut at = 0;
        Tensor::from_fn(dtype, &[1, 1, rows, channels], &Storage::dense(4), || {
            let (row, channel) = (at / channels, at % channels);
            at += 1;
            let usual = rng.random_range(-1.0..1.0);
            spoil(which, row, channel).unwrap_or(usual)
        })
    };
    DenseCase {
        seed,
        query: tensor(0, queries),
        key: tensor(1, keys),
        value: tensor(2, keys),
        options: Options { scale: None, mask },
        outputs: [4, 3].map(Storage::dense),
        attn_mask: None,
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn keys_that_a_query_does_not_see_never_touch_its_row() {
    let cuda = gpu::device();
    for (number, sizes) in [[5, 9, 8], [100, 150, 64], [70, 300, 19], [33, 80, 32]]
        .into_iter()
        .enumerate()
    {
        let [queries, keys, channels] = sizes;
        for mask in [
            Mask::causal(Alignment::TopLeft),
            Mask::window(Alignment::TopLeft, Some(3), Some(2)),
            Mask::window(Alignment::BottomRight, Some(70), Some(0)),
        ] {
            let dtype = TYPES[number % TYPES.len()];
            let clean = case(1, dtype, sizes, mask, |_, _, _| None);
            for spoiled in [0, 2, queries / 2, queries - 1, keys - 1] {
                let dirty = case(1, dtype, sizes, mask, |tensor, row, _| {
                    (tensor > 0 && row == spoiled).then_some(f64::NAN)
                });
                for cuda in serving(&cuda, &clean) {
                    let run = |case| DenseOnCuda::new(case, cuda).unwrap().forward(true).unwrap();
                    let [clean_out, clean_lse] = run(&clean).map(|tensor| tensor.to_f64());
                    let [out, lse] = run(&dirty).map(|tensor| tensor.to_f64());
                    for query in 0..queries {
                        let row = query * channels..(query + 1) * channels;
                        let what =
                            format!("{sizes:?} {mask:?}: query {query}, NaN at key {spoiled}");
                        if mask.visible(query, queries, keys).contains(&spoiled) {
                            assert!(out[row].iter().all(|x| x.is_nan()), "{what}");
                            assert!(lse[query].is_nan(), "{what}");
                            continue;
                        }
                        // Rows beside a NaN are added up in another way.
                        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 0.01;
                        let pairs = out[row.clone()].iter().zip(&clean_out[row]);
                        assert!({ pairs }.all(near), "{what}");
                        assert!((lse[query] - clean_lse[query]).abs() <= 1e-4, "{what}");
                    }
                }
            }
        }
    }
}

/// A mask that hides every key from a third of the queries, as booleans or as biases.
fn hiding(
    hides: impl Fn(usize, usize) -> bool,
    sizes: [usize; 2],
    bias: Option<DType>,
) -> RandomMask {
    let [queries, keys] = sizes;
    let mut at = 0;
    let mut next = || {
        let hidden = hides(at / keys, at % keys);
        at += 1;
        hidden
    };
    let tensor = |dtype, number: &mut dyn FnMut() -> f64| {
        Tensor::from_fn(dtype, &[queries, keys], &Storage::dense(2), number)
    };
    match bias {
        Some(dtype) => RandomMask::Bias(tensor(dtype, &mut || {
            if next() { f64::NEG_INFINITY } else { 0.5 }
        })),
        None => {
            let like = tensor(DType::F32, &mut || f64::from(u8::from(!next())));
            RandomMask::Seen {
                bytes: like
                    .bits()
                    .iter()
                    .map(|&bits| u8::from(bits != 0))
                    .collect(),
                like,
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn keys_that_a_tensor_hides_never_touch_a_row() {
    let cuda = gpu::device();
    let hides = |query: usize, key: usize| (query + key).is_multiple_of(3);
    for dtype in TYPES {
        for (bias, sizes) in [
            (None, [100, 150, 64]),
            (Some(dtype), [100, 150, 64]),
            (Some(DType::F32), [20, 700, 32]),
            (None, [3, 300, 19]),
        ] {
            let [queries, keys, channels] = sizes;
            let mask = hiding(hides, [queries, keys], bias);
            let with_mask = |spoiled: Option<(usize, f64)>| DenseCase {
                attn_mask: Some(mask.clone()),
                ..case(1, dtype, sizes, Mask::default(), |tensor, row, _| {
                    spoiled
                        .filter(|&(key, _)| tensor > 0 && row == key)
                        .map(|(_, with)| with)
                })
            };
            let clean = with_mask(None);
            for spoiled in [0, keys / 2, keys - 1] {
                for number in [f64::NAN, f64::INFINITY] {
                    let dirty = with_mask(Some((spoiled, number)));
                    for cuda in serving(&cuda, &clean) {
                        let run =
                            |case| DenseOnCuda::new(case, cuda).unwrap().forward(true).unwrap();
                        let [clean_out, clean_lse] = run(&clean).map(|tensor| tensor.to_f64());
                        let [out, lse] = run(&dirty).map(|tensor| tensor.to_f64());
                        for query in 0..queries {
                            let row = query * channels..(query + 1) * channels;
                            let what = format!(
                                "{dtype} {sizes:?} bias {bias:?}: query {query}, {number} at key {spoiled}"
                            );
                            if !hides(query, spoiled) {
                                assert!(
                                    !number.is_nan() || out[row].iter().all(|x| x.is_nan()),
                                    "{what}"
                                );
                                continue;
                            }
                            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 0.01;
                            let pairs = out[row.clone()].iter().zip(&clean_out[row]);
                            assert!({ pairs }.all(near), "{what}");
                            assert!((lse[query] - clean_lse[query]).abs() <= 1e-4, "{what}");
                        }
                    }
                }
            }
        }
    }
}

/// What is expected of each element: its value, and the sum of magnitudes.
fn expected_results(case: &DenseCase, dtype: DType) -> Vec<[f64; 2]> {
    let (inputs, options) = (case.inputs(), case.options);
    if dtype == DType::F64 {
        let expected = oracle::forward::<f64>(&inputs, options).unwrap();
        let all = expected.out.iter().chain(&expected.lse);
        return all.map(|sum| [sum.total, sum.mass]).collect();
    }
    let expected = oracle::forward::<f32>(&inputs, options).unwrap();
    let all = expected.out.iter().chain(&expected.lse);
    all.map(|sum| [f64::from(sum.total), f64::from(sum.mass)])
        .collect()
}

#[test]
#[ignore = "needs a CUDA device"]
fn numbers_of_any_kind_give_what_the_oracle_gives() {
    let cuda = gpu::device();
    for seed in 0..200u64 {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let sizes = [
            rng.random_range(1..80),
            rng.random_range(1..300),
            *[5, 32, 64].choose(rng).unwrap(),
        ];
        let mask = *[Mask::default(), Mask::causal(Alignment::BottomRight)]
            .choose(rng)
            .unwrap();
        let rarely = 1.0 / (sizes[1] * sizes[2]) as f64;
        let dtype = *TYPES.choose(rng).unwrap();
        let case = case(seed, dtype, sizes, mask, |_, _, _| {
            rng.random_bool(rarely)
                .then(|| *HOSTILE.choose(rng).unwrap())
        });
        let case = if seed % 3 == 0 {
            case.with_mask()
        } else {
            case
        };
        let expected = expected_results(&case, dtype);
        for cuda in serving(&cuda, &case) {
            let [out, lse] = DenseOnCuda::new(&case, cuda)
                .unwrap()
                .forward(true)
                .unwrap();
            let found = [out.to_f64(), lse.to_f64()].concat();
            for (index, (found, &[expected, mass])) in found.into_iter().zip(&expected).enumerate()
            {
                // Where a weight is just not 0, one order of terms gives infinity and another NaN.
                let alike = found == expected
                    || !(found.is_finite() || expected.is_finite())
                    || mass >= 6e4
                    || (found - expected).abs() <= 0.02 * expected.abs().max(1.0);
                assert!(
                    alike,
                    "seed {seed}, {dtype}, {sizes:?}: element {index} is {found}, not {expected}"
                );
            }
        }
    }
    let details = "200 problems in every form, NaN and infinity in every tensor, behind masks too";
    gpu::evidence(&cuda, "hostile", &forward_kernels(), details);
}
