//! Value, or the order of its readers, laid out another way.

use super::limits::{VECTOR, blocks, narrow, units_of_image};
use crate::plan::{Choice, Parameter, Plan, PlanResult, Shape, Step};
use crate::rung::{Planner, Rung};

/// The family.
pub const RUNGS: &[Rung] = &[A18_AS_GIVEN, A18_HEAD_MAJOR, A18_PAIRED, A18_REORDERED];

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
    plan: Planner::Msda(|shape, _, choice| gathered(shape, choice, AS_GIVEN)),
};

const A18_HEAD_MAJOR: Rung = Rung {
    name: "a18-head-major",
    title: "custom layouts: head by head",
    idea: "value copied to [N, M, S, D] first, so that neighbouring pixels of a head share lines",
    expected: "a tenth with several heads, less than the copy costs; nothing with one, where nothing is copied",
    builds_on: Some("a18-as-given"),
    plan: Planner::Msda(|shape, _, choice| {
        // With one head value is stored so already.
        let layout = if shape.heads == 1 {
            AS_GIVEN
        } else {
            HEAD_MAJOR
        };
        gathered(shape, choice, layout)
    }),
    ..A18_AS_GIVEN
};

const A18_PAIRED: Rung = Rung {
    name: "a18-paired",
    title: "custom layouts: paired neighbours",
    idea: "a copy in which each pixel is followed by its right neighbour, both fetched as one segment",
    expected: "a tenth from fuller wavefronts, less than the copy costs, which doubles what caches must hold",
    builds_on: Some("a18-as-given"),
    parameters: A18_PAIRED_PARAMETERS,
    plan: Planner::Msda(|shape, _, choice| gathered(shape, choice, PAIRED)),
    ..A18_AS_GIVEN
};

const A18_REORDERED: Rung = Rung {
    name: "a18-reordered",
    title: "custom layouts: rows in space order",
    idea: "rows sorted along a Z-shaped path by where their samples lie, then gathered in that order",
    expected: "a loss where queries come in raster order or points lie anywhere: sorting costs 0.03 ms",
    builds_on: Some("a18-as-given"),
    source: concat!(
        include_str!("../../kernels/sharing.cuh"),
        include_str!("../../kernels/a18_sorting.cuh"),
        include_str!("../../kernels/a18_layouts.cu"),
    ),
    parameters: A18_REORDERED_PARAMETERS,
    plan: Planner::Msda(|shape, _, choice| gathered(shape, choice, REORDERED)),
    ..A18_AS_GIVEN
};

const A18_SOURCE: &str = concat!(
    include_str!("../../kernels/sharing.cuh"),
    include_str!("../../kernels/a18_layouts.cu"),
);

pub(super) const THREADS: Parameter =
    Parameter::new("THREADS", "threads per block", &[128, 256, 384], 256);

pub(super) const RESIDENT: Parameter = Parameter::new(
    "RESIDENT",
    "threads that a multiprocessor shall have room for",
    &[512, 768],
    768,
);

const ROUNDS: Parameter = Parameter::new("ROUNDS", "rows a group of lanes takes", &[1, 2, 4], 1);

const BATCH: Parameter = Parameter::new("BATCH", "samples asked for at a time", &[1, 2], 1);

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
    Parameter::new(
        "GRID",
        "bins per side that rows are sorted into",
        &[16, 32, 64],
        32,
    ),
    Parameter::new(
        "KEY_POINTS",
        "leading samples whose mean says where a row lies",
        &[1, 4, 32],
        4,
    ),
];

/// The launches before the gather of A18.
const COPY_THREADS: u32 = 256;
const COPIES: u32 = 4;
const SORT_THREADS: u32 = 256;
const SORTED: u32 = 4096;

fn gathered(shape: &Shape, choice: &Choice, layout: u32) -> PlanResult {
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
