//! Blocks that read each other's shared memory, and levels copied by the copy engine.

use crate::plan::{Blocks, Choice, Hardware, Map, Parameter, Plan, PlanResult, Shape, Step};
use crate::rung::{Claim, Planner, Rung};

/// The family.
pub const RUNGS: &[Rung] = &[A08, A08_CHANNELS, A09, A10];

/// Bytes a lane reads at once.
const VECTOR_BYTES: u32 = 16;

/// Blocks a cluster can have.
const CLUSTERS: [u32; 4] = [2, 4, 8, 16];

/// A box has at most as many pixels in any direction.
const BOX_LIMIT: u32 = 256;

/// Where records begin must be a multiple of this, hence also where the levels before them end.
const ALIGNMENT: u64 = 256;

/// Shared memory the system takes beside each block's own.
const RESERVED: u64 = 1024;

const WITHOUT_CLUSTERS: &str = "a device without clusters: their blocks share shared memory here";

const A08: Rung = Rung {
    name: "a08",
    title: "distributed shared memory",
    idea: "the blocks of a cluster hold a whole image-head, every block some of the pixels, and read each other's",
    expected: "value is read once and no cache can miss, but the way between multiprocessors moves a third of what L2 \
               does: four times slower than A3",
    claim: Some(Claim {
        words: "hangs",
        why: "blocks left before others had read their memory, and levels were looked for at wrong offsets; a last \
              barrier of the cluster ends that",
    }),
    builds_on: Some("a03"),
    source: concat!(
        include_str!("../../kernels/records.cuh"),
        include_str!("../../kernels/a08_distributed_shared_memory.cu")
    ),
    hopper: true,
    approximate: None,
    parameters: &[IMAGE_HEAD_CLUSTER, THREADS_A08],
    plan: Planner::Msda(|shape, hardware, choice| distributed(shape, hardware, choice, false)),
};

const A08_CHANNELS: Rung = Rung {
    name: "a08-channels",
    title: "distributed shared memory, by channels",
    idea: "A8 as published: every block of the cluster holds some channels of all pixels",
    expected: "a row's lanes read 4 to 16 bytes each from different blocks instead of 64 from one: several times \
               slower than by pixels",
    builds_on: Some("a08"),
    plan: Planner::Msda(|shape, hardware, choice| distributed(shape, hardware, choice, true)),
    ..A08
};

const IMAGE_HEAD_CLUSTER: Parameter = Parameter::new(
    "CLUSTER",
    "blocks per cluster; 0: as few as hold an image-head",
    &[0, 2, 4, 8, 16],
    0,
);

const THREADS_A08: Parameter =
    Parameter::new("THREADS", "threads per block", &[512, 768, 1024], 768);

const A09: Rung = Rung {
    name: "a09",
    title: "persistent + distributed",
    idea: "a cluster keeps taking work, one thread for all its blocks; each small level is held by one of them",
    expected: "more levels fit than in one block, but half of what shared memory gives comes from the other \
               multiprocessor, at a fifth of the speed: 10 to 20 % slower than A3",
    claim: Some(Claim {
        words: "memory access error",
        why: "blocks used a number of work that nobody had stored; here the cluster waits for each other after it is",
    }),
    builds_on: Some("a03"),
    source: concat!(
        include_str!("../../kernels/records.cuh"),
        include_str!("../../kernels/a09_persistent_distributed.cu")
    ),
    hopper: true,
    approximate: None,
    parameters: &[
        Parameter::new("CLUSTER", "blocks per cluster", &[2, 4], 2),
        Parameter::new(
            "PIECES",
            "pieces of work per image-head",
            &[1, 2, 4, 8, 16],
            4,
        ),
        Parameter::new("THREADS", "threads per block", &[512, 640, 896], 896),
    ],
    plan: Planner::Msda(levels_in_cluster),
};

const A10: Rung = Rung {
    name: "a10",
    title: "multi-level TMA",
    idea: "small levels copied whole into shared memory by the copy engine while the part before is worked on",
    expected: "takes half of seed-full's gathers off L1's misses, but shared memory moves no more bytes per clock than \
               L1, and L1 lacks what it takes: 5 to 10 % faster than A3, mostly by sharing records",
    claim: Some(Claim {
        words: "0.766 ms",
        why: "it asked for 656 KB of shared memory and could never be launched",
    }),
    builds_on: Some("a03"),
    source: concat!(
        include_str!("../../kernels/records.cuh"),
        include_str!("../../kernels/a10_levels_by_tma.cu")
    ),
    hopper: true,
    approximate: None,
    parameters: &[
        Parameter::new(
            "STAGES",
            "buffers for levels; 2: the next ones come during work",
            &[1, 2],
            2,
        ),
        THREADS,
    ],
    plan: Planner::Msda(levels_by_boxes),
};

const THREADS: Parameter =
    Parameter::new("THREADS", "threads per block", &[512, 640, 768, 896], 896);

/// What records.cuh asks for, when so many lanes work on a row.
struct Records {
    lanes: u32,
    per_lane: u32,
}

impl Records {
    fn new(shape: &Shape, lanes: u32) -> Self {
        let per_lane = if shape.points.is_multiple_of(2 * lanes) {
            2
        } else {
            1
        };
        Records { lanes, per_lane }
    }

    /// Of the lanes that 16 bytes each give.
    fn of_vectors(shape: &Shape) -> Self {
        Records::new(shape, shape.pixel_bytes() / VECTOR_BYTES)
    }

    /// In shared memory.
    fn bytes(&self, threads: u32) -> u64 {
        u64::from(threads) * u64::from(self.per_lane) * u64::from(VECTOR_BYTES)
    }

    fn defines(&self, alternate: bool) -> Vec<(&'static str, u32)> {
        vec![
            ("LANES", self.lanes),
            ("PER_LANE", self.per_lane),
            ("ALTERNATE", u32::from(alternate)),
        ]
    }
}

/// Whether two pixels, in opposite halves of their lines, fit a wavefront.
fn halves(shape: &Shape) -> bool {
    shape.pixel_bytes() == 64
}

/// (image, head) pairs.
fn planes(shape: &Shape) -> u32 {
    shape.images * shape.heads
}

/// What is left of shared memory to hold levels in, in each of `stages` buffers.
fn room(hardware: &Hardware, taken: u64, stages: u64) -> u64 {
    let left = u64::from(hardware.shared_bytes).saturating_sub(taken);
    left / stages / ALIGNMENT * ALIGNMENT
}

/// Just enough of a multiprocessor's fast memory for one block, the rest for L1.
fn carveout(hardware: &Hardware, shared_bytes: u64) -> Option<u32> {
    let most = u64::from(hardware.shared_bytes) + RESERVED;
    let percent = ((shared_bytes + RESERVED) * 100).div_ceil(most);
    Some(percent.min(100) as u32)
}

fn distributed(
    shape: &Shape,
    hardware: &Hardware,
    choice: &Choice,
    by_channels: bool,
) -> PlanResult {
    if !hardware.has_clusters {
        return Err(WITHOUT_CLUSTERS.into());
    }
    let (chosen, threads) = (choice.get("CLUSTER"), choice.get("THREADS"));
    let pixels = u64::from(shape.pixels);
    let pixel_bytes = shape.pixel_bytes();
    for parts in CLUSTERS {
        if chosen != 0 && chosen != parts {
            continue;
        }
        let slice = pixel_bytes / parts;
        if by_channels && slice < 4 {
            return Err(format!(
                "{} channels over {parts} blocks: each needs at least two channels",
                shape.channels
            ));
        }
        let held = if by_channels {
            pixels * u64::from(slice)
        } else {
            pixels.div_ceil(u64::from(parts)) * u64::from(pixel_bytes)
        };
        let held = held.next_multiple_of(ALIGNMENT);
        let lane_bytes = if by_channels {
            slice.min(VECTOR_BYTES)
        } else {
            VECTOR_BYTES
        };
        let records = Records::new(shape, pixel_bytes / lane_bytes);
        let shared_bytes = held + records.bytes(threads);
        if shared_bytes > u64::from(hardware.shared_bytes) {
            continue;
        }
        let mut plan = Plan::of(Step {
            blocks: Blocks::Filling,
            shared_bytes: shared_bytes as u32,
            cluster: Some(parts),
            carveout: Some(100),
            ..Step::new("ladder_a08", 0, threads)
        });
        plan.defines = records.defines(false);
        plan.defines.extend([
            ("PARTS", parts),
            ("BY_CHANNELS", u32::from(by_channels)),
            ("BLOCK_BYTES", held as u32),
        ]);
        return Ok(plan);
    }
    let blocks = if chosen == 0 { 16 } else { chosen };
    Err(format!(
        "an image-head of {} bytes: {blocks} blocks of a cluster must hold it, with {} bytes of shared memory each",
        pixels * u64::from(pixel_bytes),
        hardware.shared_bytes
    ))
}

/// Levels by size, the smallest first; `bytes` says how many one takes.
fn smallest_first(shape: &Shape, bytes: impl Fn(usize) -> u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..shape.levels.len()).collect();
    order.sort_by_key(|&level| bytes(level));
    order
}

/// Which of these levels each block holds: the largest first, each to the block that has least.
fn spread(levels: &[usize], blocks: u32, bytes: impl Fn(usize) -> u64) -> (Vec<usize>, u64) {
    let mut filled = vec![0_u64; blocks as usize];
    let mut owners = vec![0; levels.len()];
    for (owner, &level) in owners.iter_mut().zip(levels).rev() {
        let emptiest = (0..filled.len()).min_by_key(|&block| filled[block]);
        *owner = emptiest.unwrap_or(0);
        filled[*owner] += bytes(level);
    }
    (owners, filled.into_iter().max().unwrap_or(0))
}

fn levels_in_cluster(shape: &Shape, hardware: &Hardware, choice: &Choice) -> PlanResult {
    if !hardware.has_clusters {
        return Err(WITHOUT_CLUSTERS.into());
    }
    let (cluster, threads) = (choice.get("CLUSTER"), choice.get("THREADS"));
    let pieces = choice.get("PIECES");
    if u64::from(planes(shape)) * u64::from(pieces) > u64::from(u32::MAX / 2) {
        return Err(format!(
            "{} image-heads in {pieces} pieces each: the counter of pieces has 31 bits",
            planes(shape)
        ));
    }
    let bytes =
        |level: usize| u64::from(shape.levels[level].pixels()) * u64::from(shape.pixel_bytes());
    let order = smallest_first(shape, bytes);
    let records = Records::of_vectors(shape);
    // Levels, four numbers of pieces and two counters of units.
    let taken = records.bytes(threads) + 16 * shape.levels.len() as u64 + 24;
    let capacity = room(hardware, taken, 2);
    let fits = |count: &usize| spread(&order[..*count], cluster, bytes).1 <= capacity;
    let count = (1..=order.len()).take_while(fits).last();
    let Some(count) = count else {
        return Err(format!(
            "levels of {} bytes and more: at least one must fit {capacity} bytes of shared memory, twice",
            order.first().map_or(0, |&level| bytes(level))
        ));
    };
    let held = &order[..count];
    let (owners, filled) = spread(held, cluster, bytes);
    let stage = filled.next_multiple_of(ALIGNMENT);
    let shared_bytes = 2 * stage + taken;
    let mut plan = Plan::of(Step {
        blocks: Blocks::Filling,
        shared_bytes: shared_bytes as u32,
        cluster: Some(cluster),
        carveout: carveout(hardware, shared_bytes),
        ..Step::new("ladder_a09", 0, threads)
    });
    let bits = owners.iter().zip(held);
    plan.defines = records.defines(halves(shape));
    plan.defines.extend([
        ("CACHED", held.iter().map(|level| 1_u32 << level).sum()),
        (
            "OWNERS",
            bits.map(|(&owner, level)| (owner as u32) << (2 * level))
                .sum(),
        ),
        ("STAGE_BYTES", stage as u32),
    ]);
    plan.scratch_bytes = 4;
    plan.cleared_bytes = 4;
    Ok(plan)
}

/// Image-heads worked on at a time so that half of L2 holds them, and all turns have as many.
fn planes_in_a_turn(shape: &Shape, hardware: &Hardware) -> u32 {
    let plane_bytes = u64::from(shape.pixels) * u64::from(shape.pixel_bytes());
    let fitting = u64::from(hardware.l2_bytes / 2) / plane_bytes.max(1);
    let fitting = fitting.clamp(1, u64::from(u32::MAX)) as u32;
    planes(shape).div_ceil(planes(shape).div_ceil(fitting).max(1))
}

fn levels_by_boxes(shape: &Shape, hardware: &Hardware, choice: &Choice) -> PlanResult {
    if !hardware.has_tensor_maps {
        return Err("a device without tensor maps: levels are copied by boxes here".into());
    }
    let (stages, threads) = (choice.get("STAGES"), choice.get("THREADS"));
    // Boxes of a level and their rows, as the kernel works them out too: where there are several, each begins at a
    // multiple of 128 bytes, which four pixels have.
    let rows = |level: usize| {
        let height = shape.levels[level].height;
        match height.div_ceil(BOX_LIMIT) {
            boxes @ 2.. => (boxes, height.div_ceil(boxes).next_multiple_of(4)),
            boxes => (boxes, height),
        }
    };
    let bytes = |level: usize| {
        let (boxes, rows) = rows(level);
        let pixels = u64::from(boxes) * u64::from(rows) * u64::from(shape.levels[level].width);
        (pixels * u64::from(shape.pixel_bytes())).next_multiple_of(ALIGNMENT)
    };
    let mut order = smallest_first(shape, bytes);
    // A row of pixels must be one box wide; a wider level hardly fits anyway.
    order.retain(|&level| shape.levels[level].width <= BOX_LIMIT);
    let records = Records::of_vectors(shape);
    // Levels, two barriers and a counter of each buffer.
    let taken = records.bytes(threads) + 16 * shape.levels.len() as u64 + 20 * u64::from(stages);
    let capacity = room(hardware, taken, u64::from(stages));
    let mut stage = 0;
    let mut copied = Vec::new();
    for level in order {
        if stage + bytes(level) > capacity {
            break;
        }
        stage += bytes(level);
        copied.push(level);
    }
    if copied.is_empty() {
        return Err(format!(
            "{} levels: one must fit {capacity} bytes of shared memory and be at most {BOX_LIMIT} pixels wide",
            shape.levels.len()
        ));
    }
    copied.sort_unstable();
    let shared_bytes = u64::from(stages) * stage + taken;
    let mut plan = Plan::of(Step {
        blocks: Blocks::OneEach,
        shared_bytes: shared_bytes as u32,
        carveout: carveout(hardware, shared_bytes),
        ..Step::new("ladder_a10", 0, threads)
    });
    plan.defines = records.defines(halves(shape));
    plan.defines.extend([
        ("CACHED", copied.iter().map(|level| 1_u32 << level).sum()),
        ("STAGE_BYTES", stage as u32),
        ("TURN", planes_in_a_turn(shape, hardware)),
    ]);
    plan.maps = copied
        .iter()
        .map(|&level| Map::Level {
            level,
            sides: [shape.channels, shape.levels[level].width, rows(level).1, 1],
        })
        .collect();
    Ok(plan)
}
