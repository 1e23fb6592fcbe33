//! Tensor maps that must not be: each breaks one rule, and the driver must say so.

use fourtap::cuda::driver::{Buffer, DriverError, TensorMap, TensorMapDesc};

use super::super::Probe;
use super::device::{ProbeDevice, Subject};
use super::tma::{missing, packed};
use crate::error::Result;
use crate::record::{Outcome, ProbeRecord};

/// What the tensor of 3 dimensions takes that each rule is broken in.
const BYTES: usize = 32 * 100 * 100 * 2;

/// A rule that an encoding breaks.
struct Refusal {
    name: &'static str,
    /// In words, with what was asked for instead.
    rule: &'static str,
    broken: fn(&mut TensorMapDesc),
}

const REFUSALS: [Refusal; 13] = [
    Refusal {
        name: "inner-box",
        rule: "the box's first side must be a multiple of 16 bytes; asked for 4",
        broken: |tiled| tiled.box_sides[0] = 2,
    },
    Refusal {
        name: "box-too-long",
        rule: "a side of the box is at most 256 elements; asked for 257",
        broken: |tiled| tiled.box_sides[1] = 257,
    },
    Refusal {
        name: "inner-box-too-long",
        rule: "a side of the box is at most 256 elements; asked for 264 as the first",
        broken: |tiled| tiled.box_sides[0] = 264,
    },
    Refusal {
        name: "box-empty",
        rule: "no side of the box is 0",
        broken: |tiled| tiled.box_sides[2] = 0,
    },
    Refusal {
        name: "stride-unaligned",
        rule: "strides are multiples of 16 bytes; asked for 72",
        broken: |tiled| tiled.strides[0] = 72,
    },
    Refusal {
        name: "stride-too-long",
        rule: "strides are less than 2^40 bytes; asked for 2^40",
        broken: |tiled| tiled.strides[1] = 1 << 40,
    },
    Refusal {
        name: "address-unaligned",
        rule: "the tensor begins at a multiple of 16 bytes; asked for 8 more",
        broken: |tiled| tiled.address += 8,
    },
    Refusal {
        name: "element-stride-zero",
        rule: "element strides are 1 to 8; asked for 0",
        broken: |tiled| tiled.element_strides[1] = 0,
    },
    Refusal {
        name: "element-stride-too-long",
        rule: "element strides are 1 to 8; asked for 9",
        broken: |tiled| tiled.element_strides[1] = 9,
    },
    Refusal {
        name: "dimension-empty",
        rule: "no dimension of the tensor is 0",
        broken: |tiled| tiled.dimensions[1] = 0,
    },
    Refusal {
        name: "dimension-too-long",
        rule: "a dimension has at most 2^32 elements; asked for one more",
        broken: |tiled| tiled.dimensions[2] = (1 << 32) + 1,
    },
    Refusal {
        name: "no-dimensions",
        rule: "a tensor has 1 to 5 dimensions; asked for 0",
        broken: |tiled| *tiled = packed(tiled.address, &[], &[]),
    },
    Refusal {
        name: "six-dimensions",
        rule: "a tensor has 1 to 5 dimensions; asked for 6",
        broken: |tiled| *tiled = packed(tiled.address, &[32, 8, 8, 2, 2, 2], &[32, 2, 2, 1, 1, 1]),
    },
];

/// What each rule is broken in: the tensor at an address, as it may be encoded.
fn legal(address: u64) -> TensorMapDesc {
    packed(address, &[32, 100, 100], &[32, 2, 2])
}

/// All refusals, as records of one probe.
pub fn probe() -> Probe {
    let subject = Subject::new(
        "tma-refused",
        "tma",
        "encode tensor maps that the driver must refuse",
    );
    subject.probe_of_several(run)
}

fn run(gpu: &ProbeDevice<'_>, subject: &Subject) -> Result<Vec<ProbeRecord>> {
    if let Some(reason) = missing(gpu) {
        return Ok(vec![subject.unavailable(gpu, &reason)]);
    }
    let context = gpu.cuda().context();
    let tensor = Buffer::alloc(context, BYTES)?;
    // Else a refusal would say nothing of the rule.
    TensorMap::encode(context, &legal(tensor.as_ptr()))?;
    REFUSALS
        .iter()
        .map(|refusal| refusal.record(gpu, &tensor))
        .collect()
}

impl Refusal {
    fn record(&self, gpu: &ProbeDevice<'_>, tensor: &Buffer) -> Result<ProbeRecord> {
        let mut tiled = legal(tensor.as_ptr());
        (self.broken)(&mut tiled);
        let subject = Subject::new(
            format!("tma-refused-{}", self.name),
            "tma",
            "encode a tensor map that breaks a rule",
        );
        match TensorMap::encode(tensor.context(), &tiled) {
            Err(DriverError::TensorMap { .. }) => {
                Ok(subject.record(gpu, Outcome::Refused, self.rule))
            }
            Ok(_) => {
                let words = format!("expected a refusal, found it accepted: {}", self.rule);
                Ok(subject.record(gpu, Outcome::Wrong, &words))
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_changes_something_and_says_what() {
        let mut names = Vec::new();
        for refusal in &REFUSALS {
            let mut tiled = legal(4096);
            (refusal.broken)(&mut tiled);
            assert_ne!(tiled, legal(4096), "{}", refusal.name);
            assert!(!names.contains(&refusal.name), "{}", refusal.name);
            assert!(refusal.rule.len() < 80, "{}", refusal.rule);
            names.push(refusal.name);
        }
    }

    #[test]
    fn refusals_reach_the_driver() {
        // The library itself refuses lists of different lengths; none of these may be refused for that.
        for refusal in &REFUSALS {
            let mut tiled = legal(4096);
            (refusal.broken)(&mut tiled);
            let rank = tiled.dimensions.len();
            assert_eq!(
                tiled.strides.len(),
                rank.saturating_sub(1),
                "{}",
                refusal.name
            );
            assert_eq!(tiled.box_sides.len(), rank, "{}", refusal.name);
            assert_eq!(tiled.element_strides.len(), rank, "{}", refusal.name);
        }
    }
}
