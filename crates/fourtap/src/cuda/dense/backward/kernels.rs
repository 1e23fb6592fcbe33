//! The kernels, and what each is compiled for.

use std::fmt;

use crate::cuda::dense::specialised::{AttnKind, PROBLEM, describe_alignment};
use crate::cuda::recipe::sources::{ARITHMETIC, ASYNC, COPY, GROUP_MATRIX, MATRIX, MEMORY, TYPES};
use crate::cuda::recipe::{Defines, DynamicShared, Recipe, ShippedKernel, flag, name, number};
use crate::dense::Sizes;
use crate::dtype::DType;

const PRODUCTS: &str = include_str!("../../../../kernels/dense/backward/products.cuh");
const CAREFUL: &str = include_str!("../../../../kernels/dense/backward/careful.cuh");
const HOPPER: &str = include_str!("../../../../kernels/dense/backward/hopper.cuh");
const SHARES: &str = include_str!("../../../../kernels/dense/backward/shares.cuh");
const GRADIENT_PROBLEM: &str = include_str!("../../../../kernels/dense/backward/problem.cuh");
const BIAS: &str = include_str!("../../../../kernels/dense/backward/bias.cuh");

/// What the kernels on tensor cores consist of, before their own source.
macro_rules! tensor_core_parts {
    ([$($common:expr),*], $($own:expr),*) => {
        &[
            TYPES,
            MEMORY,
            COPY,
            $($common,)*
            MATRIX,
            ARITHMETIC,
            PROBLEM,
            include_str!("../../../../kernels/dense/tile.cuh"),
            include_str!("../../../../kernels/dense/rows.cuh"),
            include_str!("../../../../kernels/dense/mask.cuh"),
            include_str!("../../../../kernels/dense/work.cuh"),
            include_str!("../../../../kernels/dense/masking.cuh"),
            GRADIENT_PROBLEM,
            $($own),*
        ]
    };
}

const STATISTICS_ENTRY: &str = "dense_gradient_statistics";
const STATISTICS_PARTS: &[&str] = &[
    TYPES,
    MEMORY,
    PROBLEM,
    GRADIENT_PROBLEM,
    include_str!("../../../../kernels/dense/backward/statistics.cu"),
];

const MMA_ENTRY: &str = "dense_gradient_mma";
const MMA_PARTS: &[&str] = tensor_core_parts!(
    [],
    PRODUCTS,
    CAREFUL,
    include_str!("../../../../kernels/dense/backward/gradient_mma.cu")
);

const WGMMA_ENTRY: &str = "dense_gradient_wgmma";
const WGMMA_PARTS: &[&str] = tensor_core_parts!(
    [ASYNC, GROUP_MATRIX],
    CAREFUL,
    HOPPER,
    SHARES,
    include_str!("../../../../kernels/dense/backward/gradient_wgmma.cu")
);

const WIDE_ENTRY: &str = "dense_gradient_wgmma_wide";
const WIDE_PARTS: &[&str] = tensor_core_parts!(
    [ASYNC, GROUP_MATRIX],
    CAREFUL,
    HOPPER,
    SHARES,
    include_str!("../../../../kernels/dense/backward/gradient_wgmma_wide.cu")
);

const FINISH_ENTRY: &str = "dense_gradient_finish";
const FINISH_PARTS: &[&str] = tensor_core_parts!(
    [],
    CAREFUL,
    include_str!("../../../../kernels/dense/backward/finish.cu")
);

const BIAS_ENTRY: &str = "dense_gradient_bias";
const BIAS_PARTS: &[&str] = tensor_core_parts!(
    [],
    PRODUCTS,
    BIAS,
    include_str!("../../../../kernels/dense/backward/bias.cu")
);

const BIAS_SUM_ENTRY: &str = "dense_gradient_bias_sum";
const BIAS_SUM_PARTS: &[&str] = &[
    TYPES,
    PROBLEM,
    GRADIENT_PROBLEM,
    BIAS,
    include_str!("../../../../kernels/dense/backward/bias_sum.cu"),
];

/// All of them.
pub(in crate::cuda::dense) fn shipped() -> Vec<ShippedKernel> {
    [
        (STATISTICS_ENTRY, STATISTICS_PARTS),
        (MMA_ENTRY, MMA_PARTS),
        (WGMMA_ENTRY, WGMMA_PARTS),
        (WIDE_ENTRY, WIDE_PARTS),
        (FINISH_ENTRY, FINISH_PARTS),
        (BIAS_ENTRY, BIAS_PARTS),
        (BIAS_SUM_ENTRY, BIAS_SUM_PARTS),
    ]
    .iter()
    .map(ShippedKernel::new)
    .collect()
}

/// Channels as kernels see them, and how rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    pub dtype: DType,
    pub head: u32,
    pub head_v: u32,
    pub padded: bool,
    pub align: u32,
}

impl Rows {
    pub fn new(dtype: DType, sizes: &Sizes, align: u32) -> Self {
        let (channels, value_channels) = (sizes.channels, sizes.value_channels);
        let [head, head_v] = [channels, value_channels].map(|n| n.next_multiple_of(32));
        Rows {
            dtype,
            head: head as u32,
            head_v: head_v as u32,
            padded: [head, head_v] != [channels, value_channels],
            align,
        }
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-d{}", self.dtype, self.head)?;
        if self.head_v != self.head {
            write!(f, "-v{}", self.head_v)?;
        }
        Ok(())
    }
}

/// A block's part of the matrix of rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GradientTile {
    pub rows: u32,
    pub columns: u32,
    /// Resident blocks per multiprocessor that the register count must allow.
    pub blocks: u32,
    /// Tiles of columns in shared memory.
    pub stages: u32,
}

/// Warps of a block.
pub(super) const WARPS: u32 = 4;

/// What all kernels on tensor cores are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Common {
    pub rows: Rows,
    pub tile: GradientTile,
    /// Whether what a row sees is a band.
    pub mask: bool,
    pub attn: AttnKind,
    pub own_keys: bool,
}

impl Common {
    fn defines(&self) -> Defines {
        let Common { rows, tile, .. } = self;
        vec![
            ("VALUE", name(rows.dtype)),
            ("HEAD", number(rows.head)),
            ("HEAD_V", number(rows.head_v)),
            ("BLOCK_M", number(tile.rows)),
            ("BLOCK_N", number(tile.columns)),
            ("BLOCKS", number(tile.blocks)),
            ("MASK", flag(self.mask)),
            ("SPLIT", flag(false)),
            ("PADDED", flag(rows.padded)),
            ("ALIGN", number(rows.align)),
            ("OWN_KEYS", flag(self.own_keys)),
            self.attn.define(),
        ]
    }
}

impl fmt::Display for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GradientTile { rows, columns, .. } = self.tile;
        write!(f, "{}-{rows}x{columns}", self.rows)?;
        for (flag, name) in [(self.mask, "-mask"), (self.rows.padded, "-padded")] {
            if flag {
                f.write_str(name)?;
            }
        }
        write!(f, "{}", self.attn)?;
        describe_alignment(f, self.rows.align)
    }
}

/// What gradients need to know of each query; see kernels/dense/backward/statistics.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GradientStatistics {
    pub(super) rows: Rows,
}

impl Recipe for GradientStatistics {
    fn entry(&self) -> &'static str {
        STATISTICS_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        STATISTICS_PARTS
    }

    fn defines(&self) -> Defines {
        vec![
            ("VALUE", name(self.rows.dtype)),
            ("HEAD_V", number(self.rows.head_v)),
            ("ALIGN", number(self.rows.align)),
            ("OWN_KEYS", flag(false)),
        ]
    }
}

impl fmt::Display for GradientStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rows {
            dtype,
            head_v,
            align,
            ..
        } = self.rows;
        write!(f, "dense-gradient-statistics-{dtype}-v{head_v}")?;
        describe_alignment(f, align)
    }
}

/// Gradients of keys and values, or of queries, by `mma.sync`; see kernels/dense/backward/gradient_mma.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GradientMma {
    pub(super) common: Common,
    /// Whether the gradient of the rows is wanted: keys or queries.
    pub(super) sum: bool,
    /// Whether the gradient of values is.
    pub(super) value_sum: bool,
}

impl Recipe for GradientMma {
    fn entry(&self) -> &'static str {
        MMA_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        MMA_PARTS
    }

    fn defines(&self) -> Defines {
        let mut defines = self.common.defines();
        defines.extend([
            ("WARPS", number(WARPS)),
            ("KEY_WARPS", number(1)),
            ("STAGES", number(self.common.tile.stages)),
            ("SUM", flag(self.sum)),
            ("VALUE_SUM", flag(self.value_sum)),
            ("TURNED", flag(false)),
        ]);
        defines
    }

    fn dynamic_shared(&self) -> DynamicShared {
        DynamicShared::All
    }
}

impl fmt::Display for GradientMma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match (self.common.own_keys, self.sum, self.value_sum) {
            (false, ..) => "query",
            (true, true, true) => "key-value",
            (true, true, false) => "key",
            (true, false, _) => "value",
        };
        write!(f, "dense-gradient-mma-{of}-{}", self.common)
    }
}

/// All gradients at once on Hopper; see kernels/dense/backward/hopper.cuh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GradientWgmma {
    pub(super) common: Common,
    /// Whether the gradient of queries is wanted.
    pub(super) sum_query: bool,
    /// Whether the first share of a tile of it is stored, rather than added.
    pub(super) stores_first: bool,
}

impl Recipe for GradientWgmma {
    fn entry(&self) -> &'static str {
        if self.is_wide() {
            WIDE_ENTRY
        } else {
            WGMMA_ENTRY
        }
    }

    fn parts(&self) -> &'static [&'static str] {
        if self.is_wide() {
            WIDE_PARTS
        } else {
            WGMMA_PARTS
        }
    }

    fn defines(&self) -> Defines {
        // Masks are read by warps of 16 keys, and, of wide heads, half of a tile's queries.
        let key_warps = if self.is_wide() { 2 } else { 1 };
        let keys = self.common.tile.rows;
        let mut defines = self.common.defines();
        defines.extend([
            ("WARPS", number(keys / 16 * key_warps)),
            ("KEY_WARPS", number(key_warps)),
            ("SLABS", number(keys.div_ceil(128))),
            ("SUM_QUERY", flag(self.sum_query)),
            ("STORE_FIRST", flag(self.stores_first)),
            ("DIRECT", flag(self.adds_directly())),
            ("LOGIT_GRAD_BYTES", number(self.logit_grad_bytes())),
            ("TURNED", flag(false)),
        ]);
        defines
    }

    fn only_for(&self) -> Option<&'static str> {
        Some("sm_90a")
    }

    fn dynamic_shared(&self) -> DynamicShared {
        DynamicShared::All
    }
}

impl fmt::Display for GradientWgmma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = if self.sum_query { "" } else { "key-value-" };
        let first = if self.stores_first { "" } else { "-zeros" };
        write!(f, "dense-gradient-wgmma-{of}{}{first}", self.common)
    }
}

/// Brings the sums of queries on Hopper into their type; see kernels/dense/backward/finish.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GradientFinish {
    pub(super) common: Common,
}

impl Recipe for GradientFinish {
    fn entry(&self) -> &'static str {
        FINISH_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        FINISH_PARTS
    }

    fn defines(&self) -> Defines {
        let mut defines = self.common.defines();
        defines.extend([
            ("WARPS", number(self.common.tile.rows / 16)),
            ("KEY_WARPS", number(1)),
            ("TURNED", flag(true)),
        ]);
        defines
    }
}

impl fmt::Display for GradientFinish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dense-gradient-finish-{}", self.common)
    }
}

/// The gradient of a bias; see kernels/dense/backward/bias.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GradientBias {
    pub(super) common: Common,
    /// The type of the bias.
    pub(super) bias: DType,
}

impl Recipe for GradientBias {
    fn entry(&self) -> &'static str {
        BIAS_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        BIAS_PARTS
    }

    fn defines(&self) -> Defines {
        let mut defines = self.common.defines();
        defines.extend([
            ("WARPS", number(WARPS)),
            ("KEY_WARPS", number(1)),
            ("STAGES", number(self.common.tile.stages)),
            ("BIAS_TYPE", name(self.bias)),
        ]);
        defines
    }

    fn dynamic_shared(&self) -> DynamicShared {
        DynamicShared::All
    }
}

impl fmt::Display for GradientBias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dense-gradient-bias-{}-{}", self.bias, self.common)
    }
}

/// Adds up the parts of a bias's gradient; see kernels/dense/backward/bias_sum.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BiasSum {
    /// The type of the bias.
    pub(super) bias: DType,
}

impl Recipe for BiasSum {
    fn entry(&self) -> &'static str {
        BIAS_SUM_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        BIAS_SUM_PARTS
    }

    fn defines(&self) -> Defines {
        vec![("BIAS_TYPE", name(self.bias)), ("OWN_KEYS", flag(false))]
    }
}

impl fmt::Display for BiasSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dense-gradient-bias-sum-{}", self.bias)
    }
}
