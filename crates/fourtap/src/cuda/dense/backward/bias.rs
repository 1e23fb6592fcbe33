//! How the gradient of a bias is computed: kernels/dense/backward/bias.cu.

use super::kernels::{BiasSum, Common, GradientBias, GradientTile, Rows, WARPS};
use crate::cuda::dense::described::block_count;
use crate::cuda::dense::folded::FoldedProblem;
use crate::cuda::dense::specialised::{AttnKind, KernelVariant};
use crate::cuda::device_size::DeviceSize;
use crate::cuda::step::Step;
use crate::dense::BiasGradientDesc;
use crate::error::Result;

/// Blocks per multiprocessor that a split of the sum is to give.
const BLOCKS: usize = 4;

/// Bytes of partial sums, at most, unless a tile of rows or columns needs more.
const MOST_PARTIAL: usize = 64 << 20;

/// Threads per block of the kernel that adds up parts.
const SUM_THREADS: usize = 256;

/// The steps, and how the sum is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BiasPlan {
    /// `None` where there is nothing to sum.
    pub step: Option<Step<KernelVariant>>,
    /// Adds up the parts, unless there is one.
    pub sum: Option<Step<KernelVariant>>,
    pub desc: BiasGradientDesc,
    pub elements: usize,
    pub parts: usize,
    pub splits: usize,
    pub row_tiles: usize,
    pub column_tiles: usize,
}

impl BiasPlan {
    pub fn new(
        desc: BiasGradientDesc,
        folded: &FoldedProblem,
        rows: Rows,
        device: DeviceSize,
    ) -> Result<Self> {
        let tile = tile(rows, device);
        let [sequences, heads, queries, keys] = desc.sizes;
        let row_tiles = folded.rows.div_ceil(tile.rows as usize);
        let column_tiles = folded.keys.div_ceil(tile.columns as usize);
        let elements: usize = desc.sizes.iter().product();
        let of = |size: usize, whole: usize| if size == 1 { whole } else { 1 };
        let summed = of(sequences, folded.batch) * of(heads, folded.heads);
        // An axis of one element is not summed, though its size is 1.
        let tiles_of_sum = |size: usize, whole: usize, tiles: usize| match size {
            1 if whole != 1 => tiles,
            _ => 1,
        };
        let by_tiles = tiles_of_sum(queries, folded.rows, row_tiles)
            * tiles_of_sum(keys, folded.keys, column_tiles);
        let units = sequences * heads * row_tiles * column_tiles;
        let wanted = (BLOCKS * device.multiprocessors as usize).div_ceil(units.max(1));
        let affordable = MOST_PARTIAL / size_of::<f32>() / (elements * by_tiles).max(1);
        let splits = wanted.min(affordable.max(1)).clamp(1, summed.max(1));
        let parts = if summed == 0 { 0 } else { splits * by_tiles };
        let blocks = block_count(units * splits)?;
        let common = Common {
            rows,
            tile,
            mask: folded.bounds.is_some(),
            attn: AttnKind::Bias,
            own_keys: false,
        };
        let bias = desc.dtype;
        let step = Step {
            kernel: KernelVariant::GradientBias(GradientBias { common, bias }),
            blocks: [blocks, 1],
            threads: 32 * WARPS,
            shared_bytes: shared_bytes(rows, tile),
        };
        let sum = Step {
            kernel: KernelVariant::BiasSum(BiasSum { bias }),
            blocks: [block_count(elements.div_ceil(SUM_THREADS))?, 1],
            threads: SUM_THREADS as u32,
            shared_bytes: 0,
        };
        Ok(BiasPlan {
            step: (blocks > 0 && parts > 0).then_some(step),
            sum: (parts != 1 && elements > 0).then_some(sum),
            desc,
            elements,
            parts,
            splits,
            row_tiles,
            column_tiles,
        })
    }

    /// Bytes of scratch memory.
    pub fn bytes(&self) -> usize {
        match self.parts {
            1 => 0,
            parts => parts * self.elements * size_of::<f32>(),
        }
    }
}

/// The tile for such rows.
fn tile(rows: Rows, device: DeviceSize) -> GradientTile {
    let (columns, blocks) = match rows.head.max(rows.head_v) {
        ..=32 => (64, 2),
        33..=64 => (64, 2),
        65..=128 => (32, 2),
        _ => (32, 1),
    };
    let tile = |stages: u32| GradientTile {
        rows: 64,
        columns,
        blocks,
        stages,
    };
    match shared_bytes(rows, tile(2)) * blocks <= device.shared_bytes {
        true => tile(2),
        false => tile(1),
    }
}

fn shared_bytes(rows: Rows, tile: GradientTile) -> u32 {
    tile.stages * (tile.rows + tile.columns) * 2 * (rows.head + rows.head_v)
}
