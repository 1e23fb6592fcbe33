//! NaN and infinity in dense attention: what a query does not see never touches its row, what it sees acts by the rules
//! of arithmetic.

use fourtap::cpu::{Cpu, Simd};
use fourtap::dense::{self, Alignment, Inputs, Mask, Options, Outputs, oracle};
use fourtap::{Backend, DType, Element, View, ViewMut, bf16, f16};
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

const HOSTILE: [f32; 4] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38];

/// How far two results may be apart that were added up in different ways.
fn near<E: Element>() -> f32 {
    match E::DTYPE {
        DType::F16 => 2e-3,
        DType::BF16 => 1.6e-2,
        _ => 1e-6,
    }
}

/// One sequence, one head.
struct Problem<E> {
    queries: usize,
    keys: usize,
    channels: usize,
    query: Vec<E>,
    key: Vec<E>,
    value: Vec<E>,
}

impl<E: Element> Problem<E> {
    fn new(seed: u64, queries: usize, keys: usize, channels: usize) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut random = |count: usize| -> Vec<E> {
            (0..count)
                .map(|_| E::from_f64(rng.random_range(-1.0..1.0)))
                .collect()
        };
        Problem {
            queries,
            keys,
            channels,
            query: random(queries * channels),
            key: random(keys * channels),
            value: random(keys * channels),
        }
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            query: View::new(&self.query, &[1, 1, self.queries, self.channels]),
            key: View::new(&self.key, &[1, 1, self.keys, self.channels]),
            value: View::new(&self.value, &[1, 1, self.keys, self.channels]),
            attn_mask: None,
        }
    }

    fn run(&self, simd: Simd, mask: Mask) -> (Vec<f32>, Vec<f32>) {
        let backend = Backend::Cpu(Cpu::with_simd(simd).unwrap());
        let (mut out, mut lse) = (
            vec![E::from_f64(f64::NAN); self.query.len()],
            vec![f32::NAN; self.queries],
        );
        let outputs = Outputs {
            out: ViewMut::new(&mut out, &[1, 1, self.queries, self.channels]),
            lse: Some(ViewMut::new(&mut lse, &[1, 1, self.queries])),
        };
        let options = Options {
            mask,
            ..Options::default()
        };
        dense::forward(&backend, self.inputs(), options, outputs).unwrap();
        (out.iter().map(|x| x.to_f64() as f32).collect(), lse)
    }
}

#[test]
fn keys_that_a_query_does_not_see_never_touch_its_row() {
    hidden_keys_never_touch_a_row::<f32>();
    hidden_keys_never_touch_a_row::<f16>();
    hidden_keys_never_touch_a_row::<bf16>();
}

fn hidden_keys_never_touch_a_row<E: Element>() {
    for (queries, keys, channels) in [(5, 9, 3), (100, 150, 17), (70, 290, 64)] {
        for mask in [
            Mask::causal(Alignment::TopLeft),
            Mask::window(Alignment::TopLeft, Some(3), Some(2)),
            Mask::window(Alignment::TopLeft, Some(70), Some(0)),
        ] {
            let clean = Problem::<E>::new(1, queries, keys, channels);
            for spoiled in [0, 2, queries / 2, queries - 1, keys - 1] {
                let mut dirty = Problem::<E>::new(1, queries, keys, channels);
                let at = spoiled * channels..(spoiled + 1) * channels;
                dirty.key[at.clone()].fill(E::from_f64(f64::NAN));
                dirty.value[at].fill(E::from_f64(f64::NAN));
                for simd in Simd::available() {
                    let ((clean_out, clean_lse), (out, lse)) =
                        (clean.run(simd, mask), dirty.run(simd, mask));
                    for query in 0..queries {
                        let row = query * channels..(query + 1) * channels;
                        let sees = mask.visible(query, queries, keys).contains(&spoiled);
                        let what = format!(
                            "{} on {simd}, {mask:?}: query {query}, NaN at key {spoiled}",
                            E::DTYPE
                        );
                        if sees {
                            assert!(out[row].iter().all(|x| x.is_nan()), "{what}");
                            assert!(lse[query].is_nan(), "{what}");
                            continue;
                        }
                        // Rows beside a NaN are added up in another way, but for those made of tiles.
                        let tiles = simd == Simd::Amx && E::DTYPE.size() == 2;
                        let apart = if tiles { 0.0 } else { near::<E>() };
                        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= apart;
                        assert!(
                            out[row.clone()].iter().zip(&clean_out[row]).all(near),
                            "{what}"
                        );
                        assert_eq!(lse[query], clean_lse[query], "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn padding_after_the_last_key_may_hold_anything() {
    padding_may_hold_anything::<f32>();
    padding_may_hold_anything::<f16>();
    padding_may_hold_anything::<bf16>();
}

fn padding_may_hold_anything<E: Element>() {
    // Queries that see the first 70 of 128 keys; the rest is what was left in memory.
    let (queries, keys, seen, channels) = (3, 128, 70, 32);
    let mut problem = Problem::<E>::new(2, queries, keys, channels);
    let mask = Mask::window(Alignment::TopLeft, None, Some(seen - queries));
    let clean: Vec<_> = Simd::available()
        .map(|simd| problem.run(simd, mask))
        .collect();
    for numbers in [&mut problem.key, &mut problem.value] {
        for (index, number) in numbers[seen * channels..].iter_mut().enumerate() {
            *number = E::from_f64(HOSTILE[index % HOSTILE.len()].into());
        }
    }
    for (simd, (clean, _)) in Simd::available().zip(clean) {
        let (out, _) = problem.run(simd, mask);
        for (a, b) in out.iter().zip(&clean) {
            assert!(
                (a - b).abs() <= near::<E>(),
                "{} on {simd}: {a} is not {b}",
                E::DTYPE
            );
        }
    }
}

#[test]
fn numbers_of_any_kind_give_what_the_oracle_gives() {
    any_numbers_give_what_the_oracle_gives::<f32>();
    any_numbers_give_what_the_oracle_gives::<f16>();
    any_numbers_give_what_the_oracle_gives::<bf16>();
}

fn any_numbers_give_what_the_oracle_gives<E: Element>() {
    for seed in 0..300 {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut problem =
            Problem::<E>::new(seed, rng.random_range(1..80), rng.random_range(1..300), 5);
        for numbers in [&mut problem.query, &mut problem.key, &mut problem.value] {
            for _ in 0..rng.random_range(0..3) {
                let at = rng.random_range(0..numbers.len());
                numbers[at] = E::from_f64((*HOSTILE.choose(rng).unwrap()).into());
            }
        }
        let mask = *[Mask::default(), Mask::causal(Alignment::BottomRight)]
            .choose(rng)
            .unwrap();
        let options = Options {
            mask,
            ..Options::default()
        };
        let naive = oracle::forward::<f32>(&problem.inputs(), options).unwrap();
        for simd in Simd::available() {
            let (out, lse) = problem.run(simd, mask);
            let found = out.iter().chain(&lse);
            let expected = naive.out.iter().chain(&naive.lse);
            for (index, (&found, expected)) in found.zip(expected).enumerate() {
                let expected = expected.total;
                // Where a weight is just not 0, one order of terms gives infinity and another NaN.
                let alike = found == expected
                    || !(found.is_finite() || expected.is_finite())
                    || (found - expected).abs() <= near::<E>().max(1e-3) * expected.abs().max(1.0);
                assert!(
                    alike,
                    "{} of seed {seed} on {simd}: element {index} is {found}, not {expected}",
                    E::DTYPE
                );
            }
        }
    }
}

#[test]
fn a_logit_of_minus_infinity_is_no_weight_and_of_plus_infinity_no_number() {
    infinite_logits_are_no_weight_or_no_number::<f32>();
    infinite_logits_are_no_weight_or_no_number::<f16>();
    infinite_logits_are_no_weight_or_no_number::<bf16>();
}

fn infinite_logits_are_no_weight_or_no_number<E: Element>() {
    let all = |numbers: &[f64]| numbers.iter().map(|&x| E::from_f64(x)).collect();
    let run = |query: f64, key: [f64; 2], simd: Simd| {
        let problem = Problem::<E> {
            queries: 1,
            keys: 2,
            channels: 1,
            query: all(&[query]),
            key: all(&key),
            value: all(&[3.0, 5.0]),
        };
        let (out, lse) = problem.run(simd, Mask::default());
        (out[0], lse[0])
    };
    let infinite = f64::INFINITY;
    let lowest = f32::NEG_INFINITY;
    for simd in Simd::available() {
        assert_eq!(run(1.0, [-infinite, 0.0], simd), (5.0, 0.0));
        assert_eq!(run(-1.0, [infinite, 0.0], simd), (5.0, 0.0));
        assert_eq!(run(1.0, [-infinite; 2], simd), (0.0, lowest));
        let (out, lse) = run(1.0, [infinite, 0.0], simd);
        assert!(out.is_nan() && lse.is_nan());
    }
}
