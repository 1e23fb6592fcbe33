//! One block per multiprocessor that keeps what it reads: persistent rungs, and work in a cache-friendly order.

use super::limits::VECTOR;
use crate::plan::{Blocks, Choice, Hardware, Parameter, Plan, PlanResult, Shape, Step};
use crate::rung::{Claim, Planner, Rung};

/// The family.
pub const RUNGS: &[Rung] = &[A05, A06, A07, A17, A17_EVICT_LAST, A17_ORDER, A17_PLAIN];

const WARP: u32 = 32;
/// A kernel's levels and counters in shared memory: `CONTROL_BYTES` in persistent.cuh.
const CONTROL_BYTES: u32 = 1024;
/// What the driver takes of a multiprocessor's shared memory for each block.
const RESERVED_BYTES: u32 = 1024;
/// Places on an axis are worked out in the mantissa of an f32.
const SIDE_LIMIT: u32 = 1 << 23;

const THREADS: Parameter = Parameter::new(
    "THREADS",
    "threads per block, of which a multiprocessor has one",
    &[512, 640, 768, 896, 1024],
    768,
);
const CACHE_KB: Parameter = Parameter::new(
    "CACHE_KB",
    "most KB of pixels kept in shared memory, as far as it goes",
    &[16, 32, 64, 96, 128, 160, 192, 228],
    228,
);
const ITEMS: Parameter = Parameter::new(
    "ITEMS",
    "pieces of work of a multiprocessor, on average",
    &[2, 4, 8, 16],
    4,
);

const A05: Rung = Rung {
    name: "a05",
    title: "persistent",
    idea: "one block per multiprocessor takes work from a counter and keeps whole small levels in shared memory",
    expected: "little either way: small levels mostly hit L1 anyway, which loses what shared memory takes, and each \
               piece of work ends with warps waiting for the last",
    claim: Some(Claim {
        words: "3477 GFLOPS, N8 Q1024, levels 64..8",
        why: "every thread took its own piece of work, so that one output in 256 was written",
    }),
    builds_on: Some("a03"),
    source: concat!(
        include_str!("../../kernels/persistent.cuh"),
        include_str!("../../kernels/a05_persistent.cu")
    ),
    hopper: true,
    approximate: None,
    parameters: &[THREADS, CACHE_KB, ITEMS],
    plan: Planner::Msda(|shape, hardware, choice| {
        let lanes = Lanes::of_channels(shape, shape.channels);
        let kept = ResidentLevels::of(shape, hardware, choice, &lanes)?;
        kept.plan("ladder_a05", shape, hardware, choice, lanes)
    }),
};

const A06: Rung = Rung {
    name: "a06",
    title: "persistent-full",
    idea: "as a05, and of the next larger level as many rows of pixels as fit",
    expected: "a loss of 20 to 40 %: an L1 of 28 KB is too small even for the lines on their way",
    claim: Some(Claim {
        words: "3.45 ms, 2.2 TFLOPS",
        why: "levels 1 to 3 were read from wrong places, and keeping a part of a level was never written",
    }),
    builds_on: Some("a05"),
    source: concat!(
        include_str!("../../kernels/persistent.cuh"),
        include_str!("../../kernels/a06_partial_caching.cu")
    ),
    hopper: true,
    approximate: None,
    parameters: &[THREADS, CACHE_KB, ITEMS],
    plan: Planner::Msda(|shape, hardware, choice| {
        let lanes = Lanes::of_channels(shape, shape.channels);
        let mut kept = ResidentLevels::of(shape, hardware, choice, &lanes)?;
        let (level, rows) = kept
            .add_rows(shape)
            .unwrap_or((shape.levels.len() as u32, 2));
        let mut plan = kept.plan("ladder_a06", shape, hardware, choice, lanes)?;
        plan.defines
            .extend([("PARTIAL", level), ("PARTIAL_ROWS", rows)]);
        Ok(plan)
    }),
};

const A07: Rung = Rung {
    name: "a07",
    title: "channel split",
    idea: "as a05, but a block keeps and computes only some of the channels, so that more levels fit",
    expected: "about twice the time of a05: 16-byte pieces clash in banks and cost a look into L1 each, and \
               every slice reads all coordinates",
    claim: Some(Claim {
        words: "3.2x slower than A6",
        why: "neither of the two kernels compared computed what it should",
    }),
    builds_on: Some("a05"),
    source: concat!(
        include_str!("../../kernels/persistent.cuh"),
        include_str!("../../kernels/a07_channel_split.cu")
    ),
    hopper: true,
    approximate: None,
    parameters: &[
        THREADS,
        Parameter::new(
            "CHANNELS_A_BLOCK",
            "channels that a block keeps and computes",
            &[8, 16],
            8,
        ),
        CACHE_KB,
        ITEMS,
    ],
    plan: Planner::Msda(|shape, hardware, choice| {
        let lanes = Lanes::of_samples(shape, choice.get("CHANNELS_A_BLOCK").min(shape.channels));
        let kept = ResidentLevels::of(shape, hardware, choice, &lanes)?;
        kept.plan("ladder_a07", shape, hardware, choice, lanes)
    }),
};

const PLANES: Parameter = Parameter::new(
    "PLANES",
    "planes (a head of an image, or a few heads side by side) walked at a time, as far as L2 holds them",
    &[1, 2, 4, 8, 16, 32],
    8,
);
const KEPT_PERCENT: Parameter = Parameter::new(
    "KEPT_PERCENT",
    "percent of the lines of value marked to leave L2 last",
    &[25, 50, 75, 100],
    100,
);
const A17_SOURCE: &str = concat!(
    include_str!("../../kernels/persistent.cuh"),
    include_str!("../../kernels/a17_l2_resident.cu")
);

const A17_PLAIN: Rung = Rung {
    name: "a17-plain",
    title: "L2-resident: plain order",
    idea: "the kernel of a17 with rows in the order of memory and no marks: its baseline",
    expected: "L2 holds several images, and blocks move through them in step: nothing to be seen of DRAM already",
    claim: None,
    builds_on: Some("a03"),
    source: A17_SOURCE,
    hopper: false,
    approximate: None,
    parameters: &[THREADS],
    plan: Planner::Msda(|shape, hardware, choice| resident(shape, hardware, choice, false, false)),
};

const A17_ORDER: Rung = Rung {
    name: "a17-order",
    title: "L2-resident: order",
    idea: "few images and heads at a time, neighbouring rows on the same multiprocessor",
    expected: "1 to 3 %, more where heads are many: each multiprocessor stays with neighbouring queries longer",
    builds_on: Some("a17-plain"),
    parameters: &[THREADS, PLANES],
    plan: Planner::Msda(|shape, hardware, choice| resident(shape, hardware, choice, true, false)),
    ..A17_PLAIN
};

const A17_EVICT_LAST: Rung = Rung {
    name: "a17-evict-last",
    title: "L2-resident: evict last",
    idea: "value marked to leave L2 last, coordinates, weights and results to leave first",
    expected: "nothing: DRAM is not the bottleneck, and what is read once hardly crowds out value",
    builds_on: Some("a17-plain"),
    parameters: &[THREADS, KEPT_PERCENT],
    plan: Planner::Msda(|shape, hardware, choice| resident(shape, hardware, choice, false, true)),
    ..A17_PLAIN
};

const A17: Rung = Rung {
    name: "a17",
    title: "L2-resident",
    idea: "order and marks together: few images at a time, and value marked to leave L2 last",
    expected: "what the order gains alone",
    builds_on: Some("a17-plain"),
    parameters: &[THREADS, PLANES, KEPT_PERCENT],
    plan: Planner::Msda(|shape, hardware, choice| resident(shape, hardware, choice, true, true)),
    ..A17_PLAIN
};

/// How the lanes of a warp share the work on rows.
struct Lanes {
    /// Of a row.
    lanes: u32,
    /// Samples that a lane works out at a time.
    per_lane: u32,
    /// Channels that they compute of a row.
    channels: u32,
    /// Bytes by which the lanes of a warp tell each other where samples lie.
    record_bytes: u32,
}

impl Lanes {
    /// Each lane has 16 bytes of channels, and passes on where its samples lie.
    fn of_channels(shape: &Shape, channels: u32) -> Self {
        let lanes = channels / VECTOR;
        let per_lane = Self::samples_of_a_lane(shape, lanes);
        Lanes {
            lanes,
            per_lane,
            channels,
            record_bytes: WARP * per_lane * 16,
        }
    }

    /// Each lane has some of the samples and all the channels.
    fn of_samples(shape: &Shape, channels: u32) -> Self {
        let lanes = match shape.points {
            ..2 => 1,
            2..4 => 2,
            _ => 4,
        };
        Lanes {
            lanes,
            per_lane: Self::samples_of_a_lane(shape, lanes),
            channels,
            record_bytes: 0,
        }
    }

    /// Two, whose coordinates are 16 bytes, if no lane is left without; but no more than eight of a row at a time.
    fn samples_of_a_lane(shape: &Shape, lanes: u32) -> u32 {
        if lanes <= 4 && shape.points.is_multiple_of(2 * lanes) {
            2
        } else {
            1
        }
    }

    /// Rows that a warp works on.
    fn rows(&self) -> u32 {
        WARP / self.lanes
    }

    fn defines(&self, shape: &Shape) -> Vec<(&'static str, u32)> {
        let narrow = shape.levels.iter().any(|level| level.width == 1);
        vec![
            ("HEADS", shape.heads),
            ("LANES", self.lanes),
            ("PER_LANE", self.per_lane),
            ("KEPT_CHANNELS", self.channels),
            ("NARROW", u32::from(narrow)),
        ]
    }
}

/// What a block keeps in shared memory.
struct ResidentLevels {
    /// A bit for each level kept whole.
    levels: u32,
    /// Of the pixels kept.
    bytes: u64,
    /// What is left for more.
    room: u64,
    /// Of a pixel.
    pixel_bytes: u64,
}

impl ResidentLevels {
    /// The smallest levels, as many as fit.
    fn of(
        shape: &Shape,
        hardware: &Hardware,
        choice: &Choice,
        lanes: &Lanes,
    ) -> Result<Self, String> {
        if !hardware.has_clusters {
            return Err(
                "a device before Hopper: the rung waits at barriers that came with it".to_owned(),
            );
        }
        check(shape)?;
        let records = choice.get("THREADS") / WARP * lanes.record_bytes;
        let Some(room) = hardware.shared_bytes.checked_sub(CONTROL_BYTES + records) else {
            return Err(format!(
                "{} bytes of shared memory per block: the places of samples alone take {}",
                hardware.shared_bytes,
                CONTROL_BYTES + records
            ));
        };
        let mut kept = ResidentLevels {
            levels: 0,
            bytes: 0,
            room: u64::from(room).min(u64::from(choice.get("CACHE_KB")) * 1024),
            pixel_bytes: u64::from(2 * lanes.channels),
        };
        for number in by_size(shape) {
            let bytes = u64::from(shape.levels[number].pixels()) * kept.pixel_bytes;
            if bytes > kept.room {
                break;
            }
            kept.levels |= 1 << number;
            kept.take(bytes);
        }
        Ok(kept)
    }

    fn take(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.room -= bytes;
    }

    /// Of the smallest level not kept as many rows as fit: which level, and how many. A sample needs two.
    fn add_rows(&mut self, shape: &Shape) -> Option<(u32, u32)> {
        let number = by_size(shape)
            .into_iter()
            .find(|number| self.levels >> number & 1 == 0)?;
        let row_bytes = u64::from(shape.levels[number].width) * self.pixel_bytes;
        let rows = self.room / row_bytes;
        if rows < 2 {
            return None;
        }
        self.take(rows * row_bytes);
        Some((number as u32, rows as u32))
    }

    /// One block per multiprocessor, pieces of work from a counter.
    fn plan(
        self,
        entry: &'static str,
        shape: &Shape,
        hardware: &Hardware,
        choice: &Choice,
        lanes: Lanes,
    ) -> PlanResult {
        let threads = choice.get("THREADS");
        let shared_bytes = CONTROL_BYTES + threads / WARP * lanes.record_bytes + self.bytes as u32;
        let slices = u64::from(shape.channels / lanes.channels);
        let planes = u64::from(shape.images) * u64::from(shape.heads) * slices;
        let wanted = u64::from(hardware.multiprocessors) * u64::from(choice.get("ITEMS"));
        let pieces = (wanted / planes.max(1)).max(1);
        let rows = u64::from(lanes.rows());
        let queries = u64::from(shape.queries)
            .div_ceil(pieces)
            .max(1)
            .next_multiple_of(rows);
        // The counter runs on past the last piece, at most twice for each block.
        let items = planes * u64::from(shape.queries).div_ceil(queries);
        if items > u64::from(u32::MAX / 2) {
            return Err(format!(
                "{items} pieces of work: the counter goes to {}",
                u32::MAX / 2
            ));
        }
        let mut defines = lanes.defines(shape);
        defines.extend([
            ("KEPT_LEVELS", self.levels),
            ("ITEM_QUERIES", queries as u32),
        ]);
        Ok(Plan {
            defines,
            scratch_bytes: 4,
            cleared_bytes: 4,
            ..Plan::of(persistent_step(
                entry,
                hardware,
                threads,
                shared_bytes,
                shared_bytes,
            ))
        })
    }
}

/// One block per multiprocessor, and no more shared memory than it needs: the rest is L1.
fn persistent_step(
    entry: &'static str,
    hardware: &Hardware,
    threads: u32,
    dynamic_bytes: u32,
    all_bytes: u32,
) -> Step {
    let most = u64::from(hardware.shared_bytes + RESERVED_BYTES);
    let needed = u64::from(all_bytes + RESERVED_BYTES);
    Step {
        blocks: Blocks::OneEach,
        shared_bytes: dynamic_bytes,
        // Rounded down: the driver goes up to the next size it has, and to what the block needs in any case.
        carveout: Some((needed * 100 / most).min(100) as u32),
        ..Step::new(entry, 1, threads)
    }
}

/// Numbers of the levels, smallest first.
fn by_size(shape: &Shape) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..shape.levels.len()).collect();
    numbers.sort_by_key(|number| shape.levels[*number].pixels());
    numbers
}

/// What all of the family need.
fn check(shape: &Shape) -> Result<(), String> {
    if let Some(level) = shape
        .levels
        .iter()
        .find(|level| level.width.max(level.height) >= SIDE_LIMIT)
    {
        return Err(format!(
            "a level of {} by {} pixels: sides have to be below {SIDE_LIMIT}",
            level.width, level.height
        ));
    }
    // Places are numbers of 16 bytes, with a bit to spare.
    let units =
        u64::from(shape.pixels) * u64::from(shape.heads) * u64::from(shape.channels / VECTOR);
    if units >= 1 << 31 {
        return Err(format!(
            "an image of {} bytes: places are worked out for less than 32 GiB",
            units * 16
        ));
    }
    Ok(())
}

/// A17: through the caches only.
fn resident(
    shape: &Shape,
    hardware: &Hardware,
    choice: &Choice,
    ordered: bool,
    evict_last: bool,
) -> PlanResult {
    check(shape)?;
    let threads = choice.get("THREADS");
    let lanes = Lanes::of_channels(shape, shape.channels);
    let shared_bytes = threads / WARP * lanes.record_bytes;
    let mut defines = lanes.defines(shape);
    defines.extend([
        ("ORDERED", u32::from(ordered)),
        ("EVICT_LAST", u32::from(evict_last)),
    ]);
    if ordered {
        // Heads side by side fill lines: two pixels of 64 bytes are then read at once.
        let fitting = (64 / shape.channels).max(1);
        let fits = |heads: &u32| *heads <= fitting && shape.heads.is_multiple_of(*heads);
        let together = [4, 2, 1].into_iter().find(fits).unwrap_or(1);
        let planes = u64::from(shape.images) * u64::from(shape.heads / together);
        let plane_bytes = u64::from(shape.pixels) * u64::from(shape.pixel_bytes() * together);
        let resident = (u64::from(hardware.l2_bytes) / 2 / plane_bytes.max(1)).max(1);
        let most = u64::from(choice.get("PLANES")).min(resident);
        // Turns of equal length, so that no block is idle in the last.
        let turns = planes.div_ceil(most).max(1);
        let planes_a_turn = planes.div_ceil(turns).max(1);
        defines.extend([
            ("TOGETHER", together),
            ("PLANES_A_TURN", planes_a_turn as u32),
        ]);
    } else {
        defines.extend([("TOGETHER", shape.heads.max(1)), ("PLANES_A_TURN", 1)]);
    }
    Ok(Plan {
        defines,
        ..Plan::of(persistent_step(
            "ladder_a17",
            hardware,
            threads,
            0,
            shared_bytes,
        ))
    })
}
