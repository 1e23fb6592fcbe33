//! Problems so small that Miri interprets them in minutes (`cargo xtask miri`): both operators, forward and backward, on
//! every path of the processor it offers, against the oracle.

use fourtap::cpu::Simd;
use fourtap::verify::{Case, DenseCase, ExpectedDenseResults, ExpectedResults, Tensor, backends};

/// Of each operator; under Miri each takes some seconds.
const CASES: usize = if cfg!(miri) { 4 } else { 100 };
/// Elements of all inputs together.
const LARGEST: usize = 250;

fn elements(tensors: &[&Tensor]) -> usize {
    tensors.iter().map(|tensor| tensor.len()).sum()
}

#[test]
fn small_problems_of_deformable_attention_agree_with_the_oracle() {
    let is_small = |case: &Case| {
        let inputs = [&case.value, &case.sampling_locations, &case.grad_out];
        (1..LARGEST).contains(&elements(&inputs))
    };
    let cases = (0..).map(Case::random).filter(is_small).take(CASES);
    for case in cases {
        let expected = ExpectedResults::new(&case).unwrap();
        for backend in Simd::available().flat_map(backends) {
            let checked = expected.check(&case, &backend);
            assert!(checked.is_ok(), "seed {}: {checked:?}", case.seed);
        }
    }
}

#[test]
fn small_problems_of_dense_attention_agree_with_the_oracle() {
    let is_small = |case: &DenseCase| {
        let inputs = [&case.query, &case.key, &case.value];
        (1..LARGEST).contains(&elements(&inputs))
    };
    let cases = (0..).map(DenseCase::random).filter(is_small).take(CASES);
    for case in cases {
        let expected = ExpectedDenseResults::new(&case).unwrap();
        for backend in Simd::available().flat_map(backends) {
            let checked = expected.check(&case, &backend, true);
            assert!(checked.is_ok(), "seed {}: {checked:?}", case.seed);
        }
    }
}
