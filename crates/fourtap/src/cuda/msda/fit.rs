//! Sizes, types and layout that kernels need. A refusal is a text that plans report as the reason.

use super::arguments::LEVEL_CAPACITIES;
use super::kind::Kind;
use super::specialised::Types;
use crate::cuda::fit::{Fit, aligned_forward};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::msda::{Inputs, Problem};

pub(super) fn types(problem: &Problem) -> Types {
    Types {
        value: problem.value().dtype(),
        locations: problem.sampling_locations().dtype(),
        weights: problem.attention_weights().dtype(),
    }
}

pub(super) fn kind(problem: &Problem) -> Kind {
    let sizes = problem.sizes();
    Kind {
        types: types(problem),
        heads: sizes.heads,
        channels: sizes.channels,
        levels: sizes.levels,
        points: sizes.points,
    }
}

/// Refuses what no kernel can serve. Returns the level capacity that the generic kernels need.
pub(super) fn expect_any_kernel(problem: &Problem) -> Result<usize> {
    let sizes = problem.sizes();
    let levels = problem.levels().len();
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
    Ok(level_capacity)
}

/// Whether kernels that gather 16-byte vectors can read `value`. Returns the stride between pixels in vectors.
pub(super) fn expect_gather(problem: &Problem, inputs: &Inputs<'_>) -> Fit<usize> {
    kind(problem).expect_gather()?;
    let sizes = problem.sizes();
    // Each sample reads two pairs of pixels.
    if sizes.pixels < 3 {
        return Err(format!("{} pixels", sizes.pixels));
    }
    let steps = aligned_forward(
        "value",
        inputs.value.as_ptr(),
        problem.value(),
        &[0, 1, 2],
        &[3],
        16,
    )?;
    let pixel_units = steps[1] / 16;
    // Pixel numbers must fit the mantissa of an f32, and offsets inside an image 32 bits, in units of 16 bytes.
    if sizes.pixels >= 1 << 23 || pixel_units > 1 << 16 || pixel_units * sizes.pixels >= 1 << 31 {
        return Err(format!(
            "an image of {} pixels, {} bytes each, is too large",
            sizes.pixels, steps[1]
        ));
    }
    let rows = sizes.images * sizes.queries * sizes.heads;
    if rows >= 1 << 30 {
        return Err(format!("{rows} (image, query, head)"));
    }
    Ok(pixel_units)
}

/// Whether offsets in all of `value` fit 31 bits, in units of 16 bytes. Kernels that gather must be able to read it.
pub(super) fn has_short_places(problem: &Problem) -> bool {
    let layout = problem.value();
    let sizes = layout.shape();
    let last: i128 = (sizes.sizes().iter().zip(layout.strides()))
        .map(|(&size, &stride)| (size as i128 - 1) * stride as i128)
        .sum();
    last * layout.dtype().size() as i128 / 16 < 1 << 31
}

/// Whether a lane can read or write `per_lane` samples' locations and weights at a time.
pub(super) fn expect_samples(
    (locations, at_locations): (&Layout, *const u8),
    (weights, at_weights): (&Layout, *const u8),
    per_lane: usize,
) -> Fit<()> {
    aligned_forward(
        "sampling_locations",
        at_locations,
        locations,
        &[0, 1, 2],
        &[3, 4, 5],
        2 * per_lane * locations.dtype().size(),
    )?;
    aligned_forward(
        "attention_weights",
        at_weights,
        weights,
        &[0, 1, 2],
        &[3, 4],
        per_lane * weights.dtype().size(),
    )?;
    Ok(())
}
