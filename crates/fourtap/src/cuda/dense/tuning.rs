//! Tuning parameters of the kernel of dense attention.

use super::tile::{Head, Tile};
use crate::tuning::Choice;

/// Tuning parameters. 0 means the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Queries per block.
    pub rows: u32,
    /// Keys that a block processes at a time.
    pub keys: u32,
    /// Warps that split these keys.
    pub columns: u32,
    /// Resident blocks per multiprocessor that the register count must allow.
    pub blocks: u32,
    /// Splits of the keys, one block each.
    pub splits: u32,
    /// Whether the kernel applies a mask even where every query sees all keys.
    pub bounds: u32,
    /// Which kernel: 1 by `mma.sync`, 2 the one for Hopper. All other parameters are those of the first.
    pub kernel: u32,
}

/// Which kernel is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelChoice {
    /// The one that should be faster.
    Faster,
    Mma,
    Wgmma,
}

/// Warps of a tile that was tuned.
const USUAL_WARPS: u32 = 4;

/// Registers per multiprocessor, and the maximum per thread: the same on every architecture so far.
const REGISTERS: u32 = 1 << 16;
const MOST_REGISTERS: u32 = 255;

/// Minimum registers of a thread besides logits and sums.
const OTHER_REGISTERS: u32 = 24;

impl Tuning {
    /// From a tuning choice for this kernel.
    pub fn of(choice: &Choice) -> Self {
        Tuning {
            rows: choice.get("rows"),
            keys: choice.get("keys"),
            columns: choice.get("columns"),
            blocks: choice.get("blocks"),
            splits: choice.get("splits"),
            bounds: choice.get("bounds"),
            kernel: choice.get("kernel"),
        }
    }

    /// Whether anything but the kernel is chosen.
    pub(super) fn has_tile(&self) -> bool {
        let kernel = self.kernel;
        *self
            != Tuning {
                kernel,
                ..Tuning::default()
            }
    }

    /// The kernel that these parameters are for.
    pub(super) fn kernel(&self) -> KernelChoice {
        match self.kernel {
            2 => KernelChoice::Wgmma,
            0 if *self == Tuning::default() => KernelChoice::Faster,
            _ => KernelChoice::Mma,
        }
    }

    /// The resulting tile for heads of that many channels, or the reason why it is impossible.
    pub(super) fn tile(&self, usual: Tile, head: Head) -> Result<Tile, String> {
        let or_usual = |chosen: u32, usual: u32| if chosen == 0 { usual } else { chosen };
        let mut tile = usual;
        tile.rows = or_usual(self.rows, usual.rows);
        tile.keys = or_usual(self.keys, usual.keys);
        tile.columns = or_usual(self.columns, usual.columns);
        tile.blocks = or_usual(self.blocks, usual.blocks);
        if tile == usual {
            return Ok(usual);
        }
        // The number of warps was chosen for the usual tile.
        tile.warps = USUAL_WARPS;
        let Tile {
            rows,
            keys,
            columns,
            blocks,
            ..
        } = tile;
        let of_warp = [rows * columns / tile.warps, keys / columns];
        if of_warp.iter().any(|count| *count == 0 || count % 16 != 0) {
            return Err(format!(
                "warps without multiples of 16 rows and keys: {rows} rows, {keys} keys, {columns} columns"
            ));
        }
        if columns > 1 && head.parts > 1 {
            return Err(format!("warps of f32 that split keys: {columns} columns"));
        }
        // Warps of different columns exchange results in the space of the keys; see kernels/dense/columns.cuh.
        if columns > 1 && columns * rows * 8 > keys * 2 * head.key {
            return Err(format!(
                "too little room to exchange results: {keys} keys, {columns} columns of {rows} rows"
            ));
        }
        // In f32, four per thread of each 8 x 16 tile; see kernels/dense/rows.cuh.
        let needed = of_warp[0] / 16 * (head.value + of_warp[1]) / 2 + OTHER_REGISTERS;
        let most = (REGISTERS / tile.threads() / blocks).min(MOST_REGISTERS);
        match needed > most {
            true => Err(format!("too many registers per thread: {needed} of {most}")),
            false => Ok(tile),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::specialised::AttnKind;
    use super::*;
    use crate::tuning::spaces::cuda::DENSE_FORWARD;

    const fn head(channels: u32) -> Head {
        Head {
            key: channels,
            value: channels,
            parts: 1,
        }
    }

    #[test]
    fn every_value_finds_its_place() {
        assert_eq!(Tuning::of(&DENSE_FORWARD.defaults()), Tuning::default());
        for parameter in DENSE_FORWARD.parameters {
            let other = parameter.values[1];
            let tuning = Tuning::of(&DENSE_FORWARD.defaults().with(parameter.name, other));
            let words = format!("{tuning:?}");
            let expected = format!(" {}: {other}", parameter.name);
            assert!(words.contains(&expected), "{words}");
        }
    }

    #[test]
    fn every_tile_in_use_may_be_chosen() {
        for channels in [32, 64, 96, 128, 256] {
            let tiles = Tile::for_head(head(channels), AttnKind::None);
            for tile in tiles.iter().filter(|tile| tile.warps == USUAL_WARPS) {
                let tuning = Tuning {
                    rows: tile.rows,
                    keys: tile.keys,
                    columns: tile.columns,
                    blocks: tile.blocks,
                    ..Tuning::default()
                };
                for usual in tiles {
                    let found = tuning.tile(*usual, head(channels));
                    let found = found.map(|found| (found.rows, found.keys, found.columns));
                    assert_eq!(
                        found,
                        Ok((tile.rows, tile.keys, tile.columns)),
                        "{channels}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_no_warp_can_hold_is_refused() {
        let usual = Tile::for_head(head(128), AttnKind::None)[0];
        let refused = |tuning: Tuning| tuning.tile(usual, head(128)).unwrap_err();
        let tuning = Tuning {
            rows: 32,
            ..Tuning::default()
        };
        assert!(refused(tuning).contains("multiples of 16"));
        let tuning = Tuning {
            keys: 128,
            ..Tuning::default()
        };
        assert!(refused(tuning).contains("registers"), "{}", refused(tuning));
    }
}
