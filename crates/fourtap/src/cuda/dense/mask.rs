//! A tensor that masks, brought into the form that kernels read: kernels/dense/mask.cuh.

use super::auxiliary::PrepareMask;
use super::folded::FoldedProblem;
use super::specialised::KernelVariant;
use crate::cuda::step::Step;
use crate::dense::AttnMaskDesc;

/// Queries and keys of a block of biases, and its bytes.
const SIDE: usize = 16;
const BIAS_BLOCK: usize = SIDE * SIDE * size_of::<f32>();
/// Blocks that a warp makes, of the same queries.
const STRIP: usize = 4;

/// Threads per block of the kernel, which makes the bits of a tile, or a strip of biases by each warp.
const THREADS: usize = 256;
const WARPS: usize = THREADS / 32;

/// How the tensor will lie in scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MaskPlan {
    /// What brings it there.
    pub step: Step<KernelVariant>,
    /// Bytes of scratch memory.
    pub bytes: usize,
    /// The same for what is known of each tile.
    pub state_bytes: usize,
    /// Of sequence, head and row, or block of rows, in bytes.
    pub strides: [i64; 4],
    /// Of sequence, head and tile of rows.
    pub state_strides: [i64; 3],
    pub arguments: MaskArguments,
}

/// `MaskArguments` of kernels/dense/prepare_mask.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MaskArguments {
    pub from: u64,
    pub to: u64,
    pub states: u64,
    strides: [i64; 4],
    heads: u32,
    rows: u32,
    keys: u32,
    row_units: u32,
    key_units: u32,
    units: u64,
    row_bytes: u32,
    key_blocks: u32,
}

/// The strides of the tensor by the axes that kernels see.
pub(super) fn folded_strides(
    mask: &AttnMaskDesc,
    folded: &FoldedProblem,
    heads_together: usize,
) -> [i64; 4] {
    let [by_sequence, by_head, by_query, by_key] = mask.strides.map(|stride| stride as i64);
    match folded.rows_are_heads {
        true => [
            by_sequence,
            by_head * heads_together as i64,
            by_head,
            by_key,
        ],
        false => [by_sequence, by_head, by_query, by_key],
    }
}

/// Bytes from the first element of the tensor to that of the first key that is read.
pub(super) fn first_byte(mask: &AttnMaskDesc, folded: &FoldedProblem) -> i64 {
    let size = mask.bias.map_or(1, |dtype| dtype.size() as i64);
    folded.first_key as i64 * mask.strides[3] as i64 * size
}

impl MaskPlan {
    /// For a problem as the kernels see it, in tiles of that many queries and keys; `None` if there would be too many blocks.
    pub fn new(
        mask: &AttnMaskDesc,
        folded: &FoldedProblem,
        heads_together: usize,
        tile: [u32; 2],
    ) -> Option<Self> {
        let strides = folded_strides(mask, folded, heads_together);
        let whole = [folded.batch, folded.heads, folded.rows];
        // One of an axis along which all are alike.
        let [sequences, heads, rows] =
            std::array::from_fn(|axis| if strides[axis] == 0 { 1 } else { whole[axis] });
        let [tile_rows, tile_keys] = tile.map(|count| count as usize);
        let key_tiles = folded.keys.div_ceil(tile_keys);
        let row_tiles = if rows == 1 {
            1
        } else {
            rows.div_ceil(tile_rows)
        };
        let padded_rows = if rows == 1 { 1 } else { row_tiles * tile_rows };
        let padded_keys = key_tiles * tile_keys;
        // Units are what a block or a warp makes; rows of bits consist of 64-bit words.
        let key_blocks = padded_keys / SIDE;
        let (row_units, key_units, row_bytes, bytes_by_row) = match mask.bias {
            None => {
                let row_bytes = padded_keys.next_multiple_of(64) / 8;
                (row_tiles, key_tiles, row_bytes, row_bytes)
            }
            Some(_) => {
                let row_blocks = padded_rows.div_ceil(SIDE);
                let strips = key_blocks.div_ceil(STRIP);
                (row_blocks, strips, 0, key_blocks * BIAS_BLOCK)
            }
        };
        let stored_rows = match mask.bias {
            None => padded_rows,
            Some(_) => row_units,
        };
        let product = |factors: &[usize]| factors.iter().copied().try_fold(1, usize::checked_mul);
        let units = product(&[sequences, heads, row_units, key_units])?;
        let bytes = product(&[sequences, heads, stored_rows, bytes_by_row])?;
        let (each, state_bytes) = match mask.bias {
            None => (1, units),
            Some(_) => (WARPS, 0),
        };
        // Without keys there is nothing to write, but a launch must have a block.
        let blocks = u32::try_from(units.div_ceil(each).max(1)).ok()?;
        if blocks >= 1 << 31 {
            return None;
        }
        let unless_one = |count: usize, stride: usize| if count == 1 { 0 } else { stride as i64 };
        let by_head = |by_row: usize, rows: usize| {
            [
                unless_one(sequences, heads * rows * by_row),
                unless_one(heads, rows * by_row),
                unless_one(padded_rows, by_row),
            ]
        };
        let [by_sequence, of_head, by_row] = by_head(bytes_by_row, stored_rows);
        Some(MaskPlan {
            step: Step {
                kernel: KernelVariant::PrepareMask(PrepareMask::new(mask.bias, tile)),
                blocks: [blocks, 1],
                threads: THREADS as u32,
                shared_bytes: 0,
            },
            bytes,
            state_bytes,
            strides: [by_sequence, of_head, by_row, 0],
            state_strides: match mask.bias {
                None => by_head(key_tiles, row_tiles),
                Some(_) => [0; 3],
            },
            arguments: MaskArguments {
                strides,
                heads: heads as u32,
                rows: rows as u32,
                keys: folded.keys as u32,
                row_units: row_units as u32,
                key_units: key_units as u32,
                // A launch without units has a block all the same.
                units: units as u64,
                row_bytes: u32::try_from(row_bytes).ok()?,
                key_blocks: key_blocks as u32,
                ..MaskArguments::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lies_as_the_kernel_declares_it() {
        assert_eq!(std::mem::offset_of!(MaskArguments, heads), 56);
        assert_eq!(std::mem::offset_of!(MaskArguments, units), 80);
        assert_eq!(size_of::<MaskArguments>(), 96);
    }
}
