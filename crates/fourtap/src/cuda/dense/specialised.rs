//! The kernels of the attention itself, what each is compiled for, and the list of all.

use std::fmt;

use super::auxiliary::{
    COMBINE_ENTRY, COMBINE_PARTS, CONVERT_ENTRY, CONVERT_PARTS, Combine, MASK_ENTRY, MASK_PARTS,
    PrepareF32, PrepareMask,
};
use super::backward::{
    self, BiasSum, GradientBias, GradientFinish, GradientMma, GradientStatistics, GradientWgmma,
};
use super::hopper::{GroupTile, STAGES};
use super::tile::Tile;
use crate::cuda::recipe::sources::{ARITHMETIC, ASYNC, COPY, GROUP_MATRIX, MATRIX, MEMORY, TYPES};
use crate::cuda::recipe::{
    Defines, DynamicShared, Recipe, ShippedKernel, SpecialisedKernel, flag, name, number,
};
use crate::dense::AttnMaskDesc;
use crate::dtype::DType;

pub(super) const PROBLEM: &str = include_str!("../../../kernels/dense/problem.cuh");

/// What the kernels on tensor cores consist of, before their own source.
macro_rules! tensor_core_parts {
    ([$($common:expr),*], $($own:literal),*) => {
        &[
            TYPES,
            MEMORY,
            COPY,
            $($common,)*
            MATRIX,
            ARITHMETIC,
            PROBLEM,
            include_str!("../../../kernels/dense/tile.cuh"),
            include_str!("../../../kernels/dense/rows.cuh"),
            include_str!("../../../kernels/dense/mask.cuh"),
            include_str!("../../../kernels/dense/work.cuh"),
            include_str!("../../../kernels/dense/masking.cuh"),
            include_str!("../../../kernels/dense/output.cuh"),
            include_str!("../../../kernels/dense/careful.cuh"),
            $(include_str!(concat!("../../../kernels/dense/", $own))),*
        ]
    };
}

const MMA_ENTRY: &str = "dense_forward_mma";
const MMA_PARTS: &[&str] = tensor_core_parts!([], "columns.cuh", "forward_mma.cu");

const WGMMA_ENTRY: &str = "dense_forward_wgmma";
const WGMMA_PARTS: &[&str] = tensor_core_parts!([ASYNC, GROUP_MATRIX], "forward_wgmma.cu");

const F32_ENTRY: &str = "dense_forward_f32";
const F32_PARTS: &[&str] = tensor_core_parts!([], "forward_f32.cu");

const PLAIN_ENTRY: &str = "dense_forward_plain";
const PLAIN_PARTS: &[&str] = &[
    TYPES,
    PROBLEM,
    include_str!("../../../kernels/dense/forward_plain.cu"),
];

/// A tensor that masks, as kernels on tensor cores read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttnKind {
    /// There is none.
    #[default]
    None,
    /// A bit for each key.
    Bits,
    /// Numbers that are added to logits.
    Bias,
    /// The same, read as they are given.
    Given,
}

impl AttnKind {
    pub(super) fn of(mask: Option<&AttnMaskDesc>) -> Self {
        match mask.map(|mask| mask.bias) {
            None => AttnKind::None,
            Some(None) => AttnKind::Bits,
            Some(Some(_)) => AttnKind::Bias,
        }
    }

    pub(super) fn define(self) -> (&'static str, String) {
        ("ATTN", number(self as u32))
    }
}

impl fmt::Display for AttnKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AttnKind::None => "",
            AttnKind::Bits => "-bits",
            AttnKind::Bias => "-bias",
            AttnKind::Given => "-given",
        })
    }
}

/// Tensor cores by `mma.sync`; see kernels/dense/forward_mma.cu and, for f32, forward_f32.cu.
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
    /// Whether the visible keys are a band.
    pub mask: bool,
    /// The tensor that masks, if there is one.
    pub attn: AttnKind,
    /// Whether a block processes a split of the keys, and another kernel combines them.
    pub split: bool,
    /// Whether channels were rounded up.
    pub padded: bool,
    /// Alignment of rows, in bytes: 16 or 4; 2 for rows with any strides.
    pub align: u32,
}

impl Recipe for Mma {
    fn entry(&self) -> &'static str {
        match self.dtype {
            DType::F32 => F32_ENTRY,
            _ => MMA_ENTRY,
        }
    }

    fn parts(&self) -> &'static [&'static str] {
        match self.dtype {
            DType::F32 => F32_PARTS,
            _ => MMA_PARTS,
        }
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
            ("WARPS", number(self.tile.warps)),
            ("STAGES", number(self.tile.stages)),
            ("MASK", flag(self.mask)),
            ("SPLIT", flag(self.split)),
            ("PADDED", flag(self.padded)),
            ("ALIGN", number(self.align)),
            self.attn.define(),
        ]
    }

    fn dynamic_shared(&self) -> DynamicShared {
        DynamicShared::All
    }
}

impl fmt::Display for Mma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tile { rows, keys, .. } = self.tile;
        match self.dtype {
            DType::F32 => write!(f, "dense-forward-f32-d{}", self.head)?,
            dtype => write!(f, "dense-forward-mma-{dtype}-d{}", self.head)?,
        }
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
        write!(f, "{}", self.attn)?;
        describe_alignment(f, self.align)
    }
}

/// Tensor cores of Hopper by `wgmma`, tiles by TMA; see kernels/dense/forward_wgmma.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wgmma {
    /// Element type: f16 or bf16.
    pub dtype: DType,
    /// Channels of queries and keys, rounded up to a multiple of 32.
    pub head: u32,
    /// The same of values.
    pub head_v: u32,
    /// How the work is split.
    pub tile: GroupTile,
    /// Whether the visible keys are a band.
    pub mask: bool,
    /// The tensor that masks, if there is one.
    pub attn: AttnKind,
    /// Whether channels were rounded up.
    pub padded: bool,
}

impl Recipe for Wgmma {
    fn entry(&self) -> &'static str {
        WGMMA_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        WGMMA_PARTS
    }

    fn defines(&self) -> Defines {
        vec![
            ("VALUE", name(self.dtype)),
            ("HEAD", number(self.head)),
            ("HEAD_V", number(self.head_v)),
            ("BLOCK_M", number(self.tile.rows)),
            ("BLOCK_N", number(self.tile.keys)),
            ("KEY_WARPS", number(1)),
            ("WARPS", number(self.tile.warps())),
            ("STAGES", number(STAGES)),
            ("OUT_APART", flag(self.tile.out_apart)),
            ("MASK", flag(self.mask)),
            ("SPLIT", flag(false)),
            ("PADDED", flag(self.padded)),
            ("ALIGN", number(16)),
            self.attn.define(),
        ]
    }

    fn only_for(&self) -> Option<&'static str> {
        Some("sm_90a")
    }

    fn dynamic_shared(&self) -> DynamicShared {
        DynamicShared::All
    }
}

impl fmt::Display for Wgmma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dense-forward-wgmma-{}-d{}", self.dtype, self.head)?;
        if self.head_v != self.head {
            write!(f, "-v{}", self.head_v)?;
        }
        write!(f, "-{}x{}", self.tile.rows, self.tile.keys)?;
        for (flag, name) in [(self.mask, "-mask"), (self.padded, "-padded")] {
            if flag {
                f.write_str(name)?;
            }
        }
        write!(f, "{}", self.attn)
    }
}

/// A warp a query; see kernels/dense/forward_plain.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plain {
    /// Element type.
    pub dtype: DType,
    /// Channels of values, rounded up to a multiple of 32.
    pub head_v: u32,
    /// Whether the visible keys are a band.
    pub mask: bool,
    /// The tensor that masks, if there is one.
    pub attn: AttnKind,
    /// The type of its numbers.
    pub bias: Option<DType>,
}

impl Recipe for Plain {
    fn entry(&self) -> &'static str {
        PLAIN_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        PLAIN_PARTS
    }

    fn defines(&self) -> Defines {
        let mut defines = vec![
            ("VALUE", name(self.dtype)),
            ("HEAD_V", number(self.head_v)),
            ("MASK", flag(self.mask)),
            self.attn.define(),
        ];
        defines.extend(self.bias.map(|dtype| ("BIAS_TYPE", name(dtype))));
        defines
    }
}

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dense-forward-plain-{}-v{}", self.dtype, self.head_v)?;
        if self.mask {
            f.write_str("-mask")?;
        }
        write!(f, "{}", self.attn)?;
        match self.bias {
            Some(dtype) => write!(f, "-{dtype}"),
            None => Ok(()),
        }
    }
}

pub(super) fn describe_alignment(f: &mut fmt::Formatter<'_>, align: u32) -> fmt::Result {
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
    /// Forward on those of Hopper.
    Wgmma(Wgmma),
    /// Combines the results of several blocks for a query.
    Combine(Combine),
    /// Forward as it is defined.
    Plain(Plain),
    /// Brings a tensor that masks into another form.
    PrepareMask(PrepareMask),
    /// The same for query, key and value of f32.
    PrepareF32(PrepareF32),
    /// What gradients need to know of each query.
    GradientStatistics(GradientStatistics),
    /// Gradients on tensor cores.
    GradientMma(GradientMma),
    /// Gradients on those of Hopper.
    GradientWgmma(GradientWgmma),
    /// Brings their sums into the type of queries.
    GradientFinish(GradientFinish),
    /// The gradient of a bias.
    GradientBias(GradientBias),
    /// Adds up its parts.
    BiasSum(BiasSum),
}

impl SpecialisedKernel for KernelVariant {
    fn recipe(&self) -> Box<dyn Recipe + '_> {
        match *self {
            KernelVariant::Mma(kernel) => Box::new(kernel),
            KernelVariant::Wgmma(kernel) => Box::new(kernel),
            KernelVariant::Combine(kernel) => Box::new(kernel),
            KernelVariant::Plain(kernel) => Box::new(kernel),
            KernelVariant::PrepareMask(kernel) => Box::new(kernel),
            KernelVariant::PrepareF32(kernel) => Box::new(kernel),
            KernelVariant::GradientStatistics(kernel) => Box::new(kernel),
            KernelVariant::GradientMma(kernel) => Box::new(kernel),
            KernelVariant::GradientWgmma(kernel) => Box::new(kernel),
            KernelVariant::GradientFinish(kernel) => Box::new(kernel),
            KernelVariant::GradientBias(kernel) => Box::new(kernel),
            KernelVariant::BiasSum(kernel) => Box::new(kernel),
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
    let forward = [
        (MMA_ENTRY, MMA_PARTS),
        (WGMMA_ENTRY, WGMMA_PARTS),
        (F32_ENTRY, F32_PARTS),
        (PLAIN_ENTRY, PLAIN_PARTS),
        (COMBINE_ENTRY, COMBINE_PARTS),
        (MASK_ENTRY, MASK_PARTS),
        (CONVERT_ENTRY, CONVERT_PARTS),
    ];
    let forward = forward.iter().map(ShippedKernel::new);
    forward.chain(backward::shipped()).collect()
}
