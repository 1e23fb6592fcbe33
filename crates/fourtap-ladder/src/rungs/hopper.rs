//! Dense attention by what only Hopper has: tiles by TMA, products of groups of four warps.

use super::dense::tiled;
use crate::dense::Shape;
use crate::plan::{Blocks, Hardware, Map, Parameter, PlanResult};
use crate::rung::{Planner, Rung};

/// The family: one kernel in four steps.
pub const RUNGS: &[Rung] = &[D08, D08_OVERLAP, D08_PINGPONG, D08_PERSISTENT];

/// Of kernels/d08_hopper.cu: queries of a group of four warps, keys of a tile, and tiles of keys and of values in shared memory.
const GROUP_ROWS: u32 = 64;
const KEYS: u32 = 128;
const STAGES: u32 = 2;

/// Barriers in shared memory: two of the queries, two of each tile of keys and of values.
const BARRIER_BYTES: u32 = 8 * (2 + 4 * STAGES);

const D08: Rung = Rung {
    name: "d08",
    title: "TMA and wgmma",
    idea: "one thread brings tiles by TMA, groups of four warps multiply from shared memory, one product after the other",
    expected: "1.2 times as fast as d07 where there is enough work: no warp loads fragments any more, but tensor cores \
        wait for exponentials unless another group multiplies by chance",
    claim: None,
    builds_on: Some("d07-lazy"),
    source: concat!(
        include_str!("../../kernels/matrices.cuh"),
        include_str!("../../kernels/swizzled.cuh"),
        include_str!("../../kernels/attention.cuh"),
        include_str!("../../../fourtap/kernels/common/async.cuh"),
        include_str!("../../../fourtap/kernels/common/group_matrix.cuh"),
        include_str!("../../kernels/deferred_rescaling.cuh"),
        include_str!("../../kernels/d08_hopper.cu"),
    ),
    // The library's headers, which it is made of, name the same things otherwise.
    hopper: false,
    approximate: None,
    parameters: &[],
    plan: Planner::Dense(|shape, hardware, _| {
        with(shape, hardware, false, &[("OVERLAP", 0), ("TURNS", 0)])
    }),
};

const D08_OVERLAP: Rung = Rung {
    name: "d08-overlap",
    title: "wgmma beside the exponentials",
    idea: "as d08, where both products are started before the exponentials: that with values for the tile before",
    expected: "a tenth to a fifth faster: a group's own products run beside its exponentials, whatever other groups do",
    builds_on: Some("d08"),
    plan: Planner::Dense(|shape, hardware, _| {
        with(shape, hardware, false, &[("OVERLAP", 1), ("TURNS", 0)])
    }),
    ..D08
};

const D08_PINGPONG: Rung = Rung {
    name: "d08-pingpong",
    title: "wgmma in turns",
    idea: "as d08-overlap, where two groups start their products in turns, by barriers of their own",
    expected: "a twentieth with 128 channels: one group multiplies while the other computes exponentials; with 64 \
        nothing, since three groups take no turns",
    builds_on: Some("d08-overlap"),
    parameters: &[Parameter::new(
        "TURNS",
        "groups that take turns, at most; where there are more, none do",
        &[2, 3],
        2,
    )],
    plan: Planner::Dense(|shape, hardware, _| with(shape, hardware, false, &[("OVERLAP", 1)])),
    ..D08
};

const D08_PERSISTENT: Rung = Rung {
    name: "d08-persistent",
    title: "wgmma, persistent blocks",
    idea: "as d08-pingpong, where a block stays for other queries, which arrive while it stores outputs",
    expected: "a twentieth where blocks have few tiles of keys: the first tile of most queries is no longer waited for",
    builds_on: Some("d08-pingpong"),
    plan: Planner::Dense(|shape, hardware, _| with(shape, hardware, true, &[("OVERLAP", 1)])),
    ..D08_PINGPONG
};

/// The kernel with these symbols, in blocks that stay or in one for each tile of queries.
fn with(
    shape: &Shape,
    hardware: &Hardware,
    persistent: bool,
    defines: &[(&'static str, u32)],
) -> PlanResult {
    if !hardware.has_tensor_maps {
        return Err("a device without tensor maps: tiles are copied by boxes here".into());
    }
    // Sums and logits of wide heads leave registers for two groups only.
    let groups = if shape.channels > 64 { 2 } else { 3 };
    let queries = groups * GROUP_ROWS;
    let shared = (queries + 2 * STAGES * KEYS) * shape.row_bytes() + BARRIER_BYTES;
    let threads = 128 * (groups + 1);
    let mut plan = tiled(shape, hardware, "ladder_d08", queries, threads, shared)?;
    for step in &mut plan.steps {
        if let (Blocks::Exactly(blocks), true) = (step.blocks, persistent) {
            step.blocks = Blocks::Exactly(blocks.min(hardware.multiprocessors));
        }
    }
    plan.defines = vec![
        ("ROWS", 16),
        ("WARPS", 4 * groups),
        ("KEYS", KEYS),
        ("LAZY", 8),
        ("PERSISTENT", persistent.into()),
    ];
    plan.defines.extend(defines);
    plan.maps = [queries, KEYS, KEYS]
        .into_iter()
        .enumerate()
        .map(|(input, rows)| Map::Rows { input, rows })
        .collect();
    plan.needs_wgmma = true;
    Ok(plan)
}
