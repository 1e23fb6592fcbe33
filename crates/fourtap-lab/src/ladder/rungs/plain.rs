//! One thread for one or several channels, and nothing else.

use super::super::plan::{Parameter, Plan, Step};
use super::super::{Claim, Rung};

/// Channels a thread of a vectorised rung owns.
const VECTOR: u32 = 8;

/// The family.
pub const RUNGS: &[Rung] = &[A01, A03];

const A01: Rung = Rung {
    name: "a01",
    title: "baseline",
    idea: "a thread per output channel, as the field's extensions are written",
    expected: "the ruler: every thread repeats the arithmetic of its row, a warp's load brings 64 bytes",
    claim: Some(Claim {
        words: "0.5 TFLOPS",
        why: "on another GPU, and most of its points lay outside the image and cost nothing",
    }),
    builds_on: None,
    source: include_str!("../../../kernels/ladder/a01_baseline.cu"),
    hopper: false,
    approximate: None,
    parameters: &[Parameter {
        name: "THREADS",
        what: "threads a block",
        values: &[128, 256, 512],
        default: 256,
    }],
    plan: |shape, _, choice| {
        let threads = choice.get("THREADS");
        let outputs = u64::from(shape.rows()) * u64::from(shape.channels);
        let blocks = outputs.div_ceil(u64::from(threads)) as u32;
        Ok(Plan::of(Step::new("ladder_a01", blocks, threads)))
    },
};

const A03: Rung = Rung {
    name: "a03",
    title: "vectorised",
    idea: "eight channels a thread, 16-byte loads",
    expected: "an eighth of the arithmetic on places and of the loads: five to seven times A1",
    claim: Some(Claim {
        words: "0.741 ms",
        why: "correct, but three quarters of its points lay outside the image and were not read",
    }),
    builds_on: Some("a01"),
    source: include_str!("../../../kernels/ladder/a03_vectorised.cu"),
    hopper: false,
    approximate: None,
    parameters: &[Parameter {
        name: "THREADS",
        what: "threads a block",
        values: &[128, 256, 512],
        default: 256,
    }],
    plan: |shape, _, choice| {
        let threads = choice.get("THREADS");
        let vectors = shape.rows() * (shape.channels / VECTOR);
        Ok(Plan::of(Step::new(
            "ladder_a03",
            vectors.div_ceil(threads),
            threads,
        )))
    },
};
