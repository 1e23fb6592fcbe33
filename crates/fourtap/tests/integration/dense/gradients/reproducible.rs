//! Gradients are bitwise equal for any number of threads, any layout and any selection; and empty problems.

use fourtap::cpu::{Cpu, Simd, Tuning};
use fourtap::dense::{self, Sizes};
use fourtap::verify::{
    DenseBackwardCase, DenseCase, DenseGradientSelection, DenseGradientTensors, Storage, Tensor,
};
use fourtap::{Backend, DType};

const SIZES: Sizes = Sizes {
    batch: 2,
    query_heads: 4,
    key_heads: 2,
    queries: 150,
    keys: 203,
    channels: 40,
    value_channels: 24,
};

/// The numbers of each gradient.
fn run(
    case: &DenseBackwardCase,
    cpu: Cpu,
    selected: DenseGradientSelection,
) -> Vec<Option<Vec<f64>>> {
    let mut found = DenseGradientTensors::poisoned(case, selected);
    let (inputs, options) = (case.forward.inputs(), case.forward.options);
    let (results, grad_out) = (case.results(), case.grad_out());
    let backend = Backend::Cpu(cpu);
    dense::backward(&backend, inputs, options, results, grad_out, found.views()).unwrap();
    let found = found.named().into_iter();
    found
        .map(|(_, tensor)| tensor.map(Tensor::to_f64))
        .collect()
}

fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap()
        .install(work)
}

/// With a bias, or without, as the seed says.
fn case(seed: u64, dtype: DType, sizes: &Sizes) -> DenseBackwardCase {
    let case = DenseCase::with_sizes(seed, dtype, sizes);
    let case = if seed.is_multiple_of(2) {
        case
    } else {
        case.with_mask()
    };
    DenseBackwardCase::new(case).unwrap()
}

#[test]
fn results_are_bitwise_equal_for_any_number_of_threads() {
    for dtype in DType::ALL {
        for seed in 0..8 {
            let case = case(seed, dtype, &SIZES);
            for simd in Simd::available() {
                let cpu = Cpu::with_simd(simd).unwrap();
                let serial = cpu.with_tuning(Tuning {
                    serial_work: usize::MAX,
                    ..Tuning::default()
                });
                let one = run(&case, serial, DenseGradientSelection::ALL);
                // Tasks of a head each, of a few heads, and of parts of one.
                for threads in [1, 2, 3, 8, 37] {
                    let many =
                        with_threads(threads, || run(&case, cpu, DenseGradientSelection::ALL));
                    assert!(
                        one == many,
                        "{dtype} of seed {seed} on {simd} differs with {threads} threads"
                    );
                }
            }
        }
    }
}

#[test]
fn runs_are_bitwise_equal() {
    let case = case(1, DType::F32, &SIZES);
    let first = run(&case, Cpu::new(), DenseGradientSelection::ALL);
    for _ in 0..50 {
        assert!(first == run(&case, Cpu::new(), DenseGradientSelection::ALL));
    }
}

#[test]
fn a_gradient_has_the_same_bits_whichever_others_are_selected() {
    for seed in 0..6 {
        let case = case(seed, DType::BF16, &SIZES);
        let all = run(&case, Cpu::new(), DenseGradientSelection::ALL);
        for selected in DenseGradientSelection::choices() {
            for (one, all) in run(&case, Cpu::new(), selected).iter().zip(&all) {
                assert!(one.is_none() || one == all, "{selected:?} of seed {seed}");
            }
        }
    }
}

#[test]
fn strides_do_not_change_the_bits() {
    let heads_inside = Storage {
        order: vec![0, 2, 1, 3],
        ..Storage::dense(4)
    };
    let reversed = Storage {
        reversed: vec![false, true, true, false],
        ..Storage::dense(4)
    };
    let channels_apart = Storage {
        order: vec![3, 0, 1, 2],
        gaps: vec![0, 3, 0, 1],
        guard: 5,
        ..Storage::dense(4)
    };
    let laid_out = |tensor: &Tensor, storage: &Storage| {
        let mut numbers = tensor.to_f64().into_iter();
        Tensor::from_fn(tensor.dtype(), tensor.shape().sizes(), storage, || {
            numbers.next().expect("as many as there were")
        })
    };
    for dtype in DType::ALL {
        let case = case(11, dtype, &SIZES);
        for simd in Simd::available() {
            let cpu = Cpu::with_simd(simd).unwrap();
            let as_it_comes = run(&case, cpu, DenseGradientSelection::ALL);
            for storage in [
                &Storage::dense(4),
                &heads_inside,
                &reversed,
                &channels_apart,
            ] {
                let mut moved = case.clone();
                let forward = &mut moved.forward;
                for tensor in [
                    &mut forward.query,
                    &mut forward.key,
                    &mut forward.value,
                    &mut moved.out,
                    &mut moved.grad_out,
                ] {
                    *tensor = laid_out(tensor, storage);
                }
                for gradient in &mut moved.gradients[..3] {
                    *gradient = storage.clone();
                }
                assert!(
                    run(&moved, cpu, DenseGradientSelection::ALL) == as_it_comes,
                    "{dtype} on {simd}, {storage:?}"
                );
            }
        }
    }
}

#[test]
fn problems_with_nothing_in_them_are_legal() {
    for axis in 0..5 {
        let mut numbers = [2, 1, 3, 4, 5]; // B, Hk, group, Sq, Sk
        numbers[axis] = 0;
        let [batch, key_heads, group, queries, keys] = numbers;
        let sizes = Sizes {
            batch,
            query_heads: key_heads * group,
            key_heads,
            queries,
            keys,
            channels: 3,
            value_channels: 2,
        };
        for seed in 0..8 {
            let case = case(seed, DType::F32, &sizes);
            for simd in Simd::available() {
                let cpu = Cpu::with_simd(simd).unwrap();
                let found = run(&case, cpu, DenseGradientSelection::ALL);
                let numbers = found.into_iter().flatten().flatten();
                assert!(numbers.into_iter().all(|x| x == 0.0), "{simd}, {sizes:?}");
            }
        }
    }
}
