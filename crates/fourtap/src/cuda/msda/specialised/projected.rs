//! Kernels that only calls from projections use.

use std::fmt;

use super::common::sources::{DIVISOR, PROBLEM, PROJECTION, TYPES};
use super::common::{Sampling, Types, smallest_capacity, step};
use crate::cuda::recipe::{Defines, Recipe, flag, number};

const STATISTICS_ENTRY: &str = "msda_projected_statistics";
const STATISTICS_PARTS: &[&str] = &[
    TYPES,
    DIVISOR,
    PROBLEM,
    PROJECTION,
    include_str!("../../../../kernels/msda/projected_statistics.cu"),
];

const REFERENCES_ENTRY: &str = "msda_projected_references";
const REFERENCES_PARTS: &[&str] = &[
    TYPES,
    DIVISOR,
    PROBLEM,
    PROJECTION,
    include_str!("../../../../kernels/msda/projected_references.cu"),
];

const MASK_ENTRY: &str = "msda_projected_mask";
const MASK_PARTS: &[&str] = &[
    TYPES,
    include_str!("../../../../kernels/msda/projected_mask.cu"),
];

pub(super) const SHIPPED: &[(&str, &[&str])] = &[
    (STATISTICS_ENTRY, STATISTICS_PARTS),
    (REFERENCES_ENTRY, REFERENCES_PARTS),
    (MASK_ENTRY, MASK_PARTS),
];

/// One pass over logits or places; see kernels/msda/projected_statistics.cu and projected_references.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProjectedPass {
    /// Element types; `value` stands for the type that weights are computed in, f32 or f64.
    pub types: Types,
    /// What the problem's kernels are specialised by.
    pub sampling: Sampling,
}

impl ProjectedPass {
    /// For the types of a problem.
    pub(in crate::cuda::msda) fn new(types: Types, sampling: Sampling) -> Self {
        ProjectedPass {
            types: types.computed(),
            sampling: sampling.general(),
        }
    }

    fn common_defines(&self) -> Defines {
        let mut defines = self.types.defines();
        defines.extend(self.sampling.general_defines());
        defines.push(smallest_capacity());
        defines
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        write!(f, "msda-projected-{name}-{}", self.types)?;
        self.sampling.describe(f)
    }
}

step!(
    Statistics(ProjectedPass),
    STATISTICS_ENTRY,
    STATISTICS_PARTS,
    "statistics"
);
step!(
    References(ProjectedPass),
    REFERENCES_ENTRY,
    REFERENCES_PARTS,
    "references"
);

/// Zeros in place of padding; see kernels/msda/projected_mask.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mask {
    /// Whether a copy is made; otherwise the tensor itself is written.
    pub copy: bool,
    /// Bytes moved at a time.
    pub unit: u32,
}

impl Recipe for Mask {
    fn entry(&self) -> &'static str {
        MASK_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        MASK_PARTS
    }

    fn defines(&self) -> Defines {
        vec![("COPY", flag(self.copy)), ("UNITS", number(self.unit))]
    }
}

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.copy { "copy" } else { "zero" };
        write!(f, "msda-projected-mask-{what}-{}", self.unit)
    }
}
