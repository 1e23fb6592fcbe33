//! Tuning parameters change the speed of a kernel, never its result; and its rounding only where that is declared.

use fourtap::cpu::Cpu;
use fourtap::tuning::{Choice, Space};
use fourtap::verify::{Case, ExpectedResults};
use fourtap::{Backend, View, ViewMut, dense, msda};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

fn random(rng: &mut Xoshiro256PlusPlus, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// Every value of every parameter, the others at their defaults, that this processor can do.
fn single_changes(space: &Space) -> Vec<(Choice, Cpu)> {
    let mut all = Vec::new();
    for parameter in space.parameters {
        for &value in parameter.values {
            let choice = space.defaults().with(parameter.name, value);
            if let Ok(cpu) = Cpu::new().with_choice(&choice) {
                all.push((choice, cpu));
            }
        }
    }
    all
}

#[test]
fn every_choice_about_deformable_attention_is_right() {
    let cases = (0..6).map(Case::random).map(|case| {
        let expected = ExpectedResults::new(&case).unwrap();
        (case, expected)
    });
    let cases: Vec<_> = cases.collect();
    for kernel in ["cpu-msda-forward", "cpu-msda-backward"] {
        for (choice, cpu) in single_changes(Space::named(kernel).unwrap()) {
            for (case, expected) in &cases {
                if let Err(failure) = expected.check(case, &Backend::Cpu(cpu)) {
                    panic!("{kernel} with {choice}, seed {}: {failure}", case.seed);
                }
            }
        }
    }
}

/// Large enough to be cut in every way: 2 images, 3000 queries, levels of 3.8 MB and less.
#[test]
fn bits_change_only_where_it_is_declared() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
    let levels = msda::Levels::packed(&[(170, 170), (40, 40)]).unwrap();
    let (n, q, m, d, l, p, s) = (2, 3000, 1, 32, 2, 4, levels.pixels());
    let value = random(&mut rng, n * s * m * d);
    let locations = random(&mut rng, n * q * m * l * p * 2);
    let weights = random(&mut rng, n * q * m * l * p);
    let grad_out = random(&mut rng, n * q * m * d);
    let inputs = msda::Inputs {
        value: View::new(&value, &[n, s, m, d]),
        levels: (&levels).into(),
        sampling_locations: View::new(&locations, &[n, q, m, l, p, 2]),
        attention_weights: View::new(&weights, &[n, q, m, l, p]),
    };
    let forward = |cpu: Cpu| {
        let mut out = vec![f32::NAN; n * q * m * d];
        let view = ViewMut::new(&mut out, &[n, q, m * d]);
        msda::forward(&Backend::Cpu(cpu), inputs, view).unwrap();
        out
    };
    let backward = |cpu: Cpu| {
        let mut gradient = vec![f32::NAN; n * s * m * d];
        let gradients = msda::Gradients {
            value: Some(ViewMut::new(&mut gradient, &[n, s, m, d])),
            ..msda::Gradients::default()
        };
        let grad_out = View::new(&grad_out, &[n, q, m * d]);
        msda::backward(&Backend::Cpu(cpu), inputs, grad_out, gradients).unwrap();
        gradient
    };
    expect_bits("cpu-msda-forward", &forward);
    expect_bits("cpu-msda-backward", &backward);
}

#[test]
fn bits_of_dense_attention_change_only_where_it_is_declared() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(6);
    let shape = [1, 3, 700, 32];
    let tensors: [Vec<f32>; 3] = [(); 3].map(|()| random(&mut rng, 3 * 700 * 32));
    let [query, key, value] = tensors.each_ref().map(|data| View::new(data, &shape));
    let forward = |cpu: Cpu| {
        let mut out = vec![f32::NAN; tensors[0].len()];
        let outputs = dense::Outputs {
            out: ViewMut::new(&mut out, &shape),
            lse: None,
        };
        let inputs = dense::Inputs {
            query,
            key,
            value,
            attn_mask: None,
        };
        dense::forward(
            &Backend::Cpu(cpu),
            inputs,
            dense::Options::default(),
            outputs,
        )
        .unwrap();
        out
    };
    expect_bits("cpu-dense-forward", &forward);
}

fn expect_bits(kernel: &str, compute: &dyn Fn(Cpu) -> Vec<f32>) {
    let bits = |numbers: Vec<f32>| -> Vec<u32> { numbers.iter().map(|it| it.to_bits()).collect() };
    let space = Space::named(kernel).unwrap();
    let usual = compute(Cpu::new().with_choice(&space.defaults()).unwrap());
    assert!(usual.iter().all(|number| number.is_finite()));
    let usual = bits(usual);
    for (choice, cpu) in single_changes(space) {
        if space.keeps_bits(&choice) {
            assert!(bits(compute(cpu)) == usual, "{kernel} with {choice}");
        }
    }
}
