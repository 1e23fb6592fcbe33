//! Fewer bits and fewer samples, with the error stated.

use super::layouts::{RESIDENT, THREADS};
use super::limits::{VECTOR, blocks, narrow, too_many, units_of_image};
use crate::plan::{Choice, Parameter, Plan, PlanResult, Shape, Step};
use crate::rung::{Planner, Rung};

/// The family.
pub const RUNGS: &[Rung] = &[A19_INT8, A19_FP8, A19_DROP];

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
    plan: Planner::Msda(|shape, _, choice| quantised(shape, choice, INT8)),
};

const A19_FP8: Rung = Rung {
    name: "a19-fp8",
    title: "approximate: fp8",
    idea: "value as e4m3, one scale for each image and head, summed in half precision a few samples at a time",
    expected: "a third, as int8, at six times its error: nothing speaks for it but hardware that has no dp2a",
    approximate: Some(5e-2),
    plan: Planner::Msda(|shape, _, choice| quantised(shape, choice, FP8)),
    ..A19_INT8
};

const A19_DROP: Rung = Rung {
    name: "a19-drop",
    title: "approximate: light samples dropped",
    idea: "samples that weigh less than a share of the row's heaviest are not read",
    expected: "a tenth: a fifth of the loads goes, but a warp waits for the row that keeps most",
    source: concat!(
        include_str!("../../kernels/sharing.cuh"),
        include_str!("../../kernels/a19_drop.cu"),
    ),
    approximate: Some(0.1),
    parameters: &[
        Parameter {
            values: &[128, 256],
            ..THREADS
        },
        RESIDENT,
        Parameter::new(
            "THRESHOLD",
            "thousandths of the heaviest sample's weight",
            &[10, 20, 50],
            50,
        ),
    ],
    plan: Planner::Msda(|shape, _, choice| dropping(shape, choice)),
    ..A19_INT8
};

const A19_SOURCE: &str = concat!(
    include_str!("../../kernels/sharing.cuh"),
    include_str!("../../kernels/a19_quantising.cuh"),
    include_str!("../../kernels/a19_approximate.cu"),
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
    Parameter::new(
        "MOST_PER_LANE",
        "samples a lane works out at a time, where points allow",
        &[2, 4],
        4,
    ),
];

/// The launches before the gather of A19.
const PREPARING: u32 = 256;
const PARTS: u32 = 32;
const QUANTISED_AT_ONCE: u32 = 4;

fn quantised(shape: &Shape, choice: &Choice, kind: u32) -> PlanResult {
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

fn dropping(shape: &Shape, choice: &Choice) -> PlanResult {
    let lanes = shape.channels / VECTOR;
    units_of_image(u64::from(shape.pixels), shape.heads, lanes)?;
    let threads = choice.get("THREADS");
    let count = u64::from(shape.rows()).div_ceil(u64::from(threads / lanes));
    let mut plan = Plan::of(Step::new("ladder_a19_drop", blocks(count)?, threads));
    plan.defines = vec![
        ("GROUP", lanes),
        // Half a row of 32 samples with 16 channels, all of it with more: room for 48 KB of samples per block.
        ("PER_LANE", (32 / lanes).min(8)),
        ("HEADS", shape.heads),
        ("NARROW", narrow(shape)),
    ];
    Ok(plan)
}
