//! One change to A3 at a time.

use super::plain::{RESIDENT, THREADS, blocks, fits_vectorised, vectorised};
use crate::plan::{Blocks, Parameter, Plan, Step};
use crate::rung::{Claim, Planner, Rung};

/// The family.
pub const RUNGS: &[Rung] = &[
    WARP_SHUFFLE,
    ASYNC_PIPELINE,
    REGISTER_BLOCKING,
    L2_POLICY,
    VECTOR_4,
    VECTOR_8,
    METADATA,
    WORK_REDISTRIBUTION,
    UNROLLING,
    PRECOMPUTED_WEIGHTS,
    L2_HINTS,
    MIXED_PRECISION,
];

/// The kernel file of a rung behind the header that all of them share.
macro_rules! on_vectorised {
    ($file:literal) => {
        concat!(
            include_str!("../../kernels/vectorised.cuh"),
            include_str!(concat!("../../kernels/", $file))
        )
    };
}

/// Why no percentage of suite 2 can be expected here.
const OTHER_BASELINE: &str =
    "a difference between other kernels, on another GPU, that were never checked on every element";

/// What the rungs below have in common.
const ON_A3: Rung = Rung {
    name: "",
    title: "",
    idea: "",
    expected: "",
    claim: None,
    builds_on: Some("a03"),
    source: "",
    hopper: false,
    approximate: None,
    parameters: &[THREADS, RESIDENT],
    plan: Planner::Msda(|_, _, _| Err("not a rung by itself".to_owned())),
};

const WARP_SHUFFLE: Rung = Rung {
    name: "s1-shuffle",
    title: "warp shuffle",
    idea: "where a sample lies is worked out by one lane of its row and handed to the others by shuffles",
    expected: "a fifth fewer instructions for four shuffled words per sample: 5 to 10 % faster",
    source: on_vectorised!("s1_warp_shuffle.cu"),
    plan: Planner::Msda(|shape, _, choice| {
        vectorised(shape, "ladder_s1_shuffle", choice.get("THREADS"), 1)
    }),
    ..ON_A3
};

const ASYNC_PIPELINE: Rung = Rung {
    name: "s1-async",
    title: "async pipeline",
    idea: "coordinates and weights of the next step come by cp.async into a second buffer, also across rows",
    expected: "no step waits for DRAM, which other warps mostly hid already: 5 % faster",
    source: on_vectorised!("s1_async_pipeline.cu"),
    parameters: &[
        THREADS,
        Parameter {
            values: &[512, 768, 1024],
            ..RESIDENT
        },
        Parameter::new(
            "TURNS",
            "rows that a group of lanes takes one after another",
            &[1, 2, 4, 8],
            4,
        ),
    ],
    plan: Planner::Msda(|shape, _, choice| {
        vectorised(
            shape,
            "ladder_s1_async",
            choice.get("THREADS"),
            choice.get("TURNS"),
        )
    }),
    ..ON_A3
};

const REGISTER_BLOCKING: Rung = Rung {
    name: "s1-register-blocking",
    title: "register blocking",
    idea: "a thread takes several rows in step, for more loads in flight",
    expected: "what it gains in loads per thread it loses in threads: nothing with 2 rows, slower with 4",
    source: on_vectorised!("s1_register_blocking.cu"),
    parameters: &[
        THREADS,
        Parameter {
            values: &[256, 512, 768],
            default: 512,
            ..RESIDENT
        },
        Parameter::new("ROWS", "rows of a thread", &[2, 4], 2),
    ],
    plan: Planner::Msda(|shape, _, choice| {
        let (threads, rows) = (choice.get("THREADS"), choice.get("ROWS"));
        vectorised(shape, "ladder_s1_register_blocking", threads, rows)
    }),
    ..ON_A3
};

const L2_POLICY: Rung = Rung {
    name: "s1-l2-policy",
    title: "L2 policy",
    idea: "value is loaded to stay in L2 (evict_last), what is read or written once to leave it first (evict_first)",
    expected: "the images being read are a few megabytes of the tens that L2 holds: nothing",
    source: on_vectorised!("s1_l2_policy.cu"),
    parameters: &[
        THREADS,
        RESIDENT,
        Parameter::new(
            "PERCENT",
            "part of value that is to stay",
            &[25, 50, 100],
            100,
        ),
    ],
    plan: Planner::Msda(|shape, _, choice| {
        vectorised(shape, "ladder_s1_l2_policy", choice.get("THREADS"), 1)
    }),
    ..ON_A3
};

const VECTOR_4: Rung = Rung {
    name: "s1-vector-4",
    title: "vector width 4",
    idea: "4 bytes per lane instead of 16",
    expected: "four times the lanes repeat the arithmetic on places: twice the time",
    plan: Planner::Msda(|shape, _, choice| {
        fits_vectorised(shape)?;
        let threads = choice.get("THREADS");
        let blocks = blocks(shape, threads, shape.pixel_bytes() / 4);
        Ok(Plan {
            defines: vec![("LANE_BYTES", 4)],
            ..Plan::of(Step::new("ladder_s1_vector", blocks, threads))
        })
    }),
    ..NARROW
};

const VECTOR_8: Rung = Rung {
    name: "s1-vector-8",
    title: "vector width 8",
    idea: "8 bytes per lane instead of 16",
    expected: "twice the lanes repeat the arithmetic on places: 1.4 times the time",
    plan: Planner::Msda(|shape, _, choice| {
        fits_vectorised(shape)?;
        let threads = choice.get("THREADS");
        let blocks = blocks(shape, threads, shape.pixel_bytes() / 8);
        Ok(Plan {
            defines: vec![("LANE_BYTES", 8)],
            ..Plan::of(Step::new("ladder_s1_vector", blocks, threads))
        })
    }),
    ..NARROW
};

const NARROW: Rung = Rung {
    source: on_vectorised!("s1_vector_width.cu"),
    // Fewer bytes in flight per thread need fewer registers and allow more threads.
    parameters: &[
        THREADS,
        Parameter {
            values: &[768, 1024, 1280],
            default: 1024,
            ..RESIDENT
        },
    ],
    ..ON_A3
};

const METADATA: Rung = Rung {
    name: "s2-metadata",
    title: "metadata in shared memory",
    idea: "a warp keeps where its samples lie in shared memory, a few points of a level at a time",
    expected: "a fifth fewer instructions for one shared load per sample, and no barrier of the block: 5 to 10 % faster",
    claim: Some(Claim {
        words: "+5.3 %",
        why: OTHER_BASELINE,
    }),
    source: on_vectorised!("s2_metadata_in_shared_memory.cu"),
    plan: Planner::Msda(|shape, _, choice| {
        vectorised(shape, "ladder_s2_metadata", choice.get("THREADS"), 1)
    }),
    ..ON_A3
};

const WORK_REDISTRIBUTION: Rung = Rung {
    name: "s2-redistribution",
    title: "work redistribution",
    idea: "blocks stay and walk the rows image by image, a few heads at a time",
    expected: "with one head only the starts of blocks are spared, 0 to 3 %; with eight more L1 hits, up to 10 %",
    claim: Some(Claim {
        words: "+3.6 %",
        why: OTHER_BASELINE,
    }),
    source: on_vectorised!("s2_work_redistribution.cu"),
    parameters: &[
        THREADS,
        RESIDENT,
        Parameter::new(
            "SHARE",
            "consecutive rows that a group of lanes takes in one go",
            &[1, 2, 4],
            1,
        ),
        Parameter::new("HEADS", "heads walked side by side", &[1, 2, 4], 2),
    ],
    plan: Planner::Msda(|shape, _, choice| {
        let mut plan = vectorised(shape, "ladder_s2_redistribution", choice.get("THREADS"), 1)?;
        plan.steps[0].blocks = Blocks::Filling;
        Ok(plan)
    }),
    ..ON_A3
};

const UNROLLING: Rung = Rung {
    name: "s2-unrolling",
    title: "unrolling",
    idea: "more or fewer samples written out in the body of the loop",
    expected: "registers bound the loads in flight, so eight gain 1 % at most over four; one at a time loses 10 %",
    claim: Some(Claim {
        words: "+2.1 %",
        why: OTHER_BASELINE,
    }),
    source: on_vectorised!("s2_unrolling.cu"),
    parameters: &[
        THREADS,
        RESIDENT,
        Parameter::new("UNROLL", "samples of the loop's body", &[1, 2, 4, 8, 32], 8),
    ],
    plan: Planner::Msda(|shape, _, choice| {
        vectorised(shape, "ladder_s2_unrolling", choice.get("THREADS"), 1)
    }),
    ..ON_A3
};

const PRECOMPUTED_WEIGHTS: Rung = Rung {
    name: "s2-precomputed",
    title: "precomputed weights",
    idea: "a first kernel writes where every sample lies and its weights, the second only gathers",
    expected: "16 bytes per sample written and read back cost more than the arithmetic they spare: a quarter slower",
    claim: Some(Claim {
        words: "+1.2 %",
        why: OTHER_BASELINE,
    }),
    source: on_vectorised!("s2_precomputed_weights.cu"),
    plan: Planner::Msda(|shape, _, choice| {
        let threads = choice.get("THREADS");
        let samples = u128::from(shape.rows()) * u128::from(shape.samples());
        let places = i32::try_from(samples.div_ceil(u128::from(threads)))
            .map_err(|_| format!("{samples} samples: more than one launch can take"))?;
        let mut plan = vectorised(shape, "ladder_s2_precomputed", threads, 1)?;
        plan.steps.insert(
            0,
            Step::new(
                "ladder_s2_precomputed_places",
                places.unsigned_abs(),
                threads,
            ),
        );
        plan.scratch_bytes = 16 * samples as u64;
        Ok(plan)
    }),
    ..ON_A3
};

const L2_HINTS: Rung = Rung {
    name: "s2-l2-hints",
    title: "L2 hints",
    idea: "a row's coordinates are prefetched into L2, and pixels bring along the bytes around them",
    expected: "L2 holds most pixels anyway, and other warps hide the rest: 1 to 2 % faster",
    claim: Some(Claim {
        words: "+0.8 %",
        why: OTHER_BASELINE,
    }),
    source: on_vectorised!("s2_l2_hints.cu"),
    parameters: &[
        THREADS,
        RESIDENT,
        Parameter::new(
            "HINT",
            "bytes to bring along with a pixel",
            &[64, 128, 256],
            128,
        ),
    ],
    plan: Planner::Msda(|shape, _, choice| {
        vectorised(shape, "ladder_s2_l2_hints", choice.get("THREADS"), 1)
    }),
    ..ON_A3
};

const MIXED_PRECISION: Rung = Rung {
    name: "s2-mixed",
    title: "mixed precision",
    idea: "the four neighbours are mixed in f16, two channels per instruction; samples are summed in f32",
    expected: "32 of 108 instructions per sample fewer, at about twice the error: 10 to 15 % faster",
    claim: Some(Claim {
        words: "-2.1 %",
        why: OTHER_BASELINE,
    }),
    source: on_vectorised!("s2_mixed_precision.cu"),
    approximate: Some(1e-3),
    plan: Planner::Msda(|shape, _, choice| {
        vectorised(shape, "ladder_s2_mixed", choice.get("THREADS"), 1)
    }),
    ..ON_A3
};
