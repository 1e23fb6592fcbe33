//! Dense attention on every path of every backend against the f64 oracle.

use fourtap::cpu::Simd;
use fourtap::dense::{Alignment, Mask, Options, Sizes};
use fourtap::verify::{DenseCase, ExpectedDenseResults, Storage, Tensor, backends};
use fourtap::{Backend, DType};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rayon::prelude::*;

/// Problems in the ordinary test run; set `FOURTAP_CASES` for more.
const CASES: u64 = 2_000;

fn cases() -> u64 {
    std::env::var("FOURTAP_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(CASES)
}

/// What is wrong with a case, on any path.
fn failures(case: &DenseCase) -> Vec<String> {
    let expected = ExpectedDenseResults::new(case).unwrap();
    let failure = |simd: Simd| {
        let failed = |(with_lse, backend)| expected.check(case, backend, with_lse).err();
        let failure = [false, true]
            .iter()
            .copied()
            .zip(&backends(simd))
            .find_map(failed)?;
        let DenseCase {
            seed,
            query,
            key,
            value,
            options,
            ..
        } = case;
        Some(format!(
            "seed {seed} on {simd}, {} q {} k {} v {} {options:?} {:?}: {failure}",
            query.dtype(),
            query.shape(),
            key.shape(),
            value.shape(),
            case.attn_mask.as_ref().map(|mask| mask.view().shape()),
        ))
    };
    Simd::available().filter_map(failure).collect()
}

fn assert_none(failures: Vec<String>) {
    let shown: Vec<_> = failures.iter().take(20).map(String::as_str).collect();
    assert!(
        failures.is_empty(),
        "{} mismatches:\n{}",
        failures.len(),
        shown.join("\n")
    );
}

/// Rounding errors of equal terms are alike: the oracle's own, or those of one naive order, may be far from those of another.
#[test]
fn means_of_equal_values_match_the_oracle() {
    for seed in [23447, 49507, 41786] {
        assert_none(failures(&DenseCase::random(seed)));
    }
}

#[test]
fn every_path_agrees_with_the_oracle() {
    let check = |seed| failures(&DenseCase::random(seed));
    assert_none((0..cases()).into_par_iter().flat_map_iter(check).collect());
}

#[test]
fn every_path_agrees_with_the_oracle_on_masks_and_biases() {
    let check = |seed| failures(&DenseCase::random(seed).with_mask());
    assert_none((0..cases()).into_par_iter().flat_map_iter(check).collect());
}

#[test]
fn a_single_key_and_values_that_cancel_agree_with_the_oracle() {
    // Found among 30,000 problems: of one key, whose weight must be 1, and of values of one channel that cancel, where
    // weights rounded to bf16 are not enough.
    for seed in [2962, 9803, 11826, 15530] {
        assert_none(failures(&DenseCase::random(seed)));
    }
}

#[test]
fn lengths_around_the_steps_agree_with_the_oracle() {
    let mut problems = Vec::new();
    for (queries, keys, channels) in [
        (1, 1, 256),
        (239, 1, 64),
        (799, 3, 96),
        (113, 203, 128),
        (113, 203, 256),
        (1023, 1024, 32),
        (2048, 2047, 16),
        (1, 4097, 64),
        (127, 129, 72),
    ] {
        for (key_heads, group) in [(1, 1), (1, 2)] {
            for dtype in DType::ALL {
                problems.push((
                    dtype,
                    Sizes {
                        batch: 1,
                        query_heads: key_heads * group,
                        key_heads,
                        queries,
                        keys,
                        channels,
                        value_channels: channels,
                    },
                ));
            }
        }
    }
    let check = |(seed, (dtype, sizes)): (usize, (DType, Sizes))| {
        failures(&DenseCase::with_sizes(seed as u64, dtype, &sizes))
    };
    assert_none(
        problems
            .into_par_iter()
            .enumerate()
            .flat_map_iter(check)
            .collect(),
    );
}

#[test]
fn very_large_and_very_small_numbers_agree_with_the_oracle() {
    let sizes = Sizes {
        batch: 1,
        query_heads: 2,
        key_heads: 1,
        queries: 40,
        keys: 300,
        channels: 24,
        value_channels: 40,
    };
    // Exponents of queries, keys and values; among them numbers of bf16 that are not normal.
    for (seed, [query, key, value]) in [
        [0, 0, -90],
        [0, 0, -120],
        [0, 0, -130],
        [0, 0, 100],
        [-70, 70, 0],
        [100, -100, 0],
        [-128, 125, 0],
        [120, -130, 0],
        [-50, 50, 55],
    ]
    .into_iter()
    .enumerate()
    {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed as u64);
        let mut tensor = |shape: &[usize], exponent: i32| {
            Tensor::from_fn(DType::BF16, shape, &Storage::dense(4), || {
                rng.random_range(-1.0..1.0) * 2f64.powi(exponent)
            })
        };
        let case = DenseCase {
            seed: seed as u64,
            query: tensor(&sizes.query(), query),
            key: tensor(&sizes.key(), key),
            value: tensor(&sizes.value(), value),
            options: Options {
                mask: Mask::causal(Alignment::BottomRight),
                ..Options::default()
            },
            outputs: [4, 3].map(Storage::dense),
            attn_mask: None,
        };
        assert_none(failures(&case));
    }
}

#[test]
fn small_faults_are_noticed() {
    let sizes = Sizes {
        batch: 1,
        query_heads: 2,
        key_heads: 1,
        queries: 100,
        keys: 130,
        channels: 32,
        value_channels: 32,
    };
    let right = Options {
        scale: Some(0.2),
        mask: Mask::window(Alignment::TopLeft, Some(90), Some(20)),
    };
    for (dtype, wrong_scale) in [
        (DType::F64, 0.2 + 1e-13),
        (DType::F32, 0.2 + 1e-5),
        (DType::F16, 0.203),
        (DType::BF16, 0.22),
    ] {
        // Logits around 1: of peaked ones, a key more or less makes no difference.
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(1);
        let mut tensor = |shape: &[usize]| {
            Tensor::from_fn(dtype, shape, &Storage::dense(4), || {
                rng.random_range(-1.0..1.0)
            })
        };
        let case = DenseCase {
            seed: 1,
            query: tensor(&sizes.query()),
            key: tensor(&sizes.key()),
            value: tensor(&sizes.value()),
            options: right,
            outputs: [4, 3].map(Storage::dense),
            attn_mask: None,
        };
        let expected = ExpectedDenseResults::new(&case).unwrap();
        let check = |options: Options| {
            let case = DenseCase {
                options,
                ..case.clone()
            };
            expected.check(&case, &Backend::default(), true)
        };
        assert!(check(right).is_ok());
        let faults = [
            Options {
                scale: Some(wrong_scale),
                ..right
            },
            Options {
                mask: Mask::window(Alignment::TopLeft, Some(89), Some(20)),
                ..right
            },
            Options {
                mask: Mask::window(Alignment::TopLeft, Some(90), Some(21)),
                ..right
            },
        ];
        for fault in faults {
            assert!(check(fault).is_err(), "{dtype}: {fault:?} was not noticed");
        }
    }
}
