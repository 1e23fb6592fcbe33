//! Gradients on every path of every backend against the f64 oracle.

use fourtap::DType;
use fourtap::cpu::Simd;
use fourtap::dense::{Alignment, Mask, Options, Sizes};
use fourtap::verify::{
    DenseBackwardCase, DenseCase, DenseGradientSelection, DenseGradientTensors,
    ExpectedDenseGradients, backends,
};
use rayon::prelude::*;

/// Problems in the ordinary test run; set `FOURTAP_CASES` for more.
const CASES: u64 = 1_000;

fn cases() -> u64 {
    std::env::var("FOURTAP_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(CASES)
}

/// What is wrong with a case, on any path; `selected` gradients by the first backend of each, all by the others.
fn failures(case: DenseCase, selected: DenseGradientSelection) -> Vec<String> {
    let case = DenseBackwardCase::new(case).unwrap();
    let expected = ExpectedDenseGradients::new(&case).unwrap();
    let failure = |simd: Simd| {
        let selections = [selected, DenseGradientSelection::ALL];
        let failed = |(selected, backend)| expected.check(&case, backend, selected).err();
        let failure = selections
            .into_iter()
            .zip(&backends(simd))
            .find_map(failed)?;
        let DenseCase {
            seed,
            query,
            key,
            value,
            options,
            attn_mask,
            ..
        } = &case.forward;
        Some(format!(
            "seed {seed} on {simd}, {selected:?} {} q {} k {} v {} {options:?} {:?}: {failure}",
            query.dtype(),
            query.shape(),
            key.shape(),
            value.shape(),
            attn_mask.as_ref().map(|mask| mask.view().shape()),
        ))
    };
    Simd::available().filter_map(failure).collect()
}

fn assert_none(failures: Vec<String>) {
    let shown: Vec<_> = failures.iter().take(20).map(String::as_str).collect();
    assert!(
        failures.is_empty(),
        "{} mismatches:\n{}",
        failures.len(),
        shown.join("\n")
    );
}

/// Each selection of gradients in turn.
fn selection(seed: u64) -> DenseGradientSelection {
    let mut choices = DenseGradientSelection::choices();
    choices.nth(seed as usize % 16).unwrap()
}

#[test]
fn every_path_agrees_with_the_oracle() {
    let check = |seed| failures(DenseCase::random(seed), selection(seed));
    assert_none((0..cases()).into_par_iter().flat_map_iter(check).collect());
}

#[test]
fn every_path_agrees_with_the_oracle_on_masks_and_biases() {
    let check = |seed| failures(DenseCase::random(seed).with_mask(), selection(seed));
    assert_none((0..cases()).into_par_iter().flat_map_iter(check).collect());
}

#[test]
fn lengths_around_blocks_and_tiles_agree_with_the_oracle() {
    let mut problems = Vec::new();
    for (queries, keys, channels) in [
        (1, 1, 256),
        (239, 1, 64),
        (113, 203, 128),
        (511, 513, 32),
        (1, 2049, 64),
        (2049, 3, 16),
        (127, 129, 72),
    ] {
        for (key_heads, group) in [(1, 1), (2, 3)] {
            for dtype in DType::ALL {
                let sizes = Sizes {
                    batch: 1,
                    query_heads: key_heads * group,
                    key_heads,
                    queries,
                    keys,
                    channels,
                    value_channels: channels,
                };
                problems.push((dtype, sizes));
            }
        }
    }
    let check = |(seed, (dtype, sizes)): (usize, (DType, Sizes))| {
        let case = DenseCase::with_sizes(seed as u64, dtype, &sizes);
        failures(case, DenseGradientSelection::ALL)
    };
    let problems = problems.into_par_iter().enumerate();
    assert_none(problems.flat_map_iter(check).collect());
}

#[test]
fn small_faults_are_noticed() {
    let sizes = Sizes {
        batch: 1,
        query_heads: 2,
        key_heads: 1,
        queries: 100,
        keys: 130,
        channels: 32,
        value_channels: 32,
    };
    for dtype in DType::ALL {
        let mut case = DenseCase::with_sizes(0, dtype, &sizes);
        case.options = Options {
            scale: Some(0.2),
            mask: Mask::causal(Alignment::BottomRight),
        };
        let case = DenseBackwardCase::new(case).unwrap();
        let expected = ExpectedDenseGradients::new(&case).unwrap();
        let found = |case: &DenseBackwardCase| {
            let mut found = DenseGradientTensors::poisoned(case, DenseGradientSelection::ALL);
            let (inputs, options) = (case.forward.inputs(), case.forward.options);
            let (results, grad_out) = (case.results(), case.grad_out());
            let backend = fourtap::Backend::default();
            fourtap::dense::backward(&backend, inputs, options, results, grad_out, found.views())
                .unwrap();
            found
        };
        assert!(expected.compare(&found(&case)).is_ok(), "{dtype}");
        // Another scale, and a key more.
        let mut faults = [case.clone(), case];
        faults[0].forward.options.scale = Some(match dtype {
            DType::F64 => 0.2 + 1e-13,
            DType::F32 => 0.2 + 1e-5,
            DType::F16 => 0.203,
            DType::BF16 => 0.22,
        });
        faults[1].forward.options.mask.right = Some(1);
        for fault in &faults {
            assert!(
                expected.compare(&found(fault)).is_err(),
                "{dtype}: {:?} was not noticed",
                fault.forward.options
            );
        }
    }
}
