//! Random problems of dense attention.

use std::ops::Range;

use fourtap::cpu::Simd;
use fourtap::cuda::Cuda;
use fourtap::verify::{self, DenseCase, ExpectedDenseResults, Failure, check_dense_on_cuda};
use fourtap_admin::check::{Outcome, Path, Report, each};

use super::Dense;
use crate::operators::Operator;

/// These problems through each of `paths`, with `lse` and without; each without a tensor that masks, and with one.
pub fn on_paths(seeds: Range<u64>, paths: &[Simd]) -> Report {
    let backends: Vec<_> = paths
        .iter()
        .map(|&simd| (simd.name(), verify::backends(simd)))
        .collect();
    let names = paths.iter().map(|simd| simd.name().to_string()).collect();
    each(Dense.name(), seeds, names, |seed| {
        let case = DenseCase::random(seed);
        let cases = [("", case.clone()), ("with attn_mask: ", case.with_mask())];
        let expected = cases
            .each_ref()
            .map(|(_, case)| ExpectedDenseResults::new(case));
        let mut outcomes = Vec::new();
        for (simd, backends) in &backends {
            for ((what, case), expected) in cases.iter().zip(&expected) {
                let check = |(backend, with_lse)| match expected {
                    Ok(expected) => expected.check(case, backend, with_lse),
                    Err(refused) => Err(Failure::Refused(refused.clone())),
                };
                let mut ways = backends
                    .iter()
                    .flat_map(|backend| [true, false].map(|with_lse| (backend, with_lse)));
                outcomes.push(Outcome {
                    path: Path::Cpu { simd, inputs: None },
                    found: ways.find_map(|way| Some(format!("{what}{}", check(way).err()?))),
                    repeat: format!(
                        "fourtap check --operator dense --simd {simd} --cases 1 --seed {seed}"
                    ),
                });
            }
        }
        outcomes
    })
}

/// The same on a device.
pub fn on_cuda(seeds: Range<u64>, cuda: Cuda) -> Report {
    let device = cuda.ordinal();
    let names = vec![format!("cuda:{device}")];
    each(Dense.name(), seeds, names, |seed| {
        let case = DenseCase::random(seed);
        let cases = [("", case.clone()), ("with attn_mask: ", case.with_mask())];
        let outcome = |(what, case): (&str, DenseCase)| {
            let found = ExpectedDenseResults::new(&case).map_or_else(
                |refused| Some(refused.to_string()),
                |expected| {
                    let mut ways = [true, false].into_iter();
                    ways.find_map(|with_lse| {
                        let checked = check_dense_on_cuda(&case, &expected, &cuda, with_lse);
                        Some(checked.err()?.to_string())
                    })
                },
            );
            Outcome {
                path: Path::Cuda {
                    device,
                    kernel: None,
                    inputs: None,
                    pass: None,
                    mode: None,
                    levels: None,
                },
                found: found.map(|found| format!("{what}{found}")),
                repeat: format!(
                    "fourtap check --operator dense --device cuda:{device} --cases 1 --seed {seed}"
                ),
            }
        };
        cases.into_iter().map(outcome).collect()
    })
}
