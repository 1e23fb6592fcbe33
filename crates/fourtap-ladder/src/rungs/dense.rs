//! Dense attention, from one query per block to tiles in registers.

use super::limits::blocks;
use crate::dense::Shape;
use crate::plan::{Blocks, Choice, Hardware, Parameter, Plan, PlanResult, Step};
use crate::rung::{Claim, Planner, Rung};

/// The family.
pub const RUNGS: &[Rung] = &[D01, D02, D03, D04, D05, D06, D07, D07_LAZY, D10, D10_SPLIT];

const D01: Rung = Rung {
    name: "d01",
    title: "minimal",
    idea: "one query per block, a thread per channel, a reduction over the block for every key, online softmax",
    expected: "the baseline: K and V are read for every query, and every key costs a barrier",
    claim: Some(Claim {
        words: "2870 us on an L4",
        why: "on another, smaller GPU",
    }),
    builds_on: None,
    source: include_str!("../../kernels/d01_minimal.cu"),
    hopper: false,
    approximate: None,
    parameters: &[],
    plan: Planner::Dense(|shape, _, _| {
        let rows = u64::from(shape.planes) * u64::from(shape.queries);
        Ok(Plan::of(Step::new(
            "ladder_d01",
            blocks(rows)?,
            shape.channels,
        )))
    }),
};

const BLOCK_M: &str = "queries per block";
const TILE: &str = "keys per tile";

const D02: Rung = Rung {
    name: "d02",
    title: "tiled",
    idea: "K and V through shared memory, once for all queries of a block; phases with a barrier between",
    expected: "about ten times as fast: K and V are read once for 32 queries, and no key needs a reduction",
    claim: None,
    builds_on: Some("d01"),
    source: include_str!("../../kernels/d02_tiled.cu"),
    parameters: &[
        Parameter::new("BLOCK_M", BLOCK_M, &[16, 32, 64], 32),
        Parameter::new("BLOCK_N", TILE, &[32, 64], 32),
    ],
    plan: Planner::Dense(|shape, hardware, choice| {
        let (m, n) = (choice.get("BLOCK_M"), choice.get("BLOCK_N"));
        let rows = 2 * (m + 2 * n) * (shape.channels + 2);
        let shared = rows + 4 * m * (n + 1) + 4 * m;
        tiled(shape, hardware, "ladder_d02", m, 128, shared)
    }),
    ..D01
};

const D03: Rung = Rung {
    name: "d03",
    title: "light barriers",
    idea: "a row belongs to a warp, which reduces by shuffles; barriers for the tiles alone",
    expected: "two to three times as fast: half the barriers, no logits in shared memory, no phase of few threads",
    claim: Some(Claim {
        words: "1029 us on an L4, 839 with 8 warps",
        why: "on another, smaller GPU; with rows that were no multiple of the warps it hung",
    }),
    builds_on: Some("d02"),
    source: include_str!("../../kernels/d03_light_barriers.cu"),
    parameters: &[
        Parameter::new("BLOCK_M", BLOCK_M, &[16, 32, 64], 32),
        Parameter::new("BLOCK_N", TILE, &[32, 64], 32),
        // Six do not divide the rows.
        Parameter::new("WARPS", "warps per block", &[4, 6, 8], 4),
    ],
    plan: Planner::Dense(|shape, hardware, choice| {
        let (m, n) = (choice.get("BLOCK_M"), choice.get("BLOCK_N"));
        let shared = 2 * (m + 2 * n) * (shape.channels + 2);
        let threads = 32 * choice.get("WARPS");
        tiled(shape, hardware, "ladder_d03", m, threads, shared)
    }),
    ..D01
};

const WMMA_PARAMETERS: &[Parameter] = &[
    Parameter::new("BLOCK_M", BLOCK_M, &[32, 64, 128], 64),
    Parameter::new("BLOCK_N", TILE, &[32, 64], 64),
];

const D04: Rung = Rung {
    name: "d04",
    title: "tensor cores for Q K^T",
    idea: "logits by WMMA, through shared memory; the other product by ordinary multiply-adds",
    expected: "less than two times as fast: half of the arithmetic is left, and logits pass through shared memory \
        three times",
    claim: Some(Claim {
        words: "a WMMA kernel",
        why: "there was no such instruction in it",
    }),
    builds_on: Some("d03"),
    source: concat!(
        include_str!("../../kernels/wmma.cuh"),
        include_str!("../../kernels/logits_by_wmma.cuh"),
        include_str!("../../kernels/d04_tensor_core_logits.cu"),
    ),
    parameters: WMMA_PARAMETERS,
    plan: Planner::Dense(|shape, hardware, choice| {
        let (m, n) = (choice.get("BLOCK_M"), choice.get("BLOCK_N"));
        let shared = wmma_bytes(shape, m, n);
        tiled(shape, hardware, "ladder_d04", m, 2 * m, shared)
    }),
    ..D01
};

const D05: Rung = Rung {
    name: "d05",
    title: "tensor cores for both",
    idea: "both products by WMMA; weights and outputs live in shared memory",
    expected: "two to three times as fast: no multiply-add is left outside tensor cores, and shared memory is the \
        bottleneck",
    claim: None,
    builds_on: Some("d04"),
    source: concat!(
        include_str!("../../kernels/wmma.cuh"),
        include_str!("../../kernels/logits_by_wmma.cuh"),
        include_str!("../../kernels/d05_both_products.cu"),
    ),
    plan: Planner::Dense(|shape, hardware, choice| {
        let (m, n) = (choice.get("BLOCK_M"), choice.get("BLOCK_N"));
        let weights_and_out = 2 * m * (n + 8) + 4 * m * (shape.channels + 4);
        let shared = wmma_bytes(shape, m, n) + weights_and_out;
        tiled(shape, hardware, "ladder_d05", m, 2 * m, shared)
    }),
    ..D04
};

const IN_REGISTERS: &str = concat!(
    include_str!("../../kernels/matrices.cuh"),
    include_str!("../../kernels/swizzled.cuh"),
    include_str!("../../kernels/attention.cuh"),
    include_str!("../../kernels/d06_registers.cu"),
);

const D06: Rung = Rung {
    name: "d06",
    title: "weights in registers",
    idea: "mma.sync, ldmatrix from exchanged pieces, cp.async; logits, weights and outputs never leave registers",
    expected: "three to five times as fast: shared memory sees K and V only, and ldmatrix is the bottleneck, \
        feeding two products each",
    claim: Some(Claim {
        words: "with a swizzle",
        why: "it was declared and never called",
    }),
    builds_on: Some("d05"),
    source: IN_REGISTERS,
    parameters: &[
        Parameter::new("KEYS", TILE, &[32, 64, 128], 64),
        Parameter::new("STAGES", "tiles in shared memory", &[2, 3], 2),
    ],
    plan: Planner::Dense(|shape, hardware, choice| {
        let stages = choice.get("STAGES");
        in_registers(
            shape,
            hardware,
            choice,
            [16, 4, stages],
            &[("ROWS", 16), ("WARPS", 4), ("LAZY", 0)],
        )
    }),
    ..D01
};

const D07: Rung = Rung {
    name: "d07",
    title: "larger tiles",
    idea: "as d06 with 32 queries per warp, up to 256 per block, in dynamic shared memory",
    expected: "1.5 times as fast where there is enough work: ldmatrix feeds four products, so tensor cores and \
        exponentials are the bottleneck",
    claim: Some(Claim {
        words: "hangs",
        why: "57,344 bytes of static shared memory, of which there are 49,152: it did not build",
    }),
    builds_on: Some("d06"),
    parameters: D07_PARAMETERS,
    plan: Planner::Dense(|shape, hardware, choice| {
        let tile = [choice.get("ROWS"), choice.get("WARPS"), 2];
        in_registers(shape, hardware, choice, tile, &[("STAGES", 2), ("LAZY", 0)])
    }),
    ..D06
};

const D07_PARAMETERS: &[Parameter] = &[
    Parameter::new("ROWS", "queries per warp", &[16, 32], 32),
    Parameter::new("WARPS", "warps per block", &[4, 8], 4),
    Parameter::new("KEYS", TILE, &[32, 64], 64),
];

const D07_LAZY: Rung = Rung {
    name: "d07-lazy",
    title: "larger tiles, lazy maximum",
    idea: "as d07, where the maximum that is subtracted may lag by 2^8, so that outputs are seldom rescaled",
    expected: "a few percent: rescaling is a multiplication for every output and tile",
    claim: None,
    builds_on: Some("d07"),
    plan: Planner::Dense(|shape, hardware, choice| {
        let tile = [choice.get("ROWS"), choice.get("WARPS"), 2];
        in_registers(shape, hardware, choice, tile, &[("STAGES", 2), ("LAZY", 8)])
    }),
    ..D07
};

const D10: Rung = Rung {
    name: "d10",
    title: "small problems, columns of warps",
    idea: "small tiles of queries for one wave of blocks; the keys of a tile shared out among columns of warps",
    expected: "half of d06's time where 64 queries per block leave the device idle; slower on large problems",
    claim: None,
    builds_on: Some("d06"),
    source: concat!(
        include_str!("../../kernels/matrices.cuh"),
        include_str!("../../kernels/swizzled.cuh"),
        include_str!("../../kernels/attention.cuh"),
        include_str!("../../kernels/d10_columns.cu"),
    ),
    parameters: &[
        Parameter::new("ROW_WARPS", "rows of warps, 16 queries each", &[1, 2, 4], 2),
        Parameter::new("KEY_WARPS", "columns of warps", &[2, 4, 8], 4),
        Parameter::new("KEYS", "keys per column and tile", &[16, 32, 64], 32),
        Parameter::new("STAGES", "tiles in shared memory", &[2, 3], 3),
    ],
    plan: Planner::Dense(|shape, hardware, choice| {
        let (columns, m) = (choice.get("KEY_WARPS"), 16 * choice.get("ROW_WARPS"));
        let tile = columns * choice.get("KEYS") * shape.row_bytes();
        // The columns' sums are put together where the tiles were.
        let sums = columns * m * 8 + (columns - 1) * m * shape.channels * 4;
        let shared = m * shape.row_bytes() + sums.max(2 * choice.get("STAGES") * tile);
        let mut plan = tiled(shape, hardware, "ladder_d10", m, 2 * m * columns, shared)?;
        plan.defines = vec![("ROWS", 16), ("LAZY", 0)];
        Ok(plan)
    }),
    ..D01
};

const D10_SPLIT: Rung = Rung {
    name: "d10-split",
    title: "small problems, keys split",
    idea: "as d06 with the keys shared out among blocks, and a second launch that puts the parts together",
    expected: "faster than d06 on small problems, slower than columns of warps, which need no second launch",
    source: concat!(
        include_str!("../../kernels/matrices.cuh"),
        include_str!("../../kernels/swizzled.cuh"),
        include_str!("../../kernels/attention.cuh"),
        include_str!("../../kernels/d10_split.cu"),
    ),
    parameters: &[
        Parameter::new("PARTS", "blocks that share the keys", &[2, 4, 8], 2),
        Parameter::new("KEYS", TILE, &[32, 64], 64),
        Parameter::new("WARPS", "warps per block, 16 queries each", &[2, 4], 4),
    ],
    plan: Planner::Dense(|shape, hardware, choice| {
        let (parts, m) = (choice.get("PARTS"), 16 * choice.get("WARPS"));
        let shared = (m + 4 * choice.get("KEYS")) * shape.row_bytes();
        let mut plan = tiled(shape, hardware, "ladder_d10_part", m, 2 * m, shared)?;
        let rows = u64::from(shape.planes) * u64::from(shape.queries);
        let tiles = u64::from(shape.planes) * u64::from(shape.queries.div_ceil(m));
        let step = Step {
            blocks: Blocks::Exactly(blocks(tiles * u64::from(parts))?),
            ..plan.steps.remove(0)
        };
        let pairs = rows * u64::from(shape.channels) / 2;
        let combine = Step::new("ladder_d10_combine", blocks(pairs.div_ceil(128))?, 128);
        plan.steps = vec![step, combine];
        plan.scratch_bytes = rows * u64::from(parts) * (8 + 4 * u64::from(shape.channels));
        plan.defines = vec![("ROWS", 16), ("STAGES", 2), ("LAZY", 0)];
        Ok(plan)
    }),
    ..D10
};

/// Queries, keys and values with rows 16 bytes longer, and logits: what D4 and D5 have in shared memory.
fn wmma_bytes(shape: &Shape, m: u32, n: u32) -> u32 {
    2 * (m + 2 * n) * (shape.channels + 8) + 4 * m * (n + 4)
}

/// D6's kernel with so many rows per warp, warps and stages.
fn in_registers(
    shape: &Shape,
    hardware: &Hardware,
    choice: &Choice,
    [rows, warps, stages]: [u32; 3],
    defines: &[(&'static str, u32)],
) -> PlanResult {
    let m = rows * warps;
    let shared = (m + 2 * stages * choice.get("KEYS")) * shape.row_bytes();
    let mut plan = tiled(shape, hardware, "ladder_d06", m, 32 * warps, shared)?;
    plan.defines = defines.to_vec();
    Ok(plan)
}

/// The one launch of a rung with a block for so many queries of a head.
pub(super) fn tiled(
    shape: &Shape,
    hardware: &Hardware,
    entry: &'static str,
    queries: u32,
    threads: u32,
    shared_bytes: u32,
) -> PlanResult {
    if shared_bytes > hardware.shared_bytes {
        return Err(format!(
            "{shared_bytes} bytes of shared memory: a block has at most {}",
            hardware.shared_bytes
        ));
    }
    if threads > 1024 {
        return Err(format!("{threads} threads: a block has at most 1024"));
    }
    let tiles = u64::from(shape.planes) * u64::from(shape.queries.div_ceil(queries));
    Ok(Plan::of(Step {
        shared_bytes,
        // What a block does not use as shared memory is of no use to it as a cache.
        carveout: Some(100),
        ..Step::new(entry, blocks(tiles)?, threads)
    }))
}
