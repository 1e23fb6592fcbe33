//! Results are bitwise equal for any number of threads, from run to run, and whatever else is wanted.

use fourtap::cpu::{Cpu, Simd};
use fourtap::{Backend, Element, bf16};

use super::example::{Example, NAMES, Results, Size};

/// Large enough to be split, with many points on few pixels, where the order of sums would show.
const SIZE: Size = Size {
    n: 2,
    q: 700,
    m: 2,
    d: 24,
};
const SHAPES: [(usize, usize); 3] = [(40, 50), (20, 25), (1, 1)];

fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap()
        .install(work)
}

/// Every number exactly.
fn bits<T: Element>(results: &Results<T>) -> Vec<Vec<u64>> {
    let all = std::iter::once(&results.out).chain(&results.gradients);
    all.map(|numbers| numbers.iter().map(|it| it.to_f64().to_bits()).collect())
        .collect()
}

fn is_equal_for_any_number_of_threads<T: Element>(points: &[usize; 3], references: &[usize]) {
    let example = Example::<T>::new(SIZE, &SHAPES, points, references, 7);
    for simd in Simd::available() {
        let backend = Backend::Cpu(Cpu::with_simd(simd).unwrap());
        let one = with_threads(1, || bits(&example.run(&backend)));
        for threads in [2, 3, 8, 37] {
            let many = with_threads(threads, || bits(&example.run(&backend)));
            for (i, (one, many)) in one.iter().zip(&many).enumerate() {
                assert!(
                    one == many,
                    "result {i} of {} on {simd} with references {references:?} differs between 1 and {threads} threads",
                    T::DTYPE
                );
            }
        }
    }
}

#[test]
fn results_are_bitwise_equal_for_any_number_of_threads() {
    is_equal_for_any_number_of_threads::<f32>(&[5, 5, 5], &[2, 700, 3, 2]);
    is_equal_for_any_number_of_threads::<f32>(&[4, 7, 1], &[1, 1, 1, 4]);
    is_equal_for_any_number_of_threads::<f32>(&[4, 4, 4], &[2, 1, 3, 2, 4]);
    is_equal_for_any_number_of_threads::<f64>(&[5, 5, 5], &[1, 700, 3, 5, 4]);
    is_equal_for_any_number_of_threads::<bf16>(&[0, 9, 3], &[1, 1, 3, 2]);
}

#[test]
fn a_hundred_runs_are_bitwise_equal() {
    let example = Example::<f32>::new(SIZE, &SHAPES, &[4, 3, 2], &[1, 1, 3, 4], 8);
    with_threads(4, || {
        let first = bits(&example.run(&Backend::default()));
        for run in 1..100 {
            let again = bits(&example.run(&Backend::default()));
            assert!(again == first, "run {run} differs from the first");
        }
    });
}

#[test]
fn a_gradient_does_not_depend_on_which_others_are_wanted() {
    let example = Example::<f32>::new(SIZE, &SHAPES, &[4, 3, 2], &[2, 1, 3, 4], 9);
    let backend = Backend::default();
    let all = example.backward(&backend, [true; 4]);
    for set in 0..16 {
        let wanted = [0, 1, 2, 3].map(|input| set >> input & 1 != 0);
        let some = example.backward(&backend, wanted);
        for input in 0..4 {
            let as_expected = match wanted[input] {
                true => some[input] == all[input],
                false => some[input].iter().all(|number| number.is_nan()),
            };
            assert!(as_expected, "gradient of {} with {wanted:?}", NAMES[input]);
        }
    }
}
