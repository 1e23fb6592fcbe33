//! Random problems against the oracle, every element.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;

use fourtap::cuda::dense::{KernelVariant, Plan};
use fourtap::cuda::{Cuda, SpecialisedKernel};
use fourtap::dense::{Mask, Sizes};
use fourtap::verify::{DenseCase, DenseOnCuda, ExpectedDenseResults, check_dense_on_cuda};
use rayon::prelude::*;

use super::{TYPES, forward_kernels, hopper_cuts, hostile, serving};
use crate::gpu::{self, Tally};
use crate::oracle::cases;

/// Which forms of the kernels served: rows of a tile, and whether keys were divided, hidden, padded.
#[derive(Default)]
pub struct Forms {
    mma: Mutex<BTreeSet<(u32, [bool; 3])>>,
    wgmma: Mutex<BTreeSet<(u32, [bool; 3])>>,
}

impl Forms {
    fn add(&self, plan: &Plan) {
        match plan.forward.kernel {
            KernelVariant::Mma(kernel) => {
                let flags = [kernel.split, kernel.mask, kernel.padded];
                self.mma.lock().unwrap().insert((kernel.tile.rows, flags));
            }
            KernelVariant::Wgmma(kernel) => {
                let flags = [false, kernel.mask, kernel.padded];
                self.wgmma.lock().unwrap().insert((kernel.tile.rows, flags));
            }
            _ => {}
        }
    }

    /// Every tile was used, each with and without a mask, and the smallest with divided keys.
    pub fn expect_all(&self, cuda: &Cuda) {
        let found = self.wgmma.lock().unwrap();
        for rows in [192, 128, 64] {
            for mask in [false, true] {
                let used = found.iter().any(|&(r, [_, m, _])| r == rows && m == mask);
                assert!(
                    used || hopper_cuts(cuda).is_empty(),
                    "{rows} rows, mask {mask}: {found:?}"
                );
            }
        }
        let found = self.mma.lock().unwrap();
        for rows in [128, 64, 48, 32, 16] {
            for mask in [false, true] {
                let used = found.iter().any(|&(r, [_, m, _])| r == rows && m == mask);
                assert!(used, "{rows} rows, mask {mask}: {found:?}");
            }
        }
        assert!(found.iter().any(|&(_, [split, ..])| split), "{found:?}");
    }
}

/// One case in every form.
pub fn check_case(cuda: &Cuda, case: &DenseCase, tally: &Tally, forms: &Forms) {
    let expected = ExpectedDenseResults::new(case).unwrap();
    for (cut, cuda) in serving(cuda, case).into_iter().enumerate() {
        let with_lse = (case.seed + cut as u64).is_multiple_of(2);
        let plan = DenseOnCuda::new(case, cuda).unwrap().plan().unwrap();
        if let Err(failure) = check_dense_on_cuda(case, &expected, &cuda, with_lse) {
            panic!(
                "seed {}, {} q {} k {} v {} {:?} mask {:?}, {plan}: {failure}",
                case.seed,
                case.query.dtype(),
                case.query.shape(),
                case.key.shape(),
                case.value.shape(),
                case.options,
                case.attn_mask.as_ref().map(|mask| mask.view().shape()),
            );
        }
        forms.add(&plan);
        tally.add(plan.steps().map(|step| step.kernel.entry()));
    }
}

/// Few queries and many keys, which several blocks divide among them where there are many multiprocessors.
fn divided(seed: u64) -> DenseCase {
    let number = seed as usize;
    let channels = [64, 128, 40, 256, 96, 32][number % 6];
    let sizes = Sizes {
        batch: 1,
        query_heads: 2,
        key_heads: 1 + number % 2,
        queries: 1 + number % 5,
        keys: 1100 + number % 400,
        channels,
        value_channels: channels,
    };
    DenseCase::with_sizes(seed, TYPES[number / 6 % TYPES.len()], &sizes)
}

/// Logits that grow from key to key, of every second 16 queries: in a group of warps some have a new maximum where others have none.
fn growing(seed: u64) -> DenseCase {
    let number = seed as usize;
    let sizes = [100 + number % 100, 500 + number % 300, 64 + number % 2 * 64];
    hostile::case(
        seed,
        TYPES[number % 2],
        sizes,
        Mask::default(),
        |tensor, row, channel| {
            let usual = ((row * 31 + channel * 17) % 13) as f64 / 6.0 - 1.0;
            match tensor {
                0 if row / 16 % 2 == 0 => Some(8.0 * usual),
                1 => Some(usual * (1.0 + row as f64 / 50.0)),
                _ => None,
            }
        },
    )
}

/// Cases of every kind.
pub fn check(cuda: &Cuda, seeds: Range<u64>, tally: &Tally, forms: &Forms) {
    // In parallel, because many problems need a kernel of their own compiled.
    seeds.into_par_iter().for_each(|seed| {
        for case in [
            DenseCase::random_of(seed, &TYPES),
            DenseCase::aligned(seed, &TYPES),
            divided(seed),
        ] {
            check_case(cuda, &case, tally, forms);
            check_case(cuda, &case.with_mask(), tally, forms);
        }
        if seed.is_multiple_of(5) {
            check_case(cuda, &growing(seed), tally, forms);
        }
    });
}

#[test]
#[ignore = "needs a CUDA device"]
fn random_problems_match_the_oracle() {
    let cuda = gpu::device();
    let (tally, forms, cases) = (Tally::default(), Forms::default(), cases(250));
    check(&cuda, 0..cases, &tally, &forms);
    forms.expect_all(&cuda);
    let details = "results, every element, 0 mismatches";
    tally.evidence(&cuda, "oracle", &forward_kernels(), details);
}

#[test]
#[ignore = "needs a CUDA device"]
fn odd_lengths_match_the_oracle_for_every_width() {
    let cuda = gpu::device();
    let (tally, forms) = (Tally::default(), Forms::default());
    let mut problems = Vec::new();
    for (queries, keys) in [
        (1, 1),
        (239, 1),
        (799, 3),
        (113, 203),
        (1023, 1024),
        (2048, 2047),
        (1, 4097),
        (127, 129),
    ] {
        for channels in [32, 64, 96, 128, 256] {
            problems.push(Sizes {
                batch: 1,
                query_heads: 2,
                key_heads: 1,
                queries,
                keys,
                channels,
                value_channels: channels,
            });
        }
    }
    problems
        .into_par_iter()
        .enumerate()
        .for_each(|(seed, sizes)| {
            let case = DenseCase::with_sizes(seed as u64, TYPES[seed % TYPES.len()], &sizes);
            check_case(&cuda, &case, &tally, &forms);
        });
}
