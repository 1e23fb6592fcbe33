//! Random problems against the oracle, every element.

use std::ops::Range;

use fourtap::DType;
use fourtap::cuda::{Cuda, SpecialisedKernel};
use fourtap::dense::{Alignment, Mask, Options, Sizes};
use fourtap::verify::{
    DenseBackwardCase, DenseCase, DenseGradientSelection, DenseGradientTensors,
    DenseGradientsOnCuda, ExpectedDenseGradients, check_dense_gradients_on_cuda,
};
use rayon::prelude::*;

use super::{TYPES, kernels, ways};
use crate::gpu::{self, Tally};
use crate::oracle::cases;

/// One case in every way.
pub fn check_case(
    cuda: &Cuda,
    case: DenseBackwardCase,
    selected: DenseGradientSelection,
    tally: &Tally,
) {
    let expected = ExpectedDenseGradients::stored(&case).unwrap();
    for (way, cuda) in ways(cuda, &case).into_iter().enumerate() {
        // What serves all may serve none; the rest is the same.
        let is_served = selected.query || selected.key || selected.value;
        let selected = match (case.forward.seed + way as u64).is_multiple_of(2) && is_served {
            true => selected,
            false => DenseGradientSelection::ALL,
        };
        let mut on_device = DenseGradientsOnCuda::new(&case, cuda, selected).unwrap();
        let plan = on_device.plan().unwrap();
        if let Err(failure) = check_dense_gradients_on_cuda(&case, &expected, &cuda, selected) {
            let DenseCase {
                seed,
                query,
                key,
                value,
                options,
                attn_mask,
                ..
            } = &case.forward;
            panic!(
                "seed {seed}, {selected:?} {} q {} k {} v {} {options:?} mask {:?}, {plan}: {failure}",
                query.dtype(),
                query.shape(),
                key.shape(),
                value.shape(),
                attn_mask.as_ref().map(|mask| mask.view().shape()),
            );
        }
        tally.add(plan.steps().map(|step| step.kernel.entry()));
    }
}

/// Each selection of gradients in turn.
fn selection(seed: u64) -> DenseGradientSelection {
    let mut choices = DenseGradientSelection::choices();
    choices.nth(seed as usize % 16).unwrap()
}

/// Cases of every kind.
pub fn check(cuda: &Cuda, seeds: Range<u64>, tally: &Tally) {
    // In parallel, because many problems need a kernel of their own compiled.
    seeds.into_par_iter().for_each(|seed| {
        let (any, aligned) = (
            DenseCase::random_of(seed, &TYPES),
            DenseCase::aligned(seed, &TYPES),
        );
        for case in [
            DenseBackwardCase::new(any.clone()),
            DenseBackwardCase::new(any.with_mask()),
            DenseBackwardCase::whole(aligned.clone()),
            DenseBackwardCase::whole(aligned.with_mask()),
        ] {
            check_case(cuda, case.unwrap(), selection(seed), tally);
        }
    });
}

#[test]
#[ignore = "needs a CUDA device"]
fn random_problems_match_the_oracle() {
    let (cuda, tally) = (gpu::device(), Tally::default());
    // Four problems of each seed.
    check(&cuda, 0..cases(500), &tally);
    let details = "results, every element, 0 mismatches";
    tally.evidence(&cuda, "oracle", &kernels(), details);
}

#[test]
#[ignore = "needs a CUDA device"]
fn odd_lengths_match_the_oracle_for_every_width() {
    let (cuda, tally) = (gpu::device(), Tally::default());
    let lengths = [
        (1, 1),
        (239, 1),
        (1, 300),
        (113, 203),
        (513, 511),
        (127, 129),
        (3, 1025),
    ];
    let widths = [8, 32, 64, 96, 128, 160, 256];
    let problems = lengths
        .into_iter()
        .flat_map(|lengths| widths.map(|width| (lengths, width)));
    let problems: Vec<_> = problems.enumerate().collect();
    problems
        .into_par_iter()
        .for_each(|(seed, ((queries, keys), channels))| {
            let sizes = Sizes {
                batch: 2,
                query_heads: 4,
                key_heads: 2,
                queries,
                keys,
                channels,
                value_channels: channels,
            };
            for dtype in TYPES {
                let mut case = DenseCase::with_sizes(seed as u64, dtype, &sizes);
                let any = DenseBackwardCase::new(case.clone()).unwrap();
                check_case(&cuda, any, DenseGradientSelection::ALL, &tally);
                case.options.mask = Mask::causal(Alignment::BottomRight);
                let whole = DenseBackwardCase::whole(case).unwrap();
                check_case(&cuda, whole, DenseGradientSelection::ALL, &tally);
            }
        });
}

#[test]
#[ignore = "needs a CUDA device"]
fn small_faults_are_noticed() {
    let cuda = gpu::device();
    let sizes = Sizes {
        batch: 1,
        query_heads: 2,
        key_heads: 1,
        queries: 100,
        keys: 130,
        channels: 64,
        value_channels: 64,
    };
    for dtype in TYPES {
        let mut case = DenseCase::with_sizes(0, dtype, &sizes);
        case.options = Options {
            scale: Some(0.2),
            mask: Mask::causal(Alignment::BottomRight),
        };
        let case = DenseBackwardCase::whole(case).unwrap();
        let expected = ExpectedDenseGradients::stored(&case).unwrap();
        let found = |case: &DenseBackwardCase| -> DenseGradientTensors {
            let all = DenseGradientSelection::ALL;
            let mut on_device = DenseGradientsOnCuda::new(case, cuda, all).unwrap();
            on_device.backward().unwrap();
            on_device.read().unwrap()
        };
        assert!(expected.compare(&found(&case)).is_ok(), "{dtype}");
        let mut faults = [case.clone(), case];
        faults[0].forward.options.scale = Some(match dtype {
            DType::F16 => 0.203,
            _ => 0.22,
        });
        faults[1].forward.options.mask.right = Some(1);
        for fault in &faults {
            let noticed = expected.compare(&found(fault)).is_err();
            assert!(noticed, "{dtype}: {:?}", fault.forward.options);
        }
    }
}
