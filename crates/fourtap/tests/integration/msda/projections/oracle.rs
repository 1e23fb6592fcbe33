//! Every path of the CPU backend against the f64 oracle, on random problems.

use fourtap::cpu::Simd;
use fourtap::verify::{ExpectedProjectedResults, ProjectedCase, backends};
use rayon::prelude::*;

use crate::msda::oracle::cases;

#[test]
fn every_path_agrees_with_the_oracle() {
    let failures: Vec<String> = (0..cases())
        .into_par_iter()
        .flat_map_iter(|seed| [ProjectedCase::random(seed), ProjectedCase::aligned(seed)])
        .flat_map_iter(|case| {
            let expected = ExpectedProjectedResults::new(&case).unwrap();
            Simd::available().filter_map(move |simd| {
                let failure = backends(simd)
                    .iter()
                    .find_map(|backend| expected.check(&case, backend).err())?;
                Some(format!("{failure}\n    seed {} on {simd}", case.seed))
            })
        })
        .collect();
    let shown: Vec<_> = failures.iter().take(20).map(String::as_str).collect();
    assert!(
        failures.is_empty(),
        "{} mismatches:\n{}",
        failures.len(),
        shown.join("\n")
    );
}
