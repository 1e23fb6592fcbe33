//! Which kernel serves a call, and how its work is cut.

use std::fmt;

use super::arguments::{LEVEL_CAPACITIES, Schedule};
use super::kind::Kind;
use super::schedule::schedule;
use super::specialised::{Channel, Specialised, Types};
use crate::cuda::driver::DeviceFacts;
use crate::error::{Error, Result};
use crate::msda::Forward;

/// Which kernel a call shall use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wanted {
    /// The fastest that can serve it.
    #[default]
    Best,
    /// Sixteen bytes of channels a lane.
    Gather,
    /// The same in its form for many rows, however few there are: what large problems run, on small ones.
    GatherMany,
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
        match (wanted, gather(call, facts, wanted)) {
            (Wanted::Best | Wanted::Gather | Wanted::GatherMany, Ok(plan)) => Ok(plan),
            (Wanted::Gather | Wanted::GatherMany, Err(reason)) => Err(Error::Unsupported {
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
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    let (elements, value, locations) = (
        count(&sizes.out()),
        count(&sizes.value()),
        count(&sizes.sampling_locations()),
    );
    // Less than half of what 32 bits count, so that the step beyond the last element does not come round.
    let dense = rows_are_dense(call)
        && call.problem.value().is_contiguous()
        && [elements, value, locations]
            .iter()
            .all(|&count| count < 1 << 31);
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

/// Whether everything but `value` lies in row-major order without gaps.
fn rows_are_dense(call: &Forward<'_>) -> bool {
    call.problem.sampling_locations().is_contiguous()
        && call.problem.attention_weights().is_contiguous()
        && call.out.layout().is_contiguous()
}

/// The plan for the gather kernel, or in words why it cannot serve the call.
fn gather(
    call: &Forward<'_>,
    facts: &DeviceFacts,
    wanted: Wanted,
) -> std::result::Result<Plan, String> {
    let problem = &call.problem;
    let sizes = problem.sizes();
    let kind = Kind {
        types: types(call),
        heads: sizes.heads,
        channels: sizes.channels,
        levels: sizes.levels,
        points: sizes.points,
    };
    kind.expect_gather()?;
    // Each sample reads two pairs of pixels.
    if sizes.pixels < 3 {
        return Err(format!("{} pixels", sizes.pixels));
    }
    let value = aligned(
        "value",
        call.inputs.value.as_ptr(),
        problem.value(),
        &[0, 1, 2],
        &[3],
        16,
    )?;
    let pixel_units = value[1] / 16;
    // Pixels are counted in the bits of an f32, and places inside an image in 32 bits, in units of 16 bytes.
    if sizes.pixels >= 1 << 23 || pixel_units > 1 << 16 || pixel_units * sizes.pixels >= 1 << 31 {
        return Err(format!(
            "an image of {} pixels, {} bytes each, is too large",
            sizes.pixels, value[1]
        ));
    }
    let rows = sizes.images * sizes.queries * sizes.heads;
    if rows >= 1 << 30 {
        return Err(format!("{rows} (image, query, head)"));
    }
    aligned(
        "out",
        call.out.as_mut_ptr(),
        call.out.layout(),
        &[0, 1],
        &[2],
        16,
    )?;

    // Too few rows to fill the device with warps: share each row's samples among more of them.
    let few = rows * kind.lanes() < facts.multiprocessors as usize * SMALL_THREADS;
    let mut gather = kind.gather(pixel_units as u32, few && wanted != Wanted::GatherMany);
    gather.dense = rows_are_dense(call);
    let coordinates = |per_lane: usize| -> std::result::Result<(), String> {
        let (locations, weights) = (
            &call.inputs.sampling_locations,
            &call.inputs.attention_weights,
        );
        let bytes = 2 * per_lane * kind.types.locations.size();
        aligned(
            "sampling_locations",
            locations.as_ptr(),
            locations.layout(),
            &[0, 1, 2],
            &[3, 4, 5],
            bytes,
        )?;
        let bytes = per_lane * kind.types.weights.size();
        aligned(
            "attention_weights",
            weights.as_ptr(),
            weights.layout(),
            &[0, 1, 2],
            &[3, 4],
            bytes,
        )?;
        Ok(())
    };
    if gather.per_lane == 2 && coordinates(2).is_err() {
        gather.per_lane = 1;
        gather.phases = 1;
    }
    coordinates(gather.per_lane as usize)?;
    let (schedule, blocks) = schedule(sizes, &gather, facts.multiprocessors, facts.l2_bytes);
    Ok(Plan {
        kernel: Specialised::Gather(gather),
        blocks,
        threads: gather.threads,
        reason: None,
        schedule: Some(schedule),
    })
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
        let stride = if shape.sizes()[axis] > 1 {
            strides[axis]
        } else {
            expected
        };
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
