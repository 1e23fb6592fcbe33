//! Dense attention: results are bitwise equal for any number of threads, any layout and any neighbours; and empty
//! problems.

use std::ops::Range;

use fourtap::cpu::{Cpu, Simd, Tuning};
use fourtap::dense::{self, Alignment, Inputs, Mask, Options, Outputs, Sizes};
use fourtap::verify::{DenseCase, Storage, Tensor};
use fourtap::{Backend, DType, Element, View, ViewMut, bf16, f16};

const SIZES: Sizes = Sizes {
    batch: 2,
    query_heads: 4,
    key_heads: 2,
    queries: 150,
    keys: 203,
    channels: 40,
    value_channels: 24,
};

fn run(case: &DenseCase, cpu: Cpu) -> [Vec<f64>; 2] {
    let sizes = *dense::Problem::new(&case.inputs(), case.options)
        .unwrap()
        .sizes();
    let dtype = case.query.dtype();
    let of_lse = if dtype == DType::F64 {
        DType::F64
    } else {
        DType::F32
    };
    let mut out = Tensor::poisoned(dtype, &sizes.out(), &Storage::dense(4));
    let mut lse = Tensor::poisoned(of_lse, &sizes.lse(), &Storage::dense(3));
    let outputs = Outputs {
        out: out.view_mut(),
        lse: Some(lse.view_mut()),
    };
    dense::forward(&Backend::Cpu(cpu), case.inputs(), case.options, outputs).unwrap();
    [out.to_f64(), lse.to_f64()]
}

fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap()
        .install(work)
}

/// The same numbers, lying otherwise.
fn laid_out(tensor: &Tensor, storage: &Storage) -> Tensor {
    let mut numbers = tensor.to_f64().into_iter();
    Tensor::from_fn(tensor.dtype(), tensor.shape().sizes(), storage, || {
        numbers.next().expect("as many as there were")
    })
}

#[test]
fn results_are_bitwise_equal_for_any_number_of_threads() {
    for (seed, dtype) in DType::ALL.into_iter().enumerate() {
        let case = DenseCase::with_sizes(seed as u64, dtype, &SIZES);
        for simd in Simd::available() {
            let cpu = Cpu::with_simd(simd).unwrap();
            let serial = cpu.with_tuning(Tuning {
                serial_work: usize::MAX,
                ..Tuning::default()
            });
            let one = run(&case, serial);
            for threads in [1, 2, 3, 8, 37] {
                let many = with_threads(threads, || run(&case, cpu));
                assert!(
                    one == many,
                    "{dtype} on {simd} differs with {threads} threads"
                );
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
    for dtype in DType::ALL {
        let case = DenseCase::with_sizes(11, dtype, &SIZES);
        for simd in Simd::available() {
            let cpu = Cpu::with_simd(simd).unwrap();
            let as_it_comes = run(&case, cpu);
            for storage in [
                &Storage::dense(4),
                &heads_inside,
                &reversed,
                &channels_apart,
            ] {
                let moved = DenseCase {
                    query: laid_out(&case.query, storage),
                    key: laid_out(&case.key, storage),
                    value: laid_out(&case.value, storage),
                    ..case.clone()
                };
                assert!(
                    run(&moved, cpu) == as_it_comes,
                    "{dtype} on {simd}, {storage:?}"
                );
            }
        }
    }
}

#[test]
fn a_query_alone_is_bitwise_equal_to_one_among_others() {
    alone_as_among_others::<f32>();
    alone_as_among_others::<f16>();
    alone_as_among_others::<bf16>();
}

fn alone_as_among_others<E: Element>() {
    let sizes = Sizes {
        queries: 400,
        keys: 600,
        ..SIZES
    };
    let case = DenseCase {
        options: Options {
            mask: Mask::window(Alignment::TopLeft, Some(190), Some(0)),
            ..Options::default()
        },
        ..DenseCase::with_sizes(5, E::DTYPE, &sizes)
    };
    let [all, _] = run(&case, Cpu::new());
    let (channels, values) = (sizes.channels, sizes.value_channels);
    // The first head's rows from one on.
    let rows = |tensor: &Tensor, rows: Range<usize>, channels: usize| -> Vec<E> {
        tensor.to_f64()[rows.start * channels..rows.end * channels]
            .iter()
            .map(|&x| E::from_f64(x))
            .collect()
    };
    for i in [0, 7, 64, 149, 255, 256, 391] {
        // The last query, aligned bottom right, of a sequence that ends where it stands.
        let query = rows(&case.query, i..i + 1, channels);
        let key = rows(&case.key, 0..i + 1, channels);
        let value = rows(&case.value, 0..i + 1, values);
        let inputs = Inputs {
            query: View::new(&query, &[1, 1, 1, channels]),
            key: View::new(&key, &[1, 1, i + 1, channels]),
            value: View::new(&value, &[1, 1, i + 1, values]),
            attn_mask: None,
        };
        let options = Options {
            mask: Mask::window(Alignment::BottomRight, Some(190), Some(0)),
            ..Options::default()
        };
        let mut out = vec![E::from_f64(f64::NAN); values];
        let view = ViewMut::new(&mut out, &[1, 1, 1, values]);
        dense::forward(&Backend::default(), inputs, options, view).unwrap();
        for (channel, &alone) in out.iter().enumerate() {
            assert_eq!(
                alone.to_f64(),
                all[i * values + channel],
                "{}: query {i}, channel {channel}",
                E::DTYPE
            );
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
        let case = DenseCase::with_sizes(axis as u64, DType::F32, &sizes);
        for simd in Simd::available() {
            let [out, lse] = run(&case, Cpu::with_simd(simd).unwrap());
            if keys > 0 {
                assert!(out.is_empty() && lse.is_empty());
            } else {
                assert!(
                    !out.is_empty() && out.iter().all(|&x| x == 0.0),
                    "{simd}: {out:?}"
                );
                assert!(
                    lse.iter().all(|&x| x == f64::NEG_INFINITY),
                    "{simd}: {lse:?}"
                );
            }
        }
    }
}
