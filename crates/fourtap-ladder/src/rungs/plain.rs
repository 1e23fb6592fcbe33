//! One thread for one or several channels: the simplest rungs.

use super::limits::VECTOR;
use crate::plan::{Parameter, Plan, PlanResult, Shape, Step};
use crate::rung::{Claim, Planner, Rung};

/// Of every rung here.
pub(super) const THREADS: Parameter =
    Parameter::new("THREADS", "threads per block", &[128, 256, 512], 256);

/// Of rungs with kernels/vectorised.cuh.
pub(super) const RESIDENT: Parameter = Parameter::new(
    "RESIDENT",
    "threads a multiprocessor shall have room for",
    &[512, 768, 1024, 1280],
    768,
);

/// The family.
pub const RUNGS: &[Rung] = &[A01, A02, A03, A04];

const A01: Rung = Rung {
    name: "a01",
    title: "baseline",
    idea: "a thread per output channel, as the field's extensions are written",
    expected: "the baseline: every thread repeats the arithmetic of its row, a warp's load brings 64 bytes",
    claim: Some(Claim {
        words: "0.5 TFLOPS",
        why: "on another, smaller GPU; the form of the kernel is the same",
    }),
    builds_on: None,
    source: include_str!("../../kernels/a01_baseline.cu"),
    hopper: false,
    approximate: None,
    parameters: &[THREADS],
    plan: Planner::Msda(|shape, _, choice| {
        let threads = choice.get("THREADS");
        let blocks = blocks(shape, threads, shape.channels);
        Ok(Plan::of(Step::new("ladder_a01", blocks, threads)))
    }),
};

const A02: Rung = Rung {
    name: "a02",
    title: "simple",
    idea: "a thread for each word of two channels, so that loads are of whole words",
    expected: "half the arithmetic on places and half the loads of A1, each twice as wide: a little over half its time",
    claim: Some(Claim {
        words: "0.8 TFLOPS",
        why: "on another GPU, with 512 queries in all, too few to fill this one",
    }),
    builds_on: Some("a01"),
    source: include_str!("../../kernels/a02_coalesced.cu"),
    hopper: false,
    approximate: None,
    parameters: &[THREADS],
    plan: Planner::Msda(|shape, _, choice| {
        let threads = choice.get("THREADS");
        let blocks = blocks(shape, threads, shape.channels / 2);
        Ok(Plan::of(Step::new("ladder_a02", blocks, threads)))
    }),
};

const A03: Rung = Rung {
    name: "a03",
    title: "vectorised",
    idea: "eight channels per thread, 16-byte loads",
    expected: "an eighth of the arithmetic on places and of the loads: five to seven times A1",
    claim: Some(Claim {
        words: "0.741 ms",
        why: "correct, but three quarters of its points lay outside the image and were not read",
    }),
    builds_on: Some("a01"),
    source: concat!(
        include_str!("../../kernels/vectorised.cuh"),
        include_str!("../../kernels/a03_vectorised.cu")
    ),
    hopper: false,
    approximate: None,
    parameters: &[THREADS, RESIDENT],
    plan: Planner::Msda(|shape, _, choice| {
        let threads = choice.get("THREADS");
        vectorised(shape, "ladder_a03", threads, 1)
    }),
};

const A04: Rung = Rung {
    name: "a04",
    title: "optimized",
    idea: "where a query's samples lie is worked out once, by all threads of the block, and kept in shared memory",
    expected: "a fifth fewer instructions than A3 for one shared load per sample and some L1: 5 to 10 % faster",
    claim: Some(Claim {
        words: "765 GFLOPS, N4 Q512, levels 32..4",
        why: "96 of its 128 threads idled, and 2048 queries in all do not fill this GPU",
    }),
    builds_on: Some("a03"),
    source: concat!(
        include_str!("../../kernels/vectorised.cuh"),
        include_str!("../../kernels/a04_geometry_in_shared_memory.cu")
    ),
    hopper: false,
    approximate: None,
    parameters: &[
        THREADS,
        RESIDENT,
        Parameter::new(
            "PASS_LIMIT",
            "most samples of a row worked out between two barriers",
            &[8, 16, 32, 64],
            32,
        ),
    ],
    plan: Planner::Msda(|shape, hardware, choice| {
        let (threads, limit) = (choice.get("THREADS"), choice.get("PASS_LIMIT"));
        // Whole levels, or an even part of one, so that no pass ends inside a loop's body.
        let pass = if shape.points <= limit {
            shape.points * largest_divisor(shape.levels.len() as u32, limit / shape.points)
        } else {
            largest_divisor(shape.points, limit)
        };
        let rows = threads / (shape.channels / VECTOR);
        let records = rows * pass * 16;
        let shared = records + 16 * shape.levels.len() as u32;
        if shared > hardware.shared_bytes {
            return Err(format!(
                "{} bytes of shared memory per block: the rung needs {shared} for {rows} rows of {pass} samples",
                hardware.shared_bytes
            ));
        }
        let mut plan = vectorised(shape, "ladder_a04", threads, 1)?;
        plan.defines.push(("PASS", pass));
        plan.steps[0].shared_bytes = records;
        Ok(plan)
    }),
};

/// Blocks whose threads, so many per row, take all rows once.
pub(super) fn blocks(shape: &Shape, threads: u32, threads_a_row: u32) -> u32 {
    let all = u64::from(shape.rows()) * u64::from(threads_a_row);
    all.div_ceil(u64::from(threads)) as u32
}

/// The one launch of a rung with kernels/vectorised.cuh of which each thread takes a vector of so many rows.
pub(super) fn vectorised(
    shape: &Shape,
    entry: &'static str,
    threads: u32,
    rows: u32,
) -> PlanResult {
    fits_vectorised(shape)?;
    let blocks = blocks(shape, threads * rows, shape.channels / VECTOR);
    Ok(Plan::of(Step::new(entry, blocks, threads)))
}

/// What the arithmetic in kernels/vectorised.cuh asks of a problem.
pub(super) fn fits_vectorised(shape: &Shape) -> Result<(), String> {
    let pixel_bytes = u64::from(shape.heads) * u64::from(shape.pixel_bytes());
    if pixel_bytes > u64::from(u32::MAX) {
        return Err(format!(
            "{pixel_bytes} bytes per pixel of all heads: the rung takes fewer than 2^32"
        ));
    }
    match shape
        .levels
        .iter()
        .map(|level| level.width.max(level.height))
        .max()
    {
        Some(side) if side >= 1 << 23 => Err(format!(
            "a level of {side} pixels a side: the rung takes fewer than 2^23"
        )),
        _ => Ok(()),
    }
}

/// The largest divisor of a number that is no larger than `most`, which is at least 1.
fn largest_divisor(number: u32, most: u32) -> u32 {
    (1..=most)
        .rev()
        .find(|divisor| number.is_multiple_of(*divisor))
        .unwrap_or(1)
}
