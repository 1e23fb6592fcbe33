//! f32 brought into the form that kernels multiply: kernels/dense/prepare_f32.cu.

use super::auxiliary::PrepareF32;
use super::folded::FoldedProblem;
use super::specialised::KernelVariant;
use super::tile::{Head, Tile};
use crate::cuda::step::Step;

/// Threads per block of the kernel, which converts a tile.
const THREADS: u32 = 256;

/// Query, key and value in scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConversionPlan {
    /// What brings them there.
    pub step: Step<KernelVariant>,
    /// Of each tensor.
    pub tensors: [Converted; 3],
}

/// One of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Converted {
    heads: u32,
    rows: u32,
    tile: u32,
    tiles: u32,
    head: u32,
    /// Tiles of all heads.
    blocks: u32,
    /// Units of a tile: of values each channel has one.
    units: u32,
}

/// `Conversion` of kernels/dense/prepare_f32.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conversion {
    from: u64,
    to: u64,
    units: u64,
    strides: [i64; 4],
    heads: u32,
    rows: u32,
    tile: u32,
    tiles: u32,
    channels: u32,
    head: u32,
    blocks: u32,
    sign: u32,
    kept: u32,
}

impl ConversionPlan {
    /// For a problem as the kernels see it, in tiles of this size; `None` if there would be too many.
    pub fn new(folded: &FoldedProblem, tile: &Tile, head: Head) -> Option<Self> {
        let key_heads = folded.heads.checked_div(folded.group).unwrap_or(0);
        let converted = |heads: usize, rows: usize, tile: u32, head: u32, units: u32| {
            let tiles = rows.div_ceil(tile as usize);
            let blocks = u32::try_from(folded.batch * heads * tiles).ok()?;
            Some(Converted {
                heads: heads as u32,
                rows: rows as u32,
                tile,
                tiles: tiles as u32,
                head,
                blocks,
                units,
            })
        };
        let tensors = [
            converted(folded.heads, folded.rows, tile.rows, head.key, 1)?,
            converted(key_heads, folded.keys, tile.keys, head.key, 1)?,
            // Of a tile of values: its own, whether some channels have others, and those.
            converted(
                key_heads,
                folded.keys,
                tile.keys,
                head.value,
                2 + head.value,
            )?,
        ];
        let most = tensors.iter().map(|tensor| tensor.blocks).max()?;
        (most < 1 << 31).then_some(ConversionPlan {
            step: Step {
                kernel: KernelVariant::PrepareF32(PrepareF32),
                blocks: [most.max(1), tensors.len() as u32],
                threads: THREADS,
                shared_bytes: 0,
            },
            tensors,
        })
    }
}

impl Converted {
    /// Bytes of its numbers, and of the units of its tiles.
    pub fn bytes(&self) -> [usize; 2] {
        let numbers = self.blocks as usize * self.tile as usize * self.head as usize;
        [numbers * 4, self.blocks as usize * self.units as usize * 4]
    }

    /// The arguments to convert the tensor at `from`. `sign`, `kept`: bits to change and to leave.
    pub fn arguments(
        &self,
        [from, to, units]: [u64; 3],
        strides: [i64; 4],
        channels: u32,
        [sign, kept]: [u32; 2],
    ) -> Conversion {
        Conversion {
            from,
            to,
            units,
            strides,
            heads: self.heads,
            rows: self.rows,
            tile: self.tile,
            tiles: self.tiles,
            channels,
            head: self.head,
            blocks: self.blocks,
            sign,
            kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lies_as_the_kernel_declares_it() {
        assert_eq!(std::mem::offset_of!(Conversion, heads), 56);
        assert_eq!(size_of::<Conversion>(), 96);
    }
}
