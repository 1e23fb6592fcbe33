//! What paid, combined; and what was expected to.

use crate::plan::{Blocks, Choice, Hardware, Parameter, Plan, PlanResult, Shape, Step};
use crate::rung::{Claim, Planner, Rung};

/// The family.
pub const RUNGS: &[Rung] = &[A15_SUMS, A16, A16_HALF];

const PARAMETERS: &[Parameter] = &[
    Parameter::new(
        "THREADS",
        "threads per block, of which there is one per multiprocessor",
        &[512, 640, 768, 896],
        768,
    ),
    Parameter::new(
        "L2_PARTS",
        "of so many parts of L2 one holds the images that are worked on at a time",
        &[2, 4, 8],
        2,
    ),
];

/// What a block that keeps levels may take of a multiprocessor's fast memory, with what the driver adds.
const KEEPING_BYTES: u32 = 100 << 10;
const RESERVED_BYTES: u32 = 2 << 10;

const A15_SUMS: Rung = Rung {
    name: "a15-sums",
    title: "sums on tensor cores",
    idea: "neighbours go to the tensor cores as they were loaded, with weights in two f16 parts, instead of being \
           widened and multiplied",
    expected: "half the instructions: a fifth faster than the shipped kernel, unless lanes that hold four samples \
               instead of one cost L1 more",
    claim: Some(Claim {
        words: "impossible",
        why: "it is possible and exact; whether it pays is another question",
    }),
    builds_on: Some("a16"),
    source: include_str!("../../kernels/a15_sums_on_tensor_cores.cu"),
    hopper: false,
    approximate: None,
    parameters: PARAMETERS,
    plan: Planner::Msda(|shape, hardware, choice| {
        if shape.channels == 16 {
            return Err("16 channels: a fragment of 16 rows takes 32 or more".to_string());
        }
        let bytes = u64::from(shape.images)
            * u64::from(shape.pixels)
            * u64::from(shape.heads)
            * u64::from(shape.pixel_bytes());
        if bytes >= 1 << 32 {
            return Err(format!(
                "{bytes} bytes of value: the rung counts them in 32 bits"
            ));
        }
        let threads = choice.get("THREADS");
        let rows_a_warp = if shape.channels == 32 { 2 } else { 1 };
        let paired = rows_a_warp == 2 && shape.heads.is_multiple_of(2);
        let heads = if paired { 2 } else { 1 };
        let units = match paired {
            true => shape.queries,
            false => shape.queries.div_ceil(rows_a_warp),
        };
        let turns = ImageBatches::new(shape, hardware, choice, heads, units)?;
        let workers = 32 / rows_a_warp;
        let per_lane =
            match shape.samples().is_multiple_of(2 * workers) && shape.points.is_multiple_of(2) {
                true => 2,
                false => 1,
            };
        // Weights and places of a chunk of samples, and of the next.
        let records = 2 * rows_a_warp * workers * per_lane * (16 + 4);
        let shared_bytes = threads / 32 * records;
        if shared_bytes > hardware.shared_bytes {
            return Err(format!(
                "{shared_bytes} bytes of shared memory: the device has {}",
                hardware.shared_bytes
            ));
        }
        Ok(turns.plan("ladder_a15_sums", shape, threads, shared_bytes))
    }),
};

const A16: Rung = Rung {
    name: "a16",
    title: "combined",
    idea: "geometry once per sample, neighbouring rows on one multiprocessor, two pixels per wavefront, the next \
           sample's loads before this one's sums, and of a single head the small levels in shared memory",
    expected: "as fast as the shipped kernel, which is the same with strides, types and infinities besides",
    claim: Some(Claim {
        words: "1.86 TFLOPS, slower than its parts",
        why: "the published one added up parts that got in each other's way; this one keeps only what was measured to pay",
    }),
    builds_on: Some("a04"),
    source: include_str!("../../kernels/a16_combined.cu"),
    hopper: true,
    approximate: None,
    parameters: PARAMETERS,
    plan: Planner::Msda(|shape, hardware, choice| combined(shape, hardware, choice, 0)),
};

const A16_HALF: Rung = Rung {
    name: "a16-half",
    title: "combined, corners mixed in half precision",
    idea: "as a16, but the four neighbours of a sample are mixed in f16 and only then summed in f32",
    expected: "a quarter fewer instructions, a tenth faster, an error twice as large",
    claim: None,
    builds_on: Some("a16"),
    approximate: Some(1e-3),
    plan: Planner::Msda(|shape, hardware, choice| combined(shape, hardware, choice, 1)),
    ..A16
};

fn combined(shape: &Shape, hardware: &Hardware, choice: &Choice, half: u32) -> PlanResult {
    let threads = choice.get("THREADS");
    let heads = match shape.channels == 32 && shape.heads.is_multiple_of(2) {
        true => 2,
        false => 1,
    };
    let turns = ImageBatches::new(shape, hardware, choice, heads, shape.queries * heads)?;
    let lanes = shape.channels / 8;
    let per_lane = if shape.points.is_multiple_of(2) { 2 } else { 1 };
    // A record of 16 bytes for each sample of a chunk of each of a warp's rows.
    let records = threads / 32 * (32 / lanes) * (lanes * per_lane) * 16;
    let may_keep = shape.channels == 32
        && heads == 1
        && shape.points.is_multiple_of(lanes * per_lane)
        && hardware.shared_bytes >= 2 * KEEPING_BYTES;
    let room = KEEPING_BYTES.saturating_sub(records + RESERVED_BYTES);
    let (kept, bytes) = match may_keep {
        true => smallest_levels(shape, room),
        false => (0, 0),
    };
    let mut plan = turns.plan("ladder_a16", shape, threads, records + bytes);
    for step in &mut plan.steps {
        let percent = 100 * KEEPING_BYTES / (hardware.shared_bytes + RESERVED_BYTES);
        step.carveout = (kept != 0).then_some(percent);
    }
    plan.defines.extend([
        ("PIXEL_QUERIES", u32::from(shape.queries == shape.pixels)),
        ("HALF", half),
        ("KEPT", kept),
    ]);
    Ok(plan)
}

/// As many of the smallest levels as fit, as bits, and what they take. Levels of one column are left out: there a pixel
/// has no right-hand neighbour.
fn smallest_levels(shape: &Shape, room: u32) -> (u32, u32) {
    let mut sizes: Vec<(u64, usize)> = shape
        .levels
        .iter()
        .enumerate()
        .filter(|(_, level)| level.width > 1)
        .map(|(number, level)| {
            let bytes = u64::from(level.pixels()) * u64::from(shape.pixel_bytes());
            (bytes, number)
        })
        .collect();
    sizes.sort_unstable();
    let (mut kept, mut total) = (0, 0);
    for (bytes, number) in sizes {
        if u64::from(total) + bytes > u64::from(room) {
            break;
        }
        total += bytes as u32;
        kept |= 1 << number;
    }
    (kept, total)
}

/// How the work is dealt out: all blocks side by side in as many images as a part of L2 holds, then in the next.
struct ImageBatches {
    turn: u32,
    share: u32,
}

impl ImageBatches {
    /// Of `units` of work in the `heads` walked together of an image.
    fn new(
        shape: &Shape,
        hardware: &Hardware,
        choice: &Choice,
        heads: u32,
        units: u32,
    ) -> Result<Self, String> {
        if shape.pixels < 2 {
            return Err("one pixel: the rung reads pixels in pairs".to_string());
        }
        let planes = shape.images * (shape.heads / heads);
        let bytes = u64::from(shape.pixels) * u64::from(heads * shape.pixel_bytes());
        let part = u64::from(hardware.l2_bytes / choice.get("L2_PARTS"));
        let held = (part / bytes).clamp(1, u64::from(planes)) as u32;
        // Turns of the same size keep everybody busy to the end.
        let even = (1..=held).rev().find(|&count| planes.is_multiple_of(count));
        let planes_a_turn = match even {
            Some(count) if 2 * count > held => count,
            _ => planes.div_ceil(planes.div_ceil(held)),
        };
        let turn = planes_a_turn * units;
        // A multiple of what a warp takes at a time, whatever that is.
        let share = turn.div_ceil(hardware.multiprocessors).next_multiple_of(16);
        Ok(ImageBatches { turn, share })
    }

    fn plan(&self, entry: &'static str, shape: &Shape, threads: u32, shared_bytes: u32) -> Plan {
        Plan {
            defines: vec![
                ("QUERIES", shape.queries),
                ("HEADS", shape.heads),
                ("TURN", self.turn),
                ("SHARE", self.share),
            ],
            steps: vec![Step {
                blocks: Blocks::Exactly(self.turn.div_ceil(self.share)),
                shared_bytes,
                ..Step::new(entry, 1, threads)
            }],
            ..Plan::default()
        }
    }
}
