//! Random problems of dense attention.

use std::ops::Range;

use fourtap::cpu::Simd;
use fourtap::cuda::Cuda;
use fourtap::dense::Inputs;
use fourtap::verify::{self, DenseCase, ExpectedDenseResults, Failure, Tensor};
use fourtap::{Backend, DType};
use fourtap_admin::check::{Outcome, Path, Report, each};

use super::verification::verify_all;
use super::{Dense, Trial};
use crate::array::Array;
use crate::computation::computed;
use crate::error::Result;
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

/// Those of these problems that are of 16 bits, which is what tensor cores take.
pub fn on_cuda(seeds: Range<u64>, cuda: Cuda) -> Report {
    let device = cuda.ordinal();
    let names = vec![format!("cuda:{device}")];
    each(Dense.name(), seeds, names, |seed| {
        let case = DenseCase::random(seed);
        if !matches!(case.query.dtype(), DType::F16 | DType::BF16) {
            return Vec::new();
        }
        vec![Outcome {
            path: Path::Cuda {
                device,
                kernel: None,
                inputs: None,
                pass: None,
                mode: None,
                levels: None,
            },
            found: match wrong(&case, cuda) {
                Ok(found) => found,
                Err(refused) => Some(refused.to_string()),
            },
            repeat: format!(
                "fourtap check --operator dense --device cuda:{device} --cases 1 --seed {seed}"
            ),
        }]
    })
}

/// What is wrong with the device's result, if anything.
fn wrong(case: &DenseCase, cuda: Cuda) -> Result<Option<String>> {
    let query = row_major("query", &case.query)?;
    let key = row_major("key", &case.key)?;
    let value = row_major("value", &case.value)?;
    let inputs = Inputs {
        query: query.view(),
        key: key.view(),
        value: value.view(),
        attn_mask: None,
    };
    let trial = Trial::new(Backend::Cuda(cuda), inputs, case.options)?.with_lse();
    let (outputs, _) = computed(&trial)?;
    Ok(verify_all(&trial, &outputs)?.found)
}

/// The same numbers, as they can be copied to a device.
fn row_major(name: &str, tensor: &Tensor) -> Result<Array> {
    let mut array = Array::poisoned(name, DType::F64, tensor.shape().sizes())?;
    array.elements_mut().copy_from_slice(&tensor.to_f64());
    array.rounded(name, tensor.dtype())
}
