//! NaN, infinities and numbers near the end of the range: no fault, and nothing spreads where it should not.

use fourtap::cpu::{Cpu, Simd};
use fourtap::msda::{self, Gradients, Inputs, Levels, oracle};
use fourtap::verify::{HOSTILE, Storage, Tensor};
use fourtap::{Backend, DType, View, ViewMut};
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

/// Numbers in the range, one in four hostile.
fn numbers(rng: &mut Xoshiro256PlusPlus, hostile: bool) -> impl FnMut() -> f64 {
    move || match hostile && rng.random_bool(0.25) {
        true => *HOSTILE.choose(rng).unwrap(),
        false => rng.random_range(-0.01..1.01),
    }
}

/// Whether a sum of this magnitude may come out as infinity or NaN in one order of terms or another.
fn may_overflow(mass: f64, dtype: DType) -> bool {
    let limit = if dtype == DType::F16 { 6e4 } else { 1e37 };
    mass.is_nan() || mass >= limit
}

#[test]
fn locations_weights_and_values_of_any_kind_give_what_the_oracle_gives() {
    for seed in 0..1_000 {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let levels = Levels::packed(&[(3, 4), (1, 1)]).unwrap();
        let (q, m, d, p) = (5, 2, 19, 3);
        let dtype = *DType::ALL.choose(rng).unwrap();
        let where_hostile = rng.random_range(1..8);
        let mut tensor = |dtype, shape: &[usize], bit: i32| {
            let numbers = numbers(rng, where_hostile & bit != 0);
            Tensor::from_fn(dtype, shape, &Storage::dense(shape.len()), numbers)
        };
        let value = tensor(dtype, &[1, levels.pixels(), m, d], 1);
        let locations = tensor(DType::F32, &[1, q, m, 2, p, 2], 2);
        let weights = tensor(DType::F32, &[1, q, m, 2, p], 4);
        let inputs = Inputs {
            value: value.view(),
            levels: (&levels).into(),
            sampling_locations: locations.view(),
            attention_weights: weights.view(),
        };
        let reference = oracle::forward::<f64>(&inputs).unwrap();
        for simd in Simd::available() {
            let mut out = Tensor::poisoned(dtype, &[1, q, m * d], &Storage::dense(3));
            let backend = Backend::Cpu(Cpu::with_simd(simd).unwrap());
            msda::forward(&backend, inputs, out.view_mut()).unwrap();
            for (index, (found, expected)) in out.to_f64().into_iter().zip(&reference).enumerate() {
                let near = (found - expected.total).abs() <= 0.02 * (1.0 + expected.mass);
                assert!(
                    near || may_overflow(expected.mass, dtype),
                    "seed {seed}, {dtype} on {simd}: out[{index}] is {found}, the oracle says {expected:?}"
                );
            }
        }
    }
}

#[test]
fn a_sample_that_takes_no_part_gets_and_gives_nothing() {
    // One pixel of NaN: whoever reads it shows it. Points at no number, at infinity and outside must not.
    let levels = Levels::packed(&[(1, 1)]).unwrap();
    let outside = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        1e38,
        -1e38,
        1.5,
        -0.5,
        3e9,
    ];
    let (q, d) = (outside.len(), 33);
    let value = vec![f32::NAN; d];
    let locations: Vec<f32> = outside.iter().flat_map(|&x| [x, 0.5]).collect();
    let weights = vec![f32::INFINITY; q];
    let grad_out = vec![1.0f32; q * d];
    let inputs = Inputs {
        value: View::new(&value, &[1, 1, 1, d]),
        levels: (&levels).into(),
        sampling_locations: View::new(&locations, &[1, q, 1, 1, 1, 2]),
        attention_weights: View::new(&weights, &[1, q, 1, 1, 1]),
    };
    for simd in Simd::available() {
        let backend = Backend::Cpu(Cpu::with_simd(simd).unwrap());
        let mut out = vec![f32::NAN; q * d];
        msda::forward(&backend, inputs, ViewMut::new(&mut out, &[1, q, d])).unwrap();
        assert!(out.iter().all(|&x| x == 0.0), "{simd}: {out:?}");
        let [mut of_value, mut of_locations, mut of_weights] =
            [value.len(), locations.len(), weights.len()].map(|length| vec![f32::NAN; length]);
        let gradients = Gradients {
            value: Some(ViewMut::new(&mut of_value, &[1, 1, 1, d])),
            sampling_locations: Some(ViewMut::new(&mut of_locations, &[1, q, 1, 1, 1, 2])),
            attention_weights: Some(ViewMut::new(&mut of_weights, &[1, q, 1, 1, 1])),
        };
        msda::backward(
            &backend,
            inputs,
            View::new(&grad_out, &[1, q, d]),
            gradients,
        )
        .unwrap();
        for (name, gradient) in [
            ("value", of_value),
            ("locations", of_locations),
            ("weights", of_weights),
        ] {
            assert!(
                gradient.iter().all(|&x| x == 0.0),
                "{simd}: gradient of {name} is {gradient:?}"
            );
        }
    }
}

#[test]
fn small_integers_on_pixel_centres_are_exact() {
    let levels = Levels::packed(&[(4, 8)]).unwrap();
    let (d, q) = (40, 32);
    let value: Vec<f32> = (0..32 * d).map(|i| ((i * 7) % 23) as f32 - 11.0).collect();
    let locations: Vec<f32> = (0..q)
        .flat_map(|q| [((q % 8) as f32 + 0.5) / 8.0, ((q / 8) as f32 + 0.5) / 4.0])
        .collect();
    let weights: Vec<f32> = (0..q).map(|q| (q % 5) as f32 - 2.0).collect();
    let inputs = Inputs {
        value: View::new(&value, &[1, 32, 1, d]),
        levels: (&levels).into(),
        sampling_locations: View::new(&locations, &[1, q, 1, 1, 1, 2]),
        attention_weights: View::new(&weights, &[1, q, 1, 1, 1]),
    };
    for simd in Simd::available() {
        let mut out = vec![f32::NAN; q * d];
        let backend = Backend::Cpu(Cpu::with_simd(simd).unwrap());
        msda::forward(&backend, inputs, ViewMut::new(&mut out, &[1, q, d])).unwrap();
        for (i, &found) in out.iter().enumerate() {
            let expected = weights[i / d] * value[i];
            assert_eq!(found, expected, "{simd}: out[{i}]");
        }
    }
}
