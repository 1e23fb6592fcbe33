//! Small levels as dense products on tensor cores.

use super::limits::{VECTOR, blocks};
use crate::plan::{Choice, Hardware, Parameter, Plan, PlanResult, Shape, Step};
use crate::rung::{Claim, Planner, Rung};

/// The family.
pub const RUNGS: &[Rung] = &[A15, A15_SINGLE];

const A15: Rung = Rung {
    name: "a15",
    title: "tensor cores",
    idea: "small levels as dense products W * V on tensor cores, W in two f16 numbers; the others gathered",
    expected: "no gain with 32 channels, where W costs as much shared memory traffic as it saves; some from 64 on",
    claim: Some(Claim {
        words: "impossible",
        why: "a gather is no product, but a small level's bilinear weights are a sparse matrix that can be one",
    }),
    builds_on: Some("a03"),
    source: A15_SOURCE,
    hopper: false,
    approximate: None,
    parameters: A15_PARAMETERS,
    plan: Planner::Msda(|shape, hardware, choice| tensor_cores(shape, hardware, choice, 1)),
};

const A15_SINGLE: Rung = Rung {
    name: "a15-single",
    title: "tensor cores, weights in f16",
    idea: "as a15, with W rounded to one f16 number",
    expected: "half the products and a third of the arithmetic on W: shows what the operator's accuracy costs",
    builds_on: Some("a15"),
    approximate: Some(1e-3),
    plan: Planner::Msda(|shape, hardware, choice| tensor_cores(shape, hardware, choice, 0)),
    ..A15
};

const A15_SOURCE: &str = concat!(
    include_str!("../../kernels/records.cuh"),
    include_str!("../../kernels/a15_tensor_cores.cu"),
);

const A15_PARAMETERS: &[Parameter] = &[
    Parameter::new("THREADS", "threads per block", &[256, 512], 256),
    Parameter::new(
        "DENSE_PIXELS",
        "a level of at most so many pixels is dense",
        &[256, 512, 1024],
        512,
    ),
    Parameter::new(
        "MOST_QUERIES",
        "queries per tile at most, where shared memory allows",
        &[16, 32, 64],
        64,
    ),
    Parameter::new("TILES", "tiles per block", &[1, 2, 4, 8], 4),
];

/// A tile of A15: sizes as its kernel has them.
struct Tile {
    queries: u32,
    dense_pixels: u32,
    parts_n: u32,
    parts_k: u32,
    shared_bytes: u64,
}

impl Tile {
    fn new(channels: u32, warps: u32, per_lane: u32, queries: u32, pixels: u32) -> Self {
        // Each warp has one part. Parts of the channels split W anew, parts of the pixels must be summed.
        let parts = warps / (queries / 16);
        let parts_n = parts.min((channels / 32).max(1));
        let parts_k = parts / parts_n;
        let dense = u64::from(pixels.next_multiple_of(16));
        let (queries_wide, channels_wide) = (u64::from(queries), u64::from(channels));
        let pitch = dense + if dense.is_multiple_of(32) { 16 } else { 0 };
        let value = dense * (2 * channels_wide + 16);
        let products = u64::from(parts_k) * queries_wide * (channels_wide + 8) * 4;
        let records = u64::from(warps * 32 * per_lane) * 16;
        Tile {
            queries,
            dense_pixels: pixels.next_multiple_of(16),
            parts_n,
            parts_k,
            shared_bytes: value + queries_wide * pitch * 4 + products + records,
        }
    }
}

fn tensor_cores(shape: &Shape, hardware: &Hardware, choice: &Choice, split: u32) -> PlanResult {
    let (threads, most) = (choice.get("THREADS"), choice.get("DENSE_PIXELS"));
    let lanes = shape.channels / VECTOR;
    let per_lane = if shape.points.is_multiple_of(2 * lanes) {
        2
    } else {
        1
    };
    let tile = |queries, pixels| Tile::new(shape.channels, threads / 32, per_lane, queries, pixels);
    // Small levels first, as long as they fit with the smallest tile.
    let mut levels: Vec<usize> = (0..shape.levels.len()).collect();
    levels.sort_by_key(|&level| shape.levels[level].pixels());
    let (mut mask, mut pixels) = (0u32, 0u32);
    for level in levels {
        let more = shape.levels[level].pixels();
        if more > most || tile(16, pixels + more).shared_bytes > hardware.shared_bytes.into() {
            break;
        }
        mask |= 1 << level;
        pixels += more;
    }
    if mask == 0 {
        return Err(format!(
            "no level of at most {most} pixels fits shared memory: there is nothing to multiply"
        ));
    }
    // Two blocks per multiprocessor if possible: one multiplies while the other gathers. Each takes 1 KB beside its own.
    let sizes = [64, 32, 16].into_iter();
    let sizes = sizes.filter(|&queries| queries <= choice.get("MOST_QUERIES"));
    let tiles: Vec<Tile> = sizes.map(|queries| tile(queries, pixels)).collect();
    let room = u64::from(hardware.shared_bytes);
    let twice = |tile: &&Tile| 2 * tile.shared_bytes + 1024 <= room;
    let tile = tiles.iter().find(twice);
    let tile = tile.or_else(|| tiles.iter().find(|tile| tile.shared_bytes <= room));
    let tile = tile.ok_or("a tile of queries does not fit shared memory")?;
    let queries = tile.queries * choice.get("TILES");
    let planes = u64::from(shape.images) * u64::from(shape.heads);
    let blocks = blocks(planes * u64::from(shape.queries.div_ceil(queries)))?;
    let mut plan = Plan::of(Step {
        shared_bytes: tile.shared_bytes as u32,
        ..Step::new("ladder_a15", blocks, threads)
    });
    plan.defines = vec![
        ("SPLIT", split),
        ("LANES", lanes),
        ("PER_LANE", per_lane),
        (
            "ALTERNATE",
            u32::from(shape.heads == 1 && shape.pixel_bytes() == 64),
        ),
        ("QUERIES", tile.queries),
        ("DENSE_MASK", mask),
        ("DENSE_K", tile.dense_pixels),
        ("PARTS_N", tile.parts_n),
        ("PARTS_K", tile.parts_k),
    ];
    Ok(plan)
}
