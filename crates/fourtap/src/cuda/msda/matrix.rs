//! Forward on tensor cores: which calls it serves, and how.

use super::arguments::Schedule;
use super::fit;
use super::forward::{Plan, rows_are_dense};
use super::operands::{Operand, Operands};
use super::schedule::{Dealing, schedule};
use super::shared_levels::SharedLevels;
use super::specialised::{Gather, KernelVariant};
use super::tuning::{ForwardTuning, or_usual};
use crate::cuda::device_size::DeviceSize;
use crate::cuda::fit::{Fit, aligned_forward};
use crate::cuda::step::Step;
use crate::tuning::spaces::cuda::{ALWAYS, NEVER};

/// Samples of a row that its lanes work out at a time, ROUND of kernels/msda/forward_matrix.cu.
const ROUND: u32 = 16;

/// Maximum pixels of a level: their numbers have 16 bits.
const MOST_PIXELS: usize = u16::MAX as usize;

/// The variant that keeps the second half of the levels in shared memory, where a round of samples is one half.
pub(super) fn keeping(matrix: &Gather) -> Option<Gather> {
    let can = matrix.samples() == 2 * ROUND && ROUND.is_multiple_of(matrix.points);
    can.then_some(Gather {
        keeps: true,
        ..*matrix
    })
}

/// The plan for a call, or the reason why the kernel cannot serve it; unless `anyway`, also where it is not the fastest.
pub(super) fn plan(
    operands: &Operands<'_>,
    out: &Operand,
    device: DeviceSize,
    tuning: &ForwardTuning,
    anyway: bool,
) -> Fit<Plan> {
    let sizes = &operands.sizes;
    let pixel_units = fit::expect_gather(operands)?;
    let mut matrix = operands
        .kind
        .forward_matrix(pixel_units as u32)
        .ok_or("rows of other types or sizes")?;
    aligned_forward("out", out.first, &out.layout, &[0, 1], &[2], 16)?;
    fit::expect_samples(&operands.locations, &operands.weights, 2)?;
    let largest = match operands.levels_in_device_memory {
        true => sizes.pixels,
        false => operands
            .levels
            .iter()
            .map(|level| level.pixels())
            .max()
            .unwrap_or(0),
    };
    if largest > MOST_PIXELS {
        return Err(format!("a level of {largest} pixels"));
    }
    matrix.dense = rows_are_dense(operands, out);
    matrix.threads = or_usual(tuning.threads, matrix.threads);
    let (rows, blocks) = schedule(sizes, &matrix, Dealing::tuned(device, tuning));
    let first_kept = (ROUND / matrix.points.min(ROUND)) as usize;
    let kept = keeping(&matrix)
        .filter(|_| tuning.keep != NEVER && !operands.levels_in_device_memory)
        .and_then(|keeping| {
            let kept = SharedLevels::all_from(first_kept, operands.levels, &keeping, device)?;
            Some((keeping, kept))
        });
    let pays = sizes.heads % 2 == 1 && SharedLevels::can_pay(&matrix, &rows, device);
    if !(anyway || pays && kept.is_some()) {
        return Err("not measured to be faster".to_string());
    }
    if tuning.keep == ALWAYS && kept.is_none() {
        return Err("no level that can be kept".to_string());
    }
    let (kernel, bytes, levels) = match kept {
        Some((keeping, kept)) => (keeping, kept.bytes, kept.levels),
        None => (matrix, 0, 0),
    };
    Ok(Plan {
        step: Step {
            kernel: KernelVariant::Matrix(kernel),
            blocks: [blocks, 1],
            threads: kernel.threads,
            shared_bytes: bytes,
        },
        reason: None,
        schedule: Some(Schedule {
            kept: levels,
            ..rows
        }),
    })
}
