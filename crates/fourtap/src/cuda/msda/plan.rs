//! Which kernel serves a call, and how its work is cut.

use std::fmt;

use super::arguments::{Divisor, LEVEL_CAPACITIES, Schedule};
use super::specialised::{Channel, Gather, Specialised, Types, lanes};
use crate::cuda::driver::DeviceFacts;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::msda::{Forward, Sizes};

/// Which kernel a call shall use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wanted {
    /// The fastest that can serve it.
    #[default]
    Best,
    /// Sixteen bytes of channels a lane.
    Gather,
    /// One thread a channel, the form everybody else ships: what speed is measured against.
    Channel,
}

/// What a call will do: shown to whoever asks, and followed by the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The kernel.
    pub kernel: Specialised,
    /// Blocks to launch.
    pub blocks: u32,
    /// Threads of each.
    pub threads: u32,
    /// Why it is not a faster kernel.
    pub reason: Option<String>,
    pub(super) schedule: Option<Schedule>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan {
            kernel,
            blocks,
            threads,
            reason,
            ..
        } = self;
        write!(f, "{kernel}, {blocks} blocks of {threads} threads")?;
        match reason {
            Some(reason) => write!(f, " (not gather: {reason})"),
            None => Ok(()),
        }
    }
}

/// Threads a multiprocessor needs to hide latency.
const SMALL_THREADS: usize = 256;

/// Threads a block of the kernel of one thread a channel.
const CHANNEL_THREADS: u32 = 256;

impl Plan {
    /// For `call` on a device.
    pub(super) fn new(call: &Forward<'_>, facts: &DeviceFacts, wanted: Wanted) -> Result<Plan> {
        match (wanted, gather(call, facts)) {
            (Wanted::Best | Wanted::Gather, Ok(plan)) => Ok(plan),
            (Wanted::Gather, Err(reason)) => Err(Error::Unsupported {
                backend: "cuda",
                expected: "a problem the gather kernel can serve".to_string(),
                found: reason,
            }),
            (Wanted::Best, Err(reason)) => channel(call, facts, Some(reason)),
            (Wanted::Channel, _) => channel(call, facts, None),
        }
    }
}

fn types(call: &Forward<'_>) -> Types {
    Types {
        value: call.problem.value().dtype(),
        locations: call.problem.sampling_locations().dtype(),
        weights: call.problem.attention_weights().dtype(),
    }
}

fn channel(call: &Forward<'_>, facts: &DeviceFacts, reason: Option<String>) -> Result<Plan> {
    let sizes = call.problem.sizes();
    let levels = call.problem.levels().len();
    let Some(&level_capacity) = LEVEL_CAPACITIES.iter().find(|&&room| levels <= room) else {
        return Err(Error::Unsupported {
            backend: "cuda",
            expected: format!(
                "at most {} levels in host memory (any number in device memory)",
                LEVEL_CAPACITIES[LEVEL_CAPACITIES.len() - 1]
            ),
            found: format!("{levels}"),
        });
    };
    // Sizes that kernels keep in 32 bits.
    for (axis, size) in [
        ("M", sizes.heads),
        ("D", sizes.channels),
        ("L", sizes.levels),
        ("P", sizes.points),
    ] {
        if i32::try_from(size).is_err() {
            return Err(Error::Unsupported {
                backend: "cuda",
                expected: format!("an axis {axis} of less than 2^31"),
                found: format!("{size}"),
            });
        }
    }
    let elements = sizes.images * sizes.queries * sizes.heads * sizes.channels;
    // Whole turns of the loop over elements must not step over the end of 32 bits either.
    let fits = |elements: usize| elements < 1 << 31;
    let dense = [
        (call.problem.value(), sizes.value().to_vec()),
        (
            call.problem.sampling_locations(),
            sizes.sampling_locations().to_vec(),
        ),
        (
            call.problem.attention_weights(),
            sizes.attention_weights().to_vec(),
        ),
        (call.out.layout(), sizes.out().to_vec()),
    ]
    .iter()
    .all(|(layout, shape)| layout.is_contiguous() && fits(shape.iter().product()));
    let blocks_needed = elements.div_ceil(CHANNEL_THREADS as usize);
    // Enough to fill any device many times over; threads loop over the rest.
    let most = facts.multiprocessors as usize * 64;
    Ok(Plan {
        kernel: Specialised::Channel(Channel {
            types: types(call),
            strided: !dense,
            level_capacity,
        }),
        blocks: blocks_needed.clamp(1, most.max(1)) as u32,
        threads: CHANNEL_THREADS,
        reason,
        schedule: None,
    })
}

/// The plan for the gather kernel, or in words why it cannot serve the call.
fn gather(call: &Forward<'_>, facts: &DeviceFacts) -> std::result::Result<Plan, String> {
    let problem = &call.problem;
    let sizes = problem.sizes();
    let types = types(call);
    let element = types.value.size();
    if types.value == DType::F64 {
        return Err("value is f64".to_string());
    }
    if !(sizes.channels * element).is_multiple_of(16) || lanes_of(sizes, types.value) > 32 {
        return Err(format!(
            "{} channels of {} are not 1 to 32 times 16 bytes",
            sizes.channels, types.value
        ));
    }
    let samples = sizes.levels * sizes.points;
    if samples == 0 || sizes.levels > LEVEL_CAPACITIES[0] || samples > 1024 {
        return Err(format!("{} levels of {} points", sizes.levels, sizes.points));
    }
    if sizes.pixels < 2 {
        return Err(format!("{} pixels", sizes.pixels));
    }
    let value = aligned("value", call.inputs.value.as_ptr(), problem.value(), &[0, 1, 2], &[3], 16)?;
    let pixel_units = value[1] / 16;
    // Offsets inside an image are counted in 32 bits, in units of 16 bytes.
    if pixel_units.checked_mul(sizes.pixels).is_none_or(|units| units >= 1 << 31) || pixel_units > 1 << 16 {
        return Err("an image is too large".to_string());
    }
    let rows = sizes.images * sizes.queries * sizes.heads;
    if rows >= 1 << 30 {
        return Err(format!("{rows} (image, query, head)"));
    }
    aligned("out", call.out.as_mut_ptr(), call.out.layout(), &[0, 1], &[2], 16)?;

    let lanes = lanes(sizes.channels as u32, types.value);
    // Too few rows to fill the device with warps: share each row's samples among more of them.
    let small = rows * (lanes as usize) < facts.multiprocessors as usize * SMALL_THREADS;
    let split = if small && lanes <= 16 && samples > 1 { 2 } else { 1 };
    let group = lanes * split;
    // Two samples a lane halve the cost of handing them round, where their numbers lie in pairs.
    let in_pairs = group <= 4 && samples.is_multiple_of(2 * group as usize);
    let mut per_lane = if in_pairs { 2 } else { 1 };
    let coordinates = |per_lane: usize| -> std::result::Result<(), String> {
        let (locations, weights) = (&call.inputs.sampling_locations, &call.inputs.attention_weights);
        let bytes = 2 * per_lane * types.locations.size();
        aligned("sampling_locations", locations.as_ptr(), locations.layout(), &[0, 1, 2], &[3, 4, 5], bytes)?;
        let bytes = per_lane * types.weights.size();
        aligned("attention_weights", weights.as_ptr(), weights.layout(), &[0, 1, 2], &[3, 4], bytes)?;
        Ok(())
    };
    if per_lane == 2 && coordinates(2).is_err() {
        per_lane = 1;
    }
    coordinates(per_lane)?;

    // Loads of 64 bytes a pixel and head go two at a time if they meet different halves of 128-byte lines.
    let wanted_together = (8 / lanes).max(1);
    let heads_together = (1..=wanted_together)
        .rev()
        .find(|&heads| heads.is_power_of_two() && sizes.heads.is_multiple_of(heads as usize))
        .unwrap_or(1);
    let alternate = lanes == 4 && heads_together == 1 && pixel_units % 8 == 4;
    let gather = Gather {
        types,
        channels: sizes.channels as u32,
        levels: sizes.levels as u32,
        points: sizes.points as u32,
        pixel_units: pixel_units as u32,
        threads: if split > 1 { 64 } else { 896 },
        per_lane: per_lane as u32,
        split,
        heads_together,
        alternate,
    };
    let (schedule, blocks) = schedule(sizes, &gather, facts);
    Ok(Plan {
        kernel: Specialised::Gather(gather),
        blocks,
        threads: gather.threads,
        reason: None,
        schedule: Some(schedule),
    })
}

fn lanes_of(sizes: &Sizes, value: DType) -> usize {
    (sizes.channels * value.size() / 16).next_power_of_two()
}

/// Checks that the axes `dense` are row-major without gaps, that those in `rows` step forward by whole multiples of
/// `bytes`, and that the first element is aligned so. Returns the steps of `rows` in bytes.
fn aligned(
    tensor: &str,
    first: *const u8,
    layout: &crate::layout::Layout,
    rows: &[usize],
    dense: &[usize],
    bytes: usize,
) -> std::result::Result<Vec<usize>, String> {
    let (shape, strides) = (layout.shape(), layout.strides());
    let mut expected = 1isize;
    for &axis in dense.iter().rev() {
        let size = shape.sizes()[axis];
        if size > 1 && strides[axis] != expected {
            return Err(format!("{tensor} has gaps on axis {axis}"));
        }
        expected *= size as isize;
    }
    if !(first as usize).is_multiple_of(bytes) {
        return Err(format!("{tensor} is not aligned to {bytes} bytes"));
    }
    let mut steps = Vec::with_capacity(rows.len());
    for &axis in rows {
        // A step nobody takes may be anything.
        let stride = if shape.sizes()[axis] > 1 { strides[axis] } else { expected };
        let step = stride * layout.dtype().size() as isize;
        if step < 0 || !(step as usize).is_multiple_of(bytes) {
            return Err(format!(
                "{tensor} steps by {step} bytes on axis {axis}, not by a multiple of {bytes}"
            ));
        }
        steps.push(step as usize);
    }
    Ok(steps)
}

/// How rows are dealt to blocks.
fn schedule(sizes: &Sizes, gather: &Gather, facts: &DeviceFacts) -> (Schedule, u32) {
    let rows = (sizes.images * sizes.queries * sizes.heads) as u32;
    let at_once = gather.rows_a_block();
    let plane = sizes.queries as u32 * gather.heads_together;
    let planes_an_image = sizes.heads as u32 / gather.heads_together;
    let queries_are_pixels = sizes.queries == sizes.pixels;
    let multiprocessors = facts.multiprocessors.max(1);
    let granule = gather.rows_a_warp();

    let (turn, share, blocks) = if gather.split > 1 {
        // Small: a block for each piece, as many as there are.
        (rows, at_once, rows.div_ceil(at_once))
    } else if rows <= multiprocessors * at_once {
        // One block a multiprocessor, and no more than it can do at a time.
        let share = rows.div_ceil(multiprocessors).next_multiple_of(granule);
        (rows, share, rows.div_ceil(share))
    } else if gather.group() >= 8 && !queries_are_pixels {
        // Whole lines a pixel: all multiprocessors side by side in one image, so that L2 serves them.
        (multiprocessors * at_once, at_once, multiprocessors)
    } else {
        // Neighbouring rows on one multiprocessor, whose L1 serves them, but no more images at a time than L2 holds.
        let planes = rows.div_ceil(plane.max(1));
        let plane_bytes = sizes.pixels as u64
            * gather.heads_together as u64
            * gather.channels as u64
            * gather.types.value.size() as u64;
        let held = (facts.l2_bytes as u64 / 4 / plane_bytes.max(1)).clamp(1, planes as u64) as u32;
        let planes_a_turn = planes.div_ceil(planes.div_ceil(held));
        let turn = planes_a_turn * plane;
        let share = turn.div_ceil(multiprocessors).next_multiple_of(granule);
        (turn, share, multiprocessors)
    };
    let schedule = Schedule {
        rows,
        turn,
        share,
        iterations: (rows.div_ceil(turn.max(1)) * share).div_ceil(at_once),
        plane,
        planes_an_image,
        order: queries_are_pixels as u32,
        by_plane: Divisor::new(plane.max(1)),
        by_planes_an_image: Divisor::new(planes_an_image.max(1)),
    };
    (schedule, blocks)
}
