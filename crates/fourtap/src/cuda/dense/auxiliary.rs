//! Kernels before and after the attention itself: what brings tensors into another form, and what combines splits.

use std::fmt;

use super::specialised::{AttnKind, PROBLEM, describe_alignment};
use crate::cuda::recipe::sources::{ARITHMETIC, MATRIX, MEMORY, TYPES};
use crate::cuda::recipe::{Defines, Recipe, flag, name, number};
use crate::dtype::DType;

pub(super) const COMBINE_ENTRY: &str = "dense_combine";
pub(super) const COMBINE_PARTS: &[&str] = &[
    TYPES,
    ARITHMETIC,
    PROBLEM,
    include_str!("../../../kernels/dense/combine.cu"),
];

pub(super) const MASK_ENTRY: &str = "dense_prepare_mask";
pub(super) const MASK_PARTS: &[&str] = &[
    TYPES,
    MEMORY,
    PROBLEM,
    include_str!("../../../kernels/dense/prepare_mask.cu"),
];

pub(super) const CONVERT_ENTRY: &str = "dense_prepare_f32";
pub(super) const CONVERT_PARTS: &[&str] = &[
    TYPES,
    MATRIX,
    include_str!("../../../kernels/dense/prepare_f32.cu"),
];

/// Brings a tensor that masks into the form the others read; see kernels/dense/prepare_mask.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PrepareMask {
    /// Booleans, for tiles of that many queries and keys.
    Bits {
        /// Queries.
        rows: u32,
        /// Keys.
        keys: u32,
    },
    /// Numbers of this type.
    Bias(DType),
}

impl PrepareMask {
    pub(super) fn new(bias: Option<DType>, [rows, keys]: [u32; 2]) -> Self {
        match bias {
            Some(dtype) => PrepareMask::Bias(dtype),
            None => PrepareMask::Bits { rows, keys },
        }
    }
}

impl Recipe for PrepareMask {
    fn entry(&self) -> &'static str {
        MASK_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        MASK_PARTS
    }

    fn defines(&self) -> Defines {
        match *self {
            PrepareMask::Bits { rows, keys } => vec![
                AttnKind::Bits.define(),
                ("BLOCK_M", number(rows)),
                ("BLOCK_N", number(keys)),
            ],
            PrepareMask::Bias(dtype) => vec![AttnKind::Bias.define(), ("BIAS_TYPE", name(dtype))],
        }
    }
}

impl fmt::Display for PrepareMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrepareMask::Bits { rows, keys } => {
                write!(f, "dense-prepare-mask-bits-{rows}x{keys}")
            }
            PrepareMask::Bias(dtype) => write!(f, "dense-prepare-mask-bias-{dtype}"),
        }
    }
}

/// Brings f32 into the form that tensor cores multiply; see kernels/dense/prepare_f32.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrepareF32;

impl Recipe for PrepareF32 {
    fn entry(&self) -> &'static str {
        CONVERT_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        CONVERT_PARTS
    }

    fn defines(&self) -> Defines {
        Defines::new()
    }
}

impl fmt::Display for PrepareF32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dense-prepare-f32")
    }
}

/// Combines the results of split keys; see kernels/dense/combine.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Combine {
    /// Element type.
    pub dtype: DType,
    /// Channels of values, rounded up to a multiple of 32.
    pub head_v: u32,
    /// Whether channels were rounded up.
    pub padded: bool,
    /// As in [`Mma`](super::Mma).
    pub align: u32,
}

impl Recipe for Combine {
    fn entry(&self) -> &'static str {
        COMBINE_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        COMBINE_PARTS
    }

    fn defines(&self) -> Defines {
        vec![
            ("VALUE", name(self.dtype)),
            ("HEAD_V", number(self.head_v)),
            ("PADDED", flag(self.padded)),
            ("ALIGN", number(self.align)),
        ]
    }
}

impl fmt::Display for Combine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dense-combine-{}-v{}", self.dtype, self.head_v)?;
        if self.padded {
            f.write_str("-padded")?;
        }
        describe_alignment(f, self.align)
    }
}
