//! Problems so small that Miri interprets them in minutes (`cargo xtask miri`): both operators, forward and backward, on
//! every path of the processor it offers, against the oracle.

use fourtap::cpu::Simd;
use fourtap::verify::{Case, DenseCase, ExpectedDenseResults, ExpectedResults, Tensor, backends};

/// Seeds of problems that are small and not empty; to make the others and pass them over would take Miri an hour.
const DEFORMABLE: [u64; 12] = [31, 52, 85, 87, 134, 225, 253, 271, 305, 313, 343, 376];
const DENSE: [u64; 12] = [47, 57, 103, 132, 143, 149, 155, 159, 183, 200, 201, 214];
/// How many of them are tried.
const CASES: usize = if cfg!(miri) { 3 } else { 12 };
/// Elements of all inputs together.
const LARGEST: usize = 250;

fn expect_small(tensors: &[&Tensor]) {
    assert!(tensors.iter().all(|tensor| !tensor.is_empty()));
    assert!(tensors.iter().map(|tensor| tensor.len()).sum::<usize>() < LARGEST);
}

#[test]
fn small_problems_of_deformable_attention_agree_with_the_oracle() {
    for seed in &DEFORMABLE[..CASES] {
        let case = Case::random(*seed);
        expect_small(&[&case.value, &case.sampling_locations, &case.grad_out]);
        let expected = ExpectedResults::new(&case).unwrap();
        for backend in Simd::available().flat_map(backends) {
            let checked = expected.check(&case, &backend);
            assert!(checked.is_ok(), "seed {seed}: {checked:?}");
        }
    }
}

#[test]
fn small_problems_of_dense_attention_agree_with_the_oracle() {
    for seed in &DENSE[..CASES] {
        let case = DenseCase::random(*seed);
        expect_small(&[&case.query, &case.key, &case.value]);
        let expected = ExpectedDenseResults::new(&case).unwrap();
        for backend in Simd::available().flat_map(backends) {
            let checked = expected.check(&case, &backend, true);
            assert!(checked.is_ok(), "seed {seed}: {checked:?}");
        }
    }
}
