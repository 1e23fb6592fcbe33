//! Every path of every backend against the f64 oracle, on random problems.

use fourtap::cpu::Simd;
use fourtap::verify::{
    Case, ExpectedGradients, ExpectedResults, Failure, GradientSelection, GradientTensors, backends,
};
use fourtap::{Backend, msda};
use rayon::prelude::*;

/// Problems in the ordinary test run; set `FOURTAP_CASES` for more.
const CASES: u64 = 2_000;

pub fn cases() -> u64 {
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
            let expected = ExpectedResults::new(&case).unwrap();
            Simd::available().filter_map(move |simd| {
                let failure = backends(simd).iter().find_map(|backend| expected.check(&case, backend).err())?;
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

#[test]
fn gradients_that_nobody_wrote_are_noticed() {
    let case = Case::aligned(1);
    let expected = ExpectedGradients::new(&case).unwrap();
    let mut right = GradientTensors::poisoned(&case, GradientSelection::ALL);
    let gradients = right.views();
    msda::backward(
        &Backend::default(),
        case.inputs(),
        case.grad_out(),
        gradients,
    )
    .unwrap();
    expected.compare(&right).unwrap();
    for unwritten in GradientSelection::choices().filter(|asked| asked.each().contains(&true)) {
        let mut found = right.clone();
        let poison = GradientTensors::poisoned(&case, unwritten);
        found.value = poison.value.or(found.value);
        found.sampling_locations = poison.sampling_locations.or(found.sampling_locations);
        found.attention_weights = poison.attention_weights.or(found.attention_weights);
        let failure = expected.compare(&found).unwrap_err();
        assert!(matches!(failure, Failure::Inaccurate { .. }), "{failure}");
    }
}
