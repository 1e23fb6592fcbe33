//! The four neighbours of a sample as a tile in shared memory, copied there in several ways.

use super::limits::VECTOR;
use crate::plan::{Blocks, Choice, Hardware, Map, Parameter, Plan, PlanResult, Shape, Step};
use crate::rung::{Claim, Planner, Rung};

/// The family.
pub const RUNGS: &[Rung] = &[A11, A12, A13, A14];

/// Tiles of one sample of each of a warp's rows, whatever the number of channels.
const STEP_BYTES: u64 = 2048;

/// Samples worked out at a time; CHUNK of kernels/tiles.cuh.
fn chunk(shape: &Shape) -> u32 {
    (shape.channels / VECTOR).max(8)
}

/// Two chunks of records of a warp.
fn record_bytes(shape: &Shape) -> u64 {
    let rows = 32 * VECTOR / shape.channels;
    u64::from(2 * rows * chunk(shape)) * 16
}

/// Places are numbers of 32 bits that count 16 bytes.
fn check_places(shape: &Shape) -> Result<(), String> {
    let places = [shape.pixels, shape.heads, shape.channels / VECTOR]
        .iter()
        .fold(u64::from(shape.images), |product, side| {
            product.saturating_mul(u64::from(*side))
        });
    if places > 1 << 32 {
        return Err(format!(
            "value has {places} pieces of 16 bytes: the rung finds its way in at most 2^32 (64 GiB)"
        ));
    }
    Ok(())
}

fn check_stages(stages: u32) -> Result<(), String> {
    if !matches!(stages, 2 | 4 | 8) {
        return Err(format!("{stages} stages: the ring has 2, 4 or 8"));
    }
    Ok(())
}

/// One block per multiprocessor; what its shared memory leaves is for L1.
fn one_block(
    entry: &'static str,
    threads: u32,
    shared_bytes: u64,
    hardware: &Hardware,
) -> Result<Step, String> {
    if !(32..=1024).contains(&threads) || !threads.is_multiple_of(32) {
        return Err(format!(
            "{threads} threads: a block has 1 to 32 whole warps"
        ));
    }
    let most = u64::from(hardware.shared_bytes);
    if shared_bytes > most {
        return Err(format!(
            "{shared_bytes} bytes of shared memory for the warps' tiles and records: the device has {most} per block"
        ));
    }
    // A block takes 1 KB beyond what it asks for, and so does the largest.
    let percent = ((shared_bytes + 1024) * 100).div_ceil(most + 1024);
    Ok(Step {
        blocks: Blocks::OneEach,
        shared_bytes: shared_bytes as u32,
        carveout: Some(percent.min(100) as u32),
        ..Step::new(entry, 1, threads)
    })
}

const BYPASS: Parameter = Parameter::new("BYPASS", "whether copies pass L1 by", &[0, 1], 0);

const PAIRED: Parameter = Parameter::new(
    "PAIRED",
    "whether lanes copy along tiles (1) or what they mix themselves (0)",
    &[0, 1],
    1,
);

const A11: Rung = Rung {
    name: "a11",
    title: "2x2 tile in shared memory",
    idea: "a warp loads its samples' neighbours together, 16 bytes per lane, into tiles of its own, and mixes there",
    expected: "with one head x and x + 1 are one access, which spares wavefronts, but each byte passes the pipe to \
               shared memory twice more: 0.6 to 0.65 ms on seed-full, slower than A3",
    claim: None,
    builds_on: Some("a03"),
    source: concat!(
        include_str!("../../kernels/tiles.cuh"),
        include_str!("../../kernels/a11_tile_cooperative.cu")
    ),
    hopper: false,
    approximate: None,
    parameters: &[
        Parameter::new(
            "THREADS",
            "threads per block, one block per multiprocessor",
            &[512, 640, 768],
            640,
        ),
        Parameter::new("TILES", "samples of a row loaded at a time", &[1, 2], 1),
        Parameter::new("BUFFERS", "sets of tiles per warp", &[1, 2], 1),
    ],
    plan: Planner::Msda(|shape, hardware, choice| {
        check_places(shape)?;
        let threads = choice.get("THREADS");
        let (tiles, buffers) = (choice.get("TILES"), choice.get("BUFFERS"));
        if !matches!(tiles, 1 | 2 | 4) || !matches!(buffers, 1 | 2) {
            return Err(format!(
                "{tiles} tiles in {buffers} buffers: a row has 1, 2 or 4 at a time, in 1 or 2 buffers"
            ));
        }
        let warp = u64::from(tiles * buffers) * STEP_BYTES + record_bytes(shape);
        let step = one_block(
            "ladder_a11",
            threads,
            u64::from(threads / 32) * warp,
            hardware,
        )?;
        Ok(Plan {
            defines: vec![("PAIRED", 1)],
            ..Plan::of(step)
        })
    }),
};

const A12: Rung = Rung {
    name: "a12",
    title: "2x2 tile by TMA",
    idea: "the copy engine brings a sample's neighbours as one box, zeros outside, and a barrier counts bytes",
    expected: "the engine starts a box every ten cycles and passes L1 by: 24 billion boxes per second make 1 ms of \
               seed-full's 23.7 million samples, twice A3",
    claim: Some(Claim {
        words: "needs Hopper",
        why: "it asked for boxes 4 bytes wide, which are refused, and expected no bytes: it ran nowhere",
    }),
    builds_on: Some("a11"),
    source: include_str!("../../kernels/a12_tile_by_tma.cu"),
    hopper: true,
    approximate: None,
    parameters: &[
        Parameter::new("THREADS", "threads per block", &[64, 128, 256], 128),
        Parameter::new(
            "STAGES",
            "rounds of 8 KB (32 boxes of 32 channels) in flight per warp",
            &[1, 2, 3, 4],
            2,
        ),
    ],
    plan: Planner::Msda(plan_a12),
};

fn plan_a12(shape: &Shape, hardware: &Hardware, choice: &Choice) -> PlanResult {
    if !hardware.has_tensor_maps {
        return Err("the device has no tensor maps: the rung needs them, so compute capability 9.0 or later".into());
    }
    let (threads, stages) = (choice.get("THREADS"), choice.get("STAGES"));
    if stages == 0 || stages > 16 {
        return Err(format!("{stages} stages: the ring has 1 to 16"));
    }
    let vectors = shape.channels / VECTOR;
    let boxes = u64::from(32 / vectors * vectors.min(4));
    let box_bytes = u64::from(4 * shape.pixel_bytes());
    // Tiles, records, and a barrier.
    let stage = boxes * (box_bytes + 16) + 8;
    let shared_bytes = u64::from(threads / 32) * u64::from(stages) * stage;
    Ok(Plan {
        maps: (0..shape.levels.len())
            .map(|level| Map::Level {
                level,
                sides: [shape.channels, 2, 2, 1],
            })
            .collect(),
        ..Plan::of(Step {
            blocks: Blocks::Filling,
            // L1 has no part in it.
            carveout: Some(100),
            ..one_block("ladder_a12", threads, shared_bytes, hardware)?
        })
    })
}

const A13: Rung = Rung {
    name: "a13",
    title: "warp specialisation",
    idea: "producer warps find neighbours and have them copied into rings, consumer warps only wait and mix",
    expected: "the bytes, the pipe and the distance ahead are A14's, with two more barriers per step; issue slots \
               are not the bottleneck, so about A14's time",
    claim: Some(Claim {
        words: "5-10 % at best, untested",
        why: "nobody had measured it; ours does, with producers that run ahead, because locations are inputs",
    }),
    builds_on: Some("a14"),
    source: concat!(
        include_str!("../../kernels/tiles.cuh"),
        include_str!("../../kernels/a13_warp_specialisation.cu")
    ),
    hopper: true,
    approximate: None,
    parameters: &[
        Parameter::new(
            "PRODUCERS",
            "producer warps per block, one block per multiprocessor",
            &[2, 4, 6],
            4,
        ),
        Parameter::new(
            "CONSUMERS",
            "consumer warps of each producer",
            &[2, 3, 4],
            4,
        ),
        Parameter::new("STAGES", "steps of a consumer's ring", &[2, 4, 8], 4),
        BYPASS,
        PAIRED,
    ],
    plan: Planner::Msda(|shape, hardware, choice| {
        if !hardware.has_tensor_maps {
            return Err(
                "the device is older than compute capability 9.0: the rung needs its barriers"
                    .into(),
            );
        }
        check_places(shape)?;
        let stages = choice.get("STAGES");
        check_stages(stages)?;
        let producers = choice.get("PRODUCERS").clamp(1, 32);
        let consumers = producers * choice.get("CONSUMERS").clamp(1, 32);
        let threads = 32 * (producers + consumers);
        // Of each stage the tiles and two barriers.
        let consumer = u64::from(stages) * (STEP_BYTES + 16) + record_bytes(shape);
        let step = one_block(
            "ladder_a13",
            threads,
            u64::from(consumers) * consumer,
            hardware,
        )?;
        Ok(Plan {
            defines: vec![("THREADS", threads)],
            ..Plan::of(step)
        })
    }),
};

const A14: Rung = Rung {
    name: "a14",
    title: "cp.async double buffering",
    idea: "each warp has the next neighbours copied into shared memory, without registers, while it mixes these",
    expected: "never drains, but each byte passes the pipe twice, into shared memory and out of it, and L1 shrinks: \
               0.6 to 0.7 ms on seed-full, slower than A3",
    claim: None,
    builds_on: Some("a03"),
    source: concat!(
        include_str!("../../kernels/tiles.cuh"),
        include_str!("../../kernels/a14_double_buffering.cu")
    ),
    hopper: false,
    approximate: None,
    parameters: &[
        Parameter::new(
            "THREADS",
            "threads per block, one block per multiprocessor",
            &[256, 512, 768, 1024],
            768,
        ),
        Parameter::new("STAGES", "steps of a warp's ring", &[2, 4, 8], 2),
        BYPASS,
        PAIRED,
    ],
    plan: Planner::Msda(|shape, hardware, choice| {
        check_places(shape)?;
        let (threads, stages) = (choice.get("THREADS"), choice.get("STAGES"));
        check_stages(stages)?;
        let warp = u64::from(stages) * STEP_BYTES + record_bytes(shape);
        let step = one_block(
            "ladder_a14",
            threads,
            u64::from(threads / 32) * warp,
            hardware,
        )?;
        Ok(Plan::of(step))
    }),
};
