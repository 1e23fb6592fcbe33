//! The kernels of forward.

use std::fmt;

use super::common::sources::{
    COPY, DIVISOR, FORWARD_LEVELS, FORWARD_MATRIX, FORWARD_ROWS, GATHER, MATRIX, MEMORY, OVERLAP,
    PROBLEM, PROJECTION, TYPES,
};
use super::common::{Projection, Sampling, Types, smallest_capacity};
use crate::cuda::msda::arguments::LEVEL_CAPACITIES;
use crate::cuda::recipe::{Defines, DynamicShared, Recipe, flag, number};

const CHANNEL_ENTRY: &str = "msda_forward_channel";
const CHANNEL_PARTS: &[&str] = &[
    TYPES,
    DIVISOR,
    PROBLEM,
    PROJECTION,
    include_str!("../../../../kernels/msda/forward_channel.cu"),
];

const GATHER_ENTRY: &str = "msda_forward_gather";
const GATHER_PARTS: &[&str] = &[
    TYPES,
    DIVISOR,
    MEMORY,
    COPY,
    OVERLAP,
    PROBLEM,
    PROJECTION,
    GATHER,
    FORWARD_ROWS,
    FORWARD_LEVELS,
    include_str!("../../../../kernels/msda/forward_gather.cu"),
];

const MATRIX_ENTRY: &str = "msda_forward_matrix";
const MATRIX_PARTS: &[&str] = &[
    TYPES,
    DIVISOR,
    MEMORY,
    COPY,
    MATRIX,
    OVERLAP,
    PROBLEM,
    PROJECTION,
    GATHER,
    FORWARD_ROWS,
    FORWARD_LEVELS,
    FORWARD_MATRIX,
    include_str!("../../../../kernels/msda/forward_matrix.cu"),
];

pub(super) const SHIPPED: &[(&str, &[&str])] = &[
    (CHANNEL_ENTRY, CHANNEL_PARTS),
    (GATHER_ENTRY, GATHER_PARTS),
    (MATRIX_ENTRY, MATRIX_PARTS),
];

/// One thread per channel; see kernels/msda/forward_channel.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    /// Element types.
    pub types: Types,
    /// How it is told where to sample.
    pub sampling: Sampling,
    /// Whether tensors may have any strides. Otherwise they are row-major and offsets fit 32 bits.
    pub strided: bool,
    /// Maximum number of levels.
    pub level_capacity: usize,
}

impl Recipe for Channel {
    fn entry(&self) -> &'static str {
        CHANNEL_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        CHANNEL_PARTS
    }

    fn defines(&self) -> Defines {
        let index = if self.strided { "i64" } else { "u32" };
        let mut defines = self.types.defines();
        defines.extend(self.sampling.general_defines());
        defines.extend([
            ("STRIDED", flag(self.strided)),
            ("INDEX", index.to_string()),
            ("LEVEL_CAPACITY", self.level_capacity.to_string()),
        ]);
        defines
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "msda-forward-channel-{}", self.types)?;
        self.sampling.describe(f)?;
        if self.strided {
            f.write_str("-strided")?;
        }
        if self.level_capacity != LEVEL_CAPACITIES[0] {
            write!(f, "-levels{}", self.level_capacity)?;
        }
        Ok(())
    }
}

/// Sixteen bytes of channels per lane; see kernels/msda/gather.cuh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    /// Element types.
    pub types: Types,
    /// How it is told where to sample.
    pub sampling: Sampling,
    /// Channels per head (D).
    pub channels: u32,
    /// Levels (L).
    pub levels: u32,
    /// Points per level (P); where levels differ, the largest number that divides all of theirs.
    pub points: u32,
    /// Pixel stride, in units of 16 bytes.
    pub pixel_units: u32,
    /// Threads per block.
    pub threads: u32,
    /// Samples per lane at a time.
    pub per_lane: u32,
    /// Groups of lanes that share the samples of a row.
    pub split: u32,
    /// Heads processed side by side.
    pub heads_together: u32,
    /// Number of points in the sequence of levels at which warps start.
    pub phases: u32,
    /// Whether all inputs but `value`, and `out`, are row-major without gaps.
    pub dense: bool,
    /// Whether gradients are, too.
    pub grads_dense: bool,
    /// Whether all rows of those tensors lie within 2^32 bytes of the first; only kernels for projections are told.
    pub narrow: bool,
    /// Whether results are kept in f32, so that small weights must have all their digits; likewise.
    pub exact: bool,
    /// Whether the read order of a pixel pair depends on its position.
    pub alternate: bool,
    /// Whether small levels are kept in shared memory.
    pub keeps: bool,
    /// Bytes of shared memory for levels in device memory, which the kernels of a call look at to decide which of them computes
    /// it: see kernels/msda/forward_levels.cuh. 0 where the host decides.
    pub kept_room: u32,
}

/// Lanes of a warp.
const WARP: u32 = 32;

/// Maximum shared memory of a block that keeps levels. The rest of the unified memory is L1: with less L1, large levels
/// lose what small ones gain.
pub(in crate::cuda::msda) const MOST_KEPT_BYTES: u32 = 100 << 10;

/// The same on tensor cores, for levels that the host knows: measured to be slower than with less, and still faster than without.
pub(in crate::cuda::msda) const MOST_KEPT_ON_MATRIX: u32 = 132 << 10;

/// Threads of a block that keeps levels: with more, their exchange buffers would need the next larger shared memory
/// carveout.
const KEEPING_THREADS: u32 = 768;

/// Maximum samples of a row that a lane has: their logits are held in registers.
const MOST_LANE_SAMPLES: u32 = 16;

/// Maximum static shared memory of a block.
const MOST_STATIC_SHARED: u32 = 48 << 10;

impl Gather {
    /// Lanes per row.
    pub fn group(&self) -> u32 {
        (self.channels * self.types.value.size() as u32 / 16).next_power_of_two() * self.split
    }

    /// Samples of a row.
    pub fn samples(&self) -> u32 {
        match self.sampling {
            Sampling::Projected(Projection {
                uneven: Some(list), ..
            }) => list[self.levels as usize].into(),
            _ => self.levels * self.points,
        }
    }

    /// Samples of a row that a lane has, of all chunks.
    pub(in super::super) fn lane_samples(&self) -> u32 {
        self.samples().div_ceil(self.group() * self.per_lane) * self.per_lane
    }

    /// Rows per warp at a time.
    pub fn rows_per_warp(&self) -> u32 {
        WARP / self.group()
    }

    /// Rows per block at a time.
    pub fn rows_per_block(&self) -> u32 {
        self.threads / self.group()
    }

    /// Checks that it can be compiled and launched for that many heads; the error is the reason as text.
    pub(in super::super) fn expect_possible(&self, heads: usize) -> Result<(), String> {
        let Gather {
            points,
            per_lane,
            split,
            heads_together,
            phases,
            threads,
            ..
        } = *self;
        if self.group() > WARP {
            return Err(format!("a row wider than a warp: {split} groups of lanes"));
        }
        if !points.is_multiple_of(per_lane) {
            return Err(format!(
                "points that lanes cannot share: {points}, {per_lane} per lane"
            ));
        }
        if !heads.is_multiple_of(heads_together as usize) {
            return Err(format!(
                "heads that cannot be processed together: {heads}, {heads_together} at a time"
            ));
        }
        let chunks = self.samples().div_ceil(self.group() * per_lane);
        if self.sampling != Sampling::Given && chunks * per_lane > MOST_LANE_SAMPLES {
            return Err(format!("{} logits of a row", self.samples()));
        }
        if !chunks.is_multiple_of(phases) {
            return Err(format!(
                "chunks of samples that have no phases: {chunks}, {phases} phases"
            ));
        }
        match self.static_shared_bytes() > MOST_STATIC_SHARED {
            true => Err(format!(
                "too much shared memory declared: {threads} threads"
            )),
            false => Ok(()),
        }
    }

    /// The variant that keeps small levels in shared memory; `None` where that was not measured to pay off, or levels share
    /// chunks. Measured on pixels of 64 bytes of a single head: several heads side by side find them in L1.
    pub fn keeping(&self) -> Option<Gather> {
        let chunk = self.group() * self.per_lane;
        let can = self.group() == 4
            && self.split == 1
            && self.heads_together == 1
            && self.phases == 1
            && self.samples() == self.levels * self.points
            && self.points.is_multiple_of(chunk);
        can.then_some(Gather {
            threads: KEEPING_THREADS,
            keeps: true,
            ..*self
        })
    }

    /// Static shared memory per block, and a little for what the compiler and the driver add.
    pub(in super::super) fn static_shared_bytes(&self) -> u32 {
        self.threads * self.per_lane * 16 + (2 << 10)
    }

    /// Bytes of levels that a block can keep on a device with this much shared memory per block.
    pub(in super::super) fn room_for_levels(&self, shared_bytes: u32) -> Option<u32> {
        let most = MOST_KEPT_BYTES.min(shared_bytes);
        most.checked_sub(self.static_shared_bytes())
    }

    /// What all kernels that gather are specialised by.
    pub(super) fn common_defines(&self) -> Defines {
        let mut defines = self.types.defines();
        defines.extend(self.sampling.defines(self.levels));
        defines.extend([
            ("CHANNELS", number(self.channels)),
            ("LEVELS", number(self.levels)),
            ("POINTS", number(self.points)),
            ("PIXEL_UNITS", number(self.pixel_units)),
            ("THREADS", number(self.threads)),
            ("PER_LANE", number(self.per_lane)),
            ("SPLIT", number(self.split)),
            ("HEADS_TOGETHER", number(self.heads_together)),
            ("PHASES", number(self.phases)),
            ("DENSE", flag(self.dense)),
            ("NARROW", flag(self.narrow)),
            ("EXACT", flag(self.exact)),
            smallest_capacity(),
        ]);
        defines
    }

    /// What those of forward are specialised by besides.
    fn keeping_defines(&self) -> Defines {
        vec![
            ("KEEP", flag(self.keeps)),
            ("KEPT_ROOM", number(self.kept_room)),
        ]
    }

    pub(super) fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}-d{}-l{}-p{}-u{}-t{}",
            self.types, self.channels, self.levels, self.points, self.pixel_units, self.threads
        )?;
        self.sampling.describe(f)?;
        if self.split > 1 {
            write!(f, "-split{}", self.split)?;
        }
        match (self.dense, self.grads_dense) {
            (true, true) => {}
            (false, true) => f.write_str("-strided")?,
            (_, false) => f.write_str("-strided-grads")?,
        }
        if self.sampling != Sampling::Given {
            f.write_str(if self.narrow { "" } else { "-wide" })?;
            f.write_str(if self.exact { "-exact" } else { "" })?;
        }
        if self.keeps {
            f.write_str("-keep")?;
        }
        if self.kept_room > 0 {
            f.write_str("-by-levels")?;
        }
        Ok(())
    }
}

impl Recipe for Gather {
    fn entry(&self) -> &'static str {
        GATHER_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        GATHER_PARTS
    }

    fn defines(&self) -> Defines {
        let mut defines = self.common_defines();
        defines.push(("ALTERNATE", flag(self.alternate)));
        defines.extend(self.keeping_defines());
        defines
    }

    fn dynamic_shared(&self) -> DynamicShared {
        match self.keeps {
            true => DynamicShared::AtMost(MOST_KEPT_BYTES),
            false => DynamicShared::None,
        }
    }
}

impl fmt::Display for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("msda-forward-gather-")?;
        self.describe(f)
    }
}

/// Sums of 16-bit channels on tensor cores; see kernels/msda/forward_matrix.cu.
pub(super) struct Matrix(pub Gather);

impl Recipe for Matrix {
    fn entry(&self) -> &'static str {
        MATRIX_ENTRY
    }

    fn parts(&self) -> &'static [&'static str] {
        MATRIX_PARTS
    }

    fn defines(&self) -> Defines {
        let mut defines = self.0.common_defines();
        defines.extend(self.0.keeping_defines());
        defines
    }

    fn dynamic_shared(&self) -> DynamicShared {
        match self.0.keeps {
            true => DynamicShared::AtMost(MOST_KEPT_ON_MATRIX),
            false => DynamicShared::None,
        }
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("msda-forward-matrix-")?;
        self.0.describe(f)
    }
}
