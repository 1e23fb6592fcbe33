//! Another arithmetic, another layout, fewer bits.

use super::super::plan::{Choice, Hardware, Parameter, Plan, Planned, Shape, Step};
use super::super::{Claim, Rung};

/// Channels in 16 bytes of f16.
const VECTOR: u32 = 8;

/// A launch has no more blocks.
const MOST_BLOCKS: u64 = (1 << 31) - 1;

/// The family.
pub const RUNGS: &[Rung] = &[
    A15,
    A15_SINGLE,
    A18_AS_GIVEN,
    A18_HEAD_MAJOR,
    A18_PAIRED,
    A18_REORDERED,
    A19_INT8,
    A19_FP8,
    A19_DROP,
];

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
    plan: |shape, hardware, choice| tensor_cores(shape, hardware, choice, 1),
};

const A15_SINGLE: Rung = Rung {
    name: "a15-single",
    title: "tensor cores, weights in f16",
    idea: "as a15, with W rounded to one f16 number",
    expected: "half the products and a third of the arithmetic on W: shows what the operator's accuracy costs",
    builds_on: Some("a15"),
    approximate: Some(1e-3),
    plan: |shape, hardware, choice| tensor_cores(shape, hardware, choice, 0),
    ..A15
};

const A15_SOURCE: &str = concat!(
    include_str!("../../../kernels/ladder/records.cuh"),
    include_str!("../../../kernels/ladder/a15_tensor_cores.cu"),
);

const A15_PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "THREADS",
        what: "threads a block",
        values: &[256, 512],
        default: 256,
    },
    Parameter {
        name: "DENSE_PIXELS",
        what: "a level of at most so many pixels is dense",
        values: &[256, 512, 1024],
        default: 512,
    },
    Parameter {
        name: "MOST_QUERIES",
        what: "queries a tile at most, where shared memory allows",
        values: &[16, 32, 64],
        default: 64,
    },
    Parameter {
        name: "TILES",
        what: "tiles a block",
        values: &[1, 2, 4, 8],
        default: 4,
    },
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

fn tensor_cores(shape: &Shape, hardware: &Hardware, choice: &Choice, split: u32) -> Planned {
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
    // Two blocks a multiprocessor if possible: one multiplies while the other gathers. Each takes 1 KB beside its own.
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

const AS_GIVEN: u32 = 0;
const HEAD_MAJOR: u32 = 1;
const PAIRED: u32 = 2;
const REORDERED: u32 = 3;

const A18_AS_GIVEN: Rung = Rung {
    name: "a18-as-given",
    title: "custom layouts: none",
    idea: "the gather of the other layouts over value as it is given",
    expected: "what the other layouts are compared with: somewhat slower than what the library ships",
    claim: None,
    builds_on: Some("a03"),
    source: A18_SOURCE,
    hopper: false,
    approximate: None,
    parameters: A18_PARAMETERS,
    plan: |shape, _, choice| gathered(shape, choice, AS_GIVEN),
};

const A18_HEAD_MAJOR: Rung = Rung {
    name: "a18-head-major",
    title: "custom layouts: head by head",
    idea: "value copied to [N, M, S, D] first, so that neighbouring pixels of a head share lines",
    expected: "a tenth with several heads, less than the copy costs; nothing with one, where nothing is copied",
    builds_on: Some("a18-as-given"),
    plan: |shape, _, choice| {
        // With one head value is stored so already.
        let layout = if shape.heads == 1 {
            AS_GIVEN
        } else {
            HEAD_MAJOR
        };
        gathered(shape, choice, layout)
    },
    ..A18_AS_GIVEN
};

const A18_PAIRED: Rung = Rung {
    name: "a18-paired",
    title: "custom layouts: paired neighbours",
    idea: "a copy in which each pixel is followed by its right neighbour, both fetched as one segment",
    expected: "a tenth from fuller wavefronts, less than the copy costs, which doubles what caches must hold",
    builds_on: Some("a18-as-given"),
    parameters: A18_PAIRED_PARAMETERS,
    plan: |shape, _, choice| gathered(shape, choice, PAIRED),
    ..A18_AS_GIVEN
};

const A18_REORDERED: Rung = Rung {
    name: "a18-reordered",
    title: "custom layouts: rows in space order",
    idea: "rows sorted along a Z-shaped path by where their samples lie, then gathered in that order",
    expected: "a loss where queries come in raster order or points lie anywhere: sorting costs 0.03 ms",
    builds_on: Some("a18-as-given"),
    source: concat!(
        include_str!("../../../kernels/ladder/sharing.cuh"),
        include_str!("../../../kernels/ladder/a18_sorting.cuh"),
        include_str!("../../../kernels/ladder/a18_layouts.cu"),
    ),
    parameters: A18_REORDERED_PARAMETERS,
    plan: |shape, _, choice| gathered(shape, choice, REORDERED),
    ..A18_AS_GIVEN
};

const A18_SOURCE: &str = concat!(
    include_str!("../../../kernels/ladder/sharing.cuh"),
    include_str!("../../../kernels/ladder/a18_layouts.cu"),
);

const THREADS: Parameter = Parameter {
    name: "THREADS",
    what: "threads a block",
    values: &[128, 256, 384],
    default: 256,
};

const RESIDENT: Parameter = Parameter {
    name: "RESIDENT",
    what: "threads that a multiprocessor shall have room for",
    values: &[512, 768],
    default: 768,
};

const ROUNDS: Parameter = Parameter {
    name: "ROUNDS",
    what: "rows a group of lanes takes",
    values: &[1, 2, 4],
    default: 1,
};

const BATCH: Parameter = Parameter {
    name: "BATCH",
    what: "samples asked for at a time",
    values: &[1, 2],
    default: 1,
};

const A18_PARAMETERS: &[Parameter] = &[THREADS, RESIDENT, ROUNDS, BATCH];

const A18_PAIRED_PARAMETERS: &[Parameter] = &[
    THREADS,
    RESIDENT,
    ROUNDS,
    Parameter {
        values: &[1, 2, 4],
        default: 2,
        ..BATCH
    },
];

const A18_REORDERED_PARAMETERS: &[Parameter] = &[
    THREADS,
    RESIDENT,
    Parameter {
        default: 2,
        ..ROUNDS
    },
    BATCH,
    Parameter {
        name: "GRID",
        what: "bins a side that rows are sorted into",
        values: &[16, 32, 64],
        default: 32,
    },
    Parameter {
        name: "KEY_POINTS",
        what: "leading samples whose mean says where a row lies",
        values: &[1, 4, 32],
        default: 4,
    },
];

/// The launches before the gather of A18.
const COPY_THREADS: u32 = 256;
const COPIES: u32 = 4;
const SORT_THREADS: u32 = 256;
const SORTED: u32 = 4096;

fn gathered(shape: &Shape, choice: &Choice, layout: u32) -> Planned {
    let copied = layout == HEAD_MAJOR || layout == PAIRED;
    let lanes = shape.channels / VECTOR * if layout == PAIRED { 2 } else { 1 };
    let heads_apart = if copied { 1 } else { shape.heads };
    let units = units_of_image(u64::from(shape.pixels), heads_apart, lanes)?;
    let planes = u64::from(shape.images) * u64::from(shape.heads);
    let threads = choice.get("THREADS");
    let rows = u64::from(shape.rows());
    let rows_a_block = u64::from(threads / lanes * choice.get("ROUNDS"));
    let mut plan = Plan::of(Step::new(
        "ladder_a18",
        blocks(rows.div_ceil(rows_a_block))?,
        threads,
    ));
    plan.defines = vec![
        ("LAYOUT", layout),
        ("GROUP", lanes),
        (
            "PER_LANE",
            if shape.points.is_multiple_of(2) { 2 } else { 1 },
        ),
        ("HEADS", shape.heads),
        ("NARROW", narrow(shape)),
    ];
    if copied {
        let pieces = units.div_ceil(u64::from(COPIES * COPY_THREADS));
        let copy = Step {
            prepares: true,
            ..Step::new("ladder_a18_copy", blocks(planes * pieces)?, COPY_THREADS)
        };
        plan.steps.insert(0, copy);
        plan.defines
            .extend([("COPY_THREADS", COPY_THREADS), ("COPIES", COPIES)]);
        plan.scratch_bytes = planes * units * 16;
    }
    if layout == REORDERED {
        let keys = blocks(rows.div_ceil(u64::from(SORT_THREADS)))?;
        let order = blocks(planes * u64::from(shape.queries.div_ceil(SORTED)))?;
        let sorting = [
            Step::new("ladder_a18_keys", keys, SORT_THREADS),
            Step::new("ladder_a18_order", order, SORT_THREADS),
        ];
        plan.steps.splice(0..0, sorting);
        plan.defines
            .extend([("SORT_THREADS", SORT_THREADS), ("SORTED", SORTED)]);
        // How many rows each bin has; of each row its bin and its number there; the order.
        plan.cleared_bytes = planes * u64::from(choice.get("GRID")).pow(2) * 4;
        plan.scratch_bytes = plan.cleared_bytes + rows * (8 + 4);
    }
    Ok(plan)
}

const INT8: u32 = 0;
const FP8: u32 = 1;

const A19_INT8: Rung = Rung {
    name: "a19-int8",
    title: "approximate: int8",
    idea: "value as whole numbers of eight bits, one scale for each image and head, summed exactly by dp2a",
    expected: "a third: half the bytes, twice as much of a head in L1, and three instead of eight instructions",
    claim: None,
    builds_on: Some("a18-as-given"),
    source: A19_SOURCE,
    hopper: false,
    approximate: Some(1e-2),
    parameters: A19_PARAMETERS,
    plan: |shape, _, choice| quantised(shape, choice, INT8),
};

const A19_FP8: Rung = Rung {
    name: "a19-fp8",
    title: "approximate: fp8",
    idea: "value as e4m3, one scale for each image and head, summed in half precision a few samples at a time",
    expected: "a third, as int8, at six times its error: nothing speaks for it but hardware that has no dp2a",
    approximate: Some(5e-2),
    plan: |shape, _, choice| quantised(shape, choice, FP8),
    ..A19_INT8
};

const A19_DROP: Rung = Rung {
    name: "a19-drop",
    title: "approximate: light samples dropped",
    idea: "samples that weigh less than a share of the row's heaviest are not read",
    expected: "a tenth: a fifth of the loads goes, but a warp waits for the row that keeps most",
    source: concat!(
        include_str!("../../../kernels/ladder/sharing.cuh"),
        include_str!("../../../kernels/ladder/a19_drop.cu"),
    ),
    approximate: Some(0.1),
    parameters: &[
        Parameter {
            values: &[128, 256],
            ..THREADS
        },
        RESIDENT,
        Parameter {
            name: "THRESHOLD",
            what: "thousandths of the heaviest sample's weight",
            values: &[10, 20, 50],
            default: 50,
        },
    ],
    plan: |shape, _, choice| dropping(shape, choice),
    ..A19_INT8
};

const A19_SOURCE: &str = concat!(
    include_str!("../../../kernels/ladder/sharing.cuh"),
    include_str!("../../../kernels/ladder/a19_quantising.cuh"),
    include_str!("../../../kernels/ladder/a19_approximate.cu"),
);

const A19_PARAMETERS: &[Parameter] = &[
    Parameter {
        values: &[128, 256],
        default: 128,
        ..THREADS
    },
    Parameter {
        values: &[512, 640, 768],
        default: 640,
        ..RESIDENT
    },
    Parameter {
        name: "MOST_PER_LANE",
        what: "samples a lane works out at a time, where points allow",
        values: &[2, 4],
        default: 4,
    },
];

/// The launches before the gather of A19.
const PREPARING: u32 = 256;
const PARTS: u32 = 32;
const QUANTISED_AT_ONCE: u32 = 4;

fn quantised(shape: &Shape, choice: &Choice, kind: u32) -> Planned {
    let lanes = shape.channels / 16;
    let most = choice.get("MOST_PER_LANE");
    let per_lane = [4, 2, 1].into_iter();
    let per_lane =
        per_lane.filter(|&samples| samples <= most && shape.points.is_multiple_of(samples));
    // As many units of 16 bytes are counted in f16, where a pixel has twice as many.
    units_of_image(u64::from(shape.pixels) + 1, 1, 2 * lanes)?;
    let planes = u64::from(shape.images) * u64::from(shape.heads);
    let scales = (planes * u64::from(1 + PARTS) * 4).next_multiple_of(256);
    let scales_bytes = u32::try_from(scales).map_err(|_| too_many("images and heads", planes))?;
    let threads = choice.get("THREADS");
    let units = (u64::from(shape.pixels) + 1) * u64::from(lanes);
    let pieces = units.div_ceil(u64::from(QUANTISED_AT_ONCE * PREPARING));
    let gather = u64::from(shape.rows()).div_ceil(u64::from(threads / lanes));
    let prepares = |entry, count| {
        Ok::<_, String>(Step {
            prepares: true,
            ..Step::new(entry, blocks(count)?, PREPARING)
        })
    };
    Ok(Plan {
        defines: vec![
            ("KIND", kind),
            ("GROUP", lanes),
            ("PER_LANE", per_lane.max().unwrap_or(1)),
            ("HEADS", shape.heads),
            ("SCALES", scales_bytes),
            ("PARTS", PARTS),
            ("PREPARING", PREPARING),
        ],
        steps: vec![
            prepares("ladder_a19_largest", planes * u64::from(PARTS))?,
            prepares("ladder_a19_quantise", planes * pieces)?,
            Step::new("ladder_a19", blocks(gather)?, threads),
        ],
        scratch_bytes: scales + planes * units * 16,
        ..Plan::default()
    })
}

fn dropping(shape: &Shape, choice: &Choice) -> Planned {
    let lanes = shape.channels / VECTOR;
    units_of_image(u64::from(shape.pixels), shape.heads, lanes)?;
    let threads = choice.get("THREADS");
    let count = u64::from(shape.rows()).div_ceil(u64::from(threads / lanes));
    let mut plan = Plan::of(Step::new("ladder_a19_drop", blocks(count)?, threads));
    plan.defines = vec![
        ("GROUP", lanes),
        // Half a row of 32 samples with 16 channels, all of it with more: room for 48 KB of samples a block.
        ("PER_LANE", (32 / lanes).min(8)),
        ("HEADS", shape.heads),
        ("NARROW", narrow(shape)),
    ];
    Ok(plan)
}

/// Whether all levels are one pixel wide: then no pixel has one to its right.
fn narrow(shape: &Shape) -> u32 {
    u32::from(shape.levels.iter().all(|level| level.width == 1))
}

/// Units of 16 bytes of an image, of which the kernels count fewer than 2^32.
fn units_of_image(pixels: u64, heads: u32, lanes: u32) -> Result<u64, String> {
    let units = pixels
        .saturating_mul(u64::from(heads))
        .saturating_mul(u64::from(lanes));
    // Some more are counted past the end.
    if units >= (1 << 32) - (1 << 16) {
        return Err(format!(
            "{units} times 16 bytes in an image: the rung counts in 32 bits"
        ));
    }
    Ok(units)
}

/// A legal number of blocks.
fn blocks(count: u64) -> Result<u32, String> {
    if count > MOST_BLOCKS {
        return Err(too_many("blocks", count));
    }
    Ok(count as u32)
}

fn too_many(what: &str, count: u64) -> String {
    format!("{count} {what}: a launch counts in 31 bits")
}
