//! How a rung is launched.

pub use fourtap::tuning::{Choice, Parameter};
pub use fourtap_lab::extension::Hardware;

/// More levels than this do not fit the kernels' arguments.
pub const LEVEL_CAPACITY: usize = 16;

/// Of a level: sizes, and its first pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Its first pixel among those of all levels.
    pub start: u32,
}

impl Level {
    /// How many it has.
    pub fn pixels(self) -> u32 {
        self.width * self.height
    }
}

/// The sizes of a problem of deformable attention that rungs can take: everything that counts rows or pixels fits 31 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// N.
    pub images: u32,
    /// Q.
    pub queries: u32,
    /// M.
    pub heads: u32,
    /// D.
    pub channels: u32,
    /// P.
    pub points: u32,
    /// Pixels of all levels (S).
    pub pixels: u32,
    /// One right after another.
    pub levels: Vec<Level>,
}

impl Shape {
    /// (image, query, head) rows of the result.
    pub fn rows(&self) -> u32 {
        self.images * self.queries * self.heads
    }

    /// Samples of a row.
    pub fn samples(&self) -> u32 {
        self.levels.len() as u32 * self.points
    }

    /// Bytes of a pixel of one head, in f16.
    pub fn pixel_bytes(&self) -> u32 {
        2 * self.channels
    }
}

/// How many blocks a launch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// This many; a multiple of the cluster's size.
    Exactly(u32),
    /// As many as the device runs at once, in whole clusters; at least one.
    Filling,
    /// One per multiprocessor.
    OneEach,
}

/// One launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The kernel's name in the source.
    pub entry: &'static str,
    /// Of the launch.
    pub blocks: Blocks,
    /// Of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Blocks of a cluster.
    pub cluster: Option<u32>,
    /// Percent of a multiprocessor's fast memory to have as shared memory; the driver's choice if none.
    pub carveout: Option<u32>,
    /// It depends on value alone, as a change of layout does, so that whoever keeps its result need not repeat it. Such
    /// steps come first. A rung with any is timed with and without them.
    pub prepares: bool,
}

impl Step {
    /// A launch without anything unusual.
    pub fn new(entry: &'static str, blocks: u32, threads: u32) -> Self {
        Step {
            entry,
            blocks: Blocks::Exactly(blocks),
            threads,
            shared_bytes: 0,
            cluster: None,
            carveout: None,
            prepares: false,
        }
    }
}

/// A tensor map: what of a tensor is loaded at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// Of one level of value, seen as {M * D channels, width, height, images}.
    Level {
        /// Which level.
        level: usize,
        /// Elements of the box in each of the four dimensions, at most 256.
        sides: [u32; 4],
    },
    /// Of an input of dense attention, seen as {D channels, rows, heads of all sequences, 1}: 64 channels at once, or 32
    /// where there are no more, of so many rows. Pieces of 16 bytes are exchanged within a row, as tensor cores read them.
    Rows {
        /// Query, key or value.
        input: usize,
        /// At most 256.
        rows: u32,
    },
}

/// How a rung computes a problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Macros beside those of the shape and the parameters.
    pub defines: Vec<(&'static str, u32)>,
    /// One after another.
    pub steps: Vec<Step>,
    /// Memory to work in.
    pub scratch_bytes: u64,
    /// How much of its beginning is set to zero before the steps that do not prepare; that is timed too.
    pub cleared_bytes: u64,
    /// Given to every kernel after the problem, in this order, as `Maps`.
    pub maps: Vec<Map>,
    /// Multiplies by groups of four warps (wgmma), which only compute capability 9.0 has.
    pub needs_wgmma: bool,
}

impl Plan {
    /// Of one launch.
    pub fn of(step: Step) -> Self {
        Plan {
            steps: vec![step],
            ..Plan::default()
        }
    }

    /// The plan, if a device of this compute capability has the instructions; else in words, what is missing.
    pub fn for_capability(self, (major, minor): (u32, u32)) -> PlanResult {
        match self.needs_wgmma && (major, minor) != (9, 0) {
            true => Err(format!(
                "only compute capability 9.0 has wgmma; this device has {major}.{minor}"
            )),
            false => Ok(self),
        }
    }
}

/// A plan, or in words why there is none for such a problem or device.
pub type PlanResult = Result<Plan, String>;
