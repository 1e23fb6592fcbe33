//! All kernels, and what each is compiled for.

use std::fmt;

use super::tile::Tile;
use crate::cuda::recipe::sources::{ARITHMETIC, COPY, MATRIX, MEMORY, TYPES};
use crate::cuda::recipe::{
    Defines, DynamicShared, Recipe, ShippedKernel, SpecialisedKernel, flag, name, number,
};
use crate::dtype::DType;

const PROBLEM: &str = include_str!("../../../kernels/dense/problem.cuh");

const MMA_ENTRY: &str = "dense_forward_mma";
const MMA_PARTS: &[&str] = &[
    TYPES,
    MEMORY,
    COPY,
    MATRIX,
    ARITHMETIC,
    PROBLEM,
    include_str!("../../../kernels/dense/tile.cuh"),
    include_str!("../../../kernels/dense/rows.cuh"),
    include_str!("../../../kernels/dense/columns.cuh"),
    include_str!("../../../kernels/dense/output.cuh"),
    include_str!("../../../kernels/dense/careful.cuh"),
    include_str!("../../../kernels/dense/forward_mma.cu"),
];

const COMBINE_ENTRY: &str = "dense_combine";
const COMBINE_PARTS: &[&str] = &[
    TYPES,
    ARITHMETIC,
    PROBLEM,
    include_str!("../../../kernels/dense/combine.cu"),
];

/// Tensor cores by `mma.sync`; see kernels/dense/forward_mma.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mma {
    /// Element type.
    pub dtype: DType,
    /// Channels of queries and keys, rounded up to a multiple of 32.
    pub head: u32,
    /// The same of values.
    pub head_v: u32,
    /// How the work is split.
    pub tile: Tile,
    /// Whether there is a mask.
    pub mask: bool,
    /// Whether a block processes a split of the keys, and another kernel combines them.
    pub split: bool,
    /// Whether channels were rounded up.
    pub padded: bool,
    /// Alignment of rows, in bytes: 16 or 4; 2 for rows with any strides.
    pub align: u32,
}

impl Recipe for Mma {
    fn entry(&self) -> &'static str {
        MMA_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        MMA_PARTS
    }

    fn defines(&self) -> Defines {
        vec![
            ("VALUE", name(self.dtype)),
            ("HEAD", number(self.head)),
            ("HEAD_V", number(self.head_v)),
            ("BLOCK_M", number(self.tile.rows)),
            ("BLOCK_N", number(self.tile.keys)),
            ("KEY_WARPS", number(self.tile.columns)),
            ("BLOCKS", number(self.tile.blocks)),
            ("MASK", flag(self.mask)),
            ("SPLIT", flag(self.split)),
            ("PADDED", flag(self.padded)),
            ("ALIGN", number(self.align)),
        ]
    }

    fn dynamic_shared(&self) -> DynamicShared {
        DynamicShared::All
    }
}

impl fmt::Display for Mma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tile { rows, keys, .. } = self.tile;
        write!(f, "dense-forward-mma-{}-d{}", self.dtype, self.head)?;
        if self.head_v != self.head {
            write!(f, "-v{}", self.head_v)?;
        }
        write!(f, "-{rows}x{keys}")?;
        for (flag, name) in [
            (self.mask, "-mask"),
            (self.split, "-split"),
            (self.padded, "-padded"),
        ] {
            if flag {
                f.write_str(name)?;
            }
        }
        describe_alignment(f, self.align)
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
    /// As in [`Mma`].
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

fn describe_alignment(f: &mut fmt::Formatter<'_>, align: u32) -> fmt::Result {
    match align {
        16 => Ok(()),
        2 => f.write_str("-strided"),
        align => write!(f, "-align{align}"),
    }
}

/// A kernel specialised for a kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KernelVariant {
    /// Forward on tensor cores.
    Mma(Mma),
    /// Combines the results of several blocks for a query.
    Combine(Combine),
}

impl SpecialisedKernel for KernelVariant {
    fn recipe(&self) -> Box<dyn Recipe + '_> {
        match *self {
            KernelVariant::Mma(kernel) => Box::new(kernel),
            KernelVariant::Combine(kernel) => Box::new(kernel),
        }
    }
}

impl fmt::Display for KernelVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.recipe().fmt(f)
    }
}

/// All kernels of this operator that this library ships.
pub fn shipped() -> Vec<ShippedKernel> {
    [(MMA_ENTRY, MMA_PARTS), (COMBINE_ENTRY, COMBINE_PARTS)]
        .iter()
        .map(ShippedKernel::new)
        .collect()
}
