//! The kernel for Hopper: which problems it serves, and in which tiles.

use super::described::{ProblemDesc, unsupported};
use super::folded::FoldedProblem;
use super::mask::{self, MaskPlan};
use super::plan::Plan;
use super::specialised::{AttnKind, KernelVariant, Wgmma};
use super::tile::{Head, Tile};
use super::tuning::{KernelChoice, Tuning};
use super::workspace::Workspace;
use crate::cuda::device_size::DeviceSize;
use crate::cuda::step::Step;
use crate::cuda::tuning::refused;
use crate::dense::{AttnMaskDesc, Sizes};
use crate::dtype::DType;
use crate::error::Result;

/// Queries of a group of four warps, and threads of such a group.
pub(super) const GROUP_ROWS: u32 = 64;
const GROUP_THREADS: u32 = 128;

/// Tiles of keys and values in shared memory.
pub(super) const STAGES: u32 = 2;

/// Barriers in shared memory.
const BARRIER_BYTES: u32 = 256;

/// A block's part of the query-key matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupTile {
    /// Queries: those of one to three groups of four warps.
    pub rows: u32,
    /// Keys at a time.
    pub keys: u32,
    /// Whether outputs have shared memory of their own. Otherwise they lie where queries did.
    pub out_apart: bool,
    /// Cost of an element of the query-key matrix, in percent of its cost in the first tile of the other kernel.
    cost: u32,
}

const fn tile(rows: u32, keys: u32, cost: u32) -> GroupTile {
    GroupTile {
        rows,
        keys,
        out_apart: true,
        cost,
    }
}

/// A table: tiles for at most that many channels.
type Tiles = [(u32, &'static [GroupTile])];

/// Measured on an H200 (docs/cuda-dense.md).
const TILES: &Tiles = &[
    (32, &[tile(192, 128, 77)]),
    (64, &[tile(192, 128, 65), tile(64, 128, 68)]),
    (96, &[tile(128, 128, 63)]),
    (128, &[tile(128, 160, 61), tile(128, 128, 62)]),
    (192, &[tile(128, 112, 41).in_place()]),
    (256, &[tile(128, 80, 45).in_place()]),
];

/// The same where a tensor hides keys, for which fewer registers are left.
const HIDING: &Tiles = &[
    (32, &[tile(192, 96, 83)]),
    (64, &[tile(192, 96, 75)]),
    (128, &[tile(128, 128, 62)]),
    (192, &[tile(128, 80, 44).in_place()]),
    (256, &[tile(128, 64, 43).in_place()]),
];

/// The same where a tensor is added to logits.
const BIASED: &Tiles = &[
    (32, &[tile(128, 128, 95)]),
    (64, &[tile(128, 128, 80)]),
    (128, &[tile(128, 96, 66)]),
    (192, &[tile(128, 80, 55).in_place()]),
    (256, &[tile(128, 64, 51).in_place()]),
];

/// Rows of logits that share a row of biases, from which on it pays to bring these into the order of the logits first.
const WORTH_PREPARING: usize = 8;

/// Cost of a part of a tile, in percent of the whole: as many groups as its index says compute.
const OF_TWO_GROUPS: [u128; 2] = [0, 70];
const OF_THREE_GROUPS: [u128; 3] = [0, 61, 80];

/// What starting takes, as many keys: a tile of queries, and a block.
const TILE_START: usize = 75;
const BLOCK_START: u128 = 300;

/// Blocks that end unevenly, their tiles being of different lengths, in percent.
const UNEVEN: u128 = 105;

impl GroupTile {
    /// With outputs where queries were.
    const fn in_place(self) -> GroupTile {
        GroupTile {
            out_apart: false,
            ..self
        }
    }

    /// The tiles for such heads.
    fn for_head(head: Head, attn: AttnKind) -> &'static [GroupTile] {
        let all = match attn {
            AttnKind::None => TILES,
            AttnKind::Bits => HIDING,
            AttnKind::Bias | AttnKind::Given => BIASED,
        };
        let channels = head.key.max(head.value);
        let found = all.iter().find(|(most, _)| channels <= *most);
        found.map_or(&[], |(_, tiles)| tiles)
    }

    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        tile(128, 128, 100)
    }

    /// Groups of four warps.
    fn groups(&self) -> u32 {
        self.rows / GROUP_ROWS
    }

    /// Warps that compute.
    pub(super) fn warps(&self) -> u32 {
        4 * self.groups()
    }

    /// Threads per block, with those that bring tiles.
    pub(super) fn threads(&self) -> u32 {
        GROUP_THREADS * (self.groups() + 1)
    }

    /// Shared memory per block; see kernels/dense/forward_wgmma.cu.
    pub(super) fn shared_bytes(&self, head: Head) -> u32 {
        let Head { key, value, .. } = head;
        let of_row = match self.out_apart {
            true => key + value,
            false => key.max(value),
        };
        2 * (self.rows * of_row + STAGES * self.keys * (key + value)) + BARRIER_BYTES
    }
}

/// How the kernel serves a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HopperPlan {
    tile: GroupTile,
    blocks: u32,
    /// Whether each block has as many slabs of a group's queries as any other. Otherwise tiles are dealt.
    even: bool,
    /// Time, as [`super::tile::Tile::choose`] estimates it.
    time: u128,
}

/// What decides besides the device.
struct HopperProblem<'a> {
    folded: &'a FoldedProblem,
    head: Head,
    attn: AttnKind,
}

impl HopperProblem<'_> {
    /// The plan that should take least time; `None` where the kernel serves nothing.
    fn plan(&self, device: DeviceSize) -> Option<HopperPlan> {
        let tiles = GroupTile::for_head(self.head, self.attn);
        let fitting = tiles
            .iter()
            .filter(|tile| tile.shared_bytes(self.head) <= device.shared_bytes);
        let plans = fitting.filter_map(|tile| self.with(*tile, device));
        plans.min_by_key(|plan| plan.time)
    }

    /// The plan with this tile.
    fn with(&self, tile: GroupTile, device: DeviceSize) -> Option<HopperPlan> {
        let folded = self.folded;
        let (planes, available) = (folded.planes(), device.multiprocessors.max(1) as usize);
        let (units, slabs) = (
            planes.checked_mul(folded.rows.div_ceil(tile.rows as usize))?,
            planes.checked_mul(folded.rows.div_ceil(GROUP_ROWS as usize))?,
        );
        // Blocks count them in 32 bits, and go beyond the last by as many as there are.
        if slabs + 2 * available >= 1 << 32 || units == 0 || folded.keys == 0 {
            return None;
        }
        // A group alone waits for itself, which pays only if every multiprocessor gets one.
        if tile.groups() == 1 && units > available {
            return None;
        }
        let is_banded = folded.bounds.is_some();
        let mut keys = folded.keys.next_multiple_of(tile.keys as usize);
        if is_banded {
            // Part of the tiles at each end is hidden.
            keys += tile.keys as usize;
        }
        keys += TILE_START;
        let of_key = u128::from(tile.rows) * u128::from(tile.cost);
        let work = of_key * keys as u128;
        let all = available as u128;
        let dealt = match is_banded {
            true => units.max(available) as u128 * UNEVEN,
            false => units.div_ceil(available) as u128 * all * 100,
        };
        let groups = tile.groups() as usize;
        let most = slabs.div_ceil(available);
        let part = match groups {
            1 => 0,
            2 => OF_TWO_GROUPS[most % groups],
            _ => OF_THREE_GROUPS[most % groups],
        };
        let evenly = ((most / groups) as u128 * 100 + part) * all;
        // Blocks that are next to each other in time are not in keys.
        let key_bytes =
            planes / folded.group * folded.keys * 2 * (self.head.key + self.head.value) as usize;
        let is_in_l2 = key_bytes <= device.l2_bytes as usize / 4 * 3;
        // A mask that hides makes sequences of different lengths, and biases are shared best by blocks that follow each other.
        let even = self.attn == AttnKind::None && !is_banded && is_in_l2 && evenly < dealt;
        let blocks = if even { slabs } else { units }.min(available) as u32;
        Some(HopperPlan {
            tile,
            blocks,
            even,
            time: work * if even { evenly } else { dealt } + of_key * BLOCK_START * 100 * all,
        })
    }
}

impl ProblemDesc {
    /// By the kernel for Hopper, where there is such a device, it serves the problem, and should be faster or is asked for.
    pub(super) fn on_hopper(
        &self,
        folded: &FoldedProblem,
        head: Head,
        device: DeviceSize,
        tuning: &Tuning,
    ) -> Result<Option<Plan>> {
        let attn = self.attn_on_hopper();
        let serves = device.has_wgmma && self.boxes && self.align == 16 && self.dtype != DType::F32;
        let chosen = tuning.kernel();
        let problem = HopperProblem { folded, head, attn };
        if chosen == KernelChoice::Wgmma && tuning.has_tile() {
            return Err(refused(
                "parameters of the other kernel beside kernel = 2".to_string(),
            ));
        }
        let plan = match chosen {
            KernelChoice::Mma => None,
            _ if !serves => None,
            _ => problem.plan(device),
        };
        let plan = match (plan, chosen) {
            (plan, KernelChoice::Wgmma) => {
                let missing =
                    || refused("a problem that the kernel for Hopper does not serve".to_string());
                Some(plan.ok_or_else(missing)?)
            }
            (Some(plan), _) => {
                let of = [folded.planes(), folded.rows, folded.keys];
                let tiles = Tile::for_head(head, AttnKind::of(self.attn_mask.as_ref()));
                let other = Tile::choose(tiles, of, device.multiprocessors);
                other
                    .is_none_or(|(_, time)| plan.time < time)
                    .then_some(plan)
            }
            (None, _) => None,
        };
        plan.map(|plan| self.with_groups(folded, head, attn, plan))
            .transpose()
    }

    /// How the kernel reads a tensor that masks: biases of the type of queries as they are given, if a row's keys are side by side
    /// and few rows of logits share them.
    fn attn_on_hopper(&self) -> AttnKind {
        let is_readable =
            |mask: &AttnMaskDesc| mask.bias == Some(self.dtype) && mask.strides[3] == 1;
        let sizes = [self.sizes.batch, self.sizes.query_heads, self.sizes.queries];
        let sharing = |mask: &AttnMaskDesc| -> usize {
            let of_axis = |(size, stride): (usize, isize)| if stride == 0 { size } else { 1 };
            let axes = sizes.into_iter().zip(mask.strides);
            axes.map(of_axis).fold(1, usize::saturating_mul)
        };
        match &self.attn_mask {
            Some(mask) if is_readable(mask) && sharing(mask) < WORTH_PREPARING => AttnKind::Given,
            mask => AttnKind::of(mask.as_ref()),
        }
    }

    /// The plan of the kernel for Hopper.
    fn with_groups(
        &self,
        folded: &FoldedProblem,
        head: Head,
        attn: AttnKind,
        plan: HopperPlan,
    ) -> Result<Plan> {
        let HopperPlan {
            tile, blocks, even, ..
        } = plan;
        let GroupTile { rows, keys, .. } = tile;
        let mask = match &self.attn_mask {
            Some(mask) if attn != AttnKind::Given => {
                let too_many = || unsupported("fewer elements", format!("{:?}", self.sizes));
                let plan = MaskPlan::new(mask, folded, self.sizes.group(), [rows, keys]);
                Some(plan.ok_or_else(too_many)?)
            }
            _ => None,
        };
        let given_strides = |mask: &AttnMaskDesc| {
            let strides = mask::folded_strides(mask, folded, self.sizes.group());
            strides.map(|stride| stride * self.dtype.size() as i64)
        };
        let Sizes {
            channels,
            value_channels,
            ..
        } = self.sizes;
        Ok(Plan {
            forward: Step {
                kernel: KernelVariant::Wgmma(Wgmma {
                    dtype: self.dtype,
                    head: head.key,
                    head_v: head.value,
                    tile,
                    mask: folded.bounds.is_some(),
                    attn,
                    padded: head.key as usize != channels || head.value as usize != value_channels,
                }),
                blocks: [blocks, 1],
                threads: tile.threads(),
                shared_bytes: tile.shared_bytes(head),
            },
            combine: None,
            splits: 1,
            is_even: even,
            mask,
            conversion: None,
            mask_strides: match (&mask, &self.attn_mask) {
                (Some(plan), _) => plan.strides,
                (None, given) => given.as_ref().map_or([0; 4], given_strides),
            },
            mask_first_byte: self.mask_first_byte(folded),
            workspace: Workspace::new(0, head.value, mask.as_ref(), None),
            folded: *folded,
            dtype: self.dtype,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::device_size::H200;
    use crate::dense::Mask;

    fn planned(batch: usize, heads: usize, length: usize, channels: usize) -> HopperPlan {
        let sizes = Sizes {
            batch,
            query_heads: heads,
            key_heads: heads,
            queries: length,
            keys: length,
            channels,
            value_channels: channels,
        };
        let problem = HopperProblem {
            folded: &FoldedProblem::new(&sizes, &Mask::default()),
            head: Head {
                key: channels as u32,
                value: channels as u32,
                parts: 1,
            },
            attn: AttnKind::None,
        };
        problem.plan(H200).unwrap()
    }

    #[test]
    fn work_is_even_where_keys_stay_in_l2_and_that_helps() {
        // 33 MB of keys and values, and 5.3 tiles of queries for each multiprocessor.
        assert!(planned(4, 16, 2048, 64).even);
        assert!(planned(8, 12, 1370, 64).even);
        assert!(!planned(4, 16, 8192, 64).even);
    }

    #[test]
    fn every_tile_fits_into_shared_memory() {
        for tables in [TILES, HIDING, BIASED] {
            for &(channels, tiles) in tables {
                let head = Head {
                    key: channels,
                    value: channels,
                    parts: 1,
                };
                for tile in tiles {
                    assert!(tile.shared_bytes(head) <= H200.shared_bytes, "{tile:?}");
                    assert!(tile.rows.is_multiple_of(GROUP_ROWS) && tile.keys.is_multiple_of(16));
                }
            }
        }
    }

    #[test]
    fn keys_that_do_not_fill_a_large_tile_get_a_smaller_one() {
        assert_eq!(planned(2, 16, 8192, 128).tile.keys, 160);
        assert_eq!(planned(2, 16, 1024, 128).tile.keys, 128);
    }
}
