//! Every path of every backend against the f64 oracle, on random problems.

use fourtap::cpu::Simd;
use fourtap::verify::{Case, backends, check};
use rayon::prelude::*;

/// Problems in the ordinary test run; set `FOURTAP_CASES` for more.
const CASES: u64 = 2_000;

fn cases() -> u64 {
    std::env::var("FOURTAP_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(CASES)
}

#[test]
fn every_path_agrees_with_the_oracle() {
    let failures: Vec<String> = (0..cases())
        .into_par_iter()
        .flat_map_iter(|seed| {
            let case = Case::random(seed);
            Simd::available().filter_map(move |simd| {
                let failure = backends(simd).iter().find_map(|backend| check(&case, backend).err())?;
                Some(format!("{failure}\n    repeat with: fourtap check --simd {simd} --cases 1 --seed {seed}"))
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
