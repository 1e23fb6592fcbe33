//! Sizes, types and layout that kernels need. A refusal is a text that plans report as the reason.

use super::arguments::LEVEL_CAPACITIES;
use super::operands::{Operand, Operands};
use super::specialised::{PROJECTED_LEVELS, Sampling};
use crate::cuda::fit::{Fit, aligned_forward};
use crate::error::{Error, Result};
use crate::msda::Sizes;
use crate::msda::projections::References;

/// Refuses what no kernel can serve. Returns the level capacity that the generic kernels need.
pub(super) fn expect_any_kernel(operands: &Operands<'_>) -> Result<usize> {
    let sizes = &operands.sizes;
    if operands.kind.sampling != Sampling::Given && sizes.levels > PROJECTED_LEVELS {
        return Err(Error::Unsupported {
            backend: "cuda",
            expected: format!("at most {PROJECTED_LEVELS} levels of projections"),
            found: format!("{}", sizes.levels),
        });
    }
    let levels = operands.levels.len();
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
pub(super) fn expect_gather(operands: &Operands<'_>) -> Fit<usize> {
    operands.kind.expect_gather()?;
    let sizes = &operands.sizes;
    // Each sample reads two pairs of pixels.
    if sizes.pixels < 3 {
        return Err(format!("{} pixels", sizes.pixels));
    }
    let steps = aligned_forward(
        "value",
        operands.value.first,
        &operands.value.layout,
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
    if let Some((references, first)) = &operands.references {
        expect_references(references, *first)?;
    }
    let rows = sizes.images * sizes.queries * sizes.heads;
    if rows >= 1 << 30 {
        return Err(format!("{rows} (image, query, head)"));
    }
    Ok(pixel_units)
}

/// Whether the coordinates of a reference point can be read at once.
pub(super) fn expect_references(references: &References, first: *const u8) -> Fit<()> {
    let bytes = references.coordinates() * references.dtype.size();
    let [rows @ .., coordinate] = references.strides;
    let steps = rows.map(|stride| stride.unsigned_abs() * references.dtype.size());
    let forward = rows.iter().all(|&stride| stride >= 0);
    let fits = forward && coordinate == 1 && steps.iter().all(|step| step.is_multiple_of(bytes));
    match fits && (first as usize).is_multiple_of(bytes) {
        true => Ok(()),
        false => Err(format!(
            "reference_points are not in whole groups of {bytes} bytes"
        )),
    }
}

/// Whether all of these, whose strides are not negative, lie within 2^32 bytes.
pub(super) fn are_narrow(
    operands: &[&Operand],
    references: &Option<(References, *const u8)>,
    sizes: &Sizes,
) -> bool {
    let span = |sizes: &[usize], strides: &[isize], bytes: usize| -> Option<usize> {
        let mut axes = sizes.iter().zip(strides);
        axes.try_fold(bytes, |sum, (&size, &stride)| {
            let stride = usize::try_from(stride).ok()?;
            sum.checked_add(stride.checked_mul(size)?.checked_mul(bytes)?)
        })
    };
    let fits = |bytes: Option<usize>| bytes.is_some_and(|bytes| bytes < 1 << 32);
    let all = operands.iter().all(|operand| {
        let layout = &operand.layout;
        fits(span(
            layout.shape().sizes(),
            layout.strides(),
            layout.dtype().size(),
        ))
    });
    all && references.as_ref().is_none_or(|(references, _)| {
        let rows = [sizes.images, sizes.queries, sizes.levels];
        fits(span(
            &rows,
            &references.strides[..3],
            references.dtype.size(),
        ))
    })
}

/// Whether offsets in all of `value` fit 31 bits, in units of 16 bytes. Kernels that gather must be able to read it.
pub(super) fn has_short_places(value: &Operand) -> bool {
    let layout = &value.layout;
    let sizes = layout.shape();
    let last: i128 = (sizes.sizes().iter().zip(layout.strides()))
        .map(|(&size, &stride)| (size as i128 - 1) * stride as i128)
        .sum();
    last * layout.dtype().size() as i128 / 16 < 1 << 31
}

/// Whether neighbouring rows of any level lie less than 2^32 bytes apart, at `pixel_units` units of 16 bytes for each pixel: a
/// level with two rows has at most half of all pixels in each.
pub(super) fn has_near_rows(pixels: usize, pixel_units: usize) -> bool {
    (pixels / 2) as u128 * pixel_units as u128 * 16 < 1 << 32
}

/// Whether a lane can read or write `per_lane` samples' locations and weights, or offsets and logits, at a time.
pub(super) fn expect_samples(locations: &Operand, weights: &Operand, per_lane: usize) -> Fit<()> {
    for (tensor, operand, numbers) in [
        ("sampling_locations", locations, 2),
        ("attention_weights", weights, 1),
    ] {
        let rank = operand.layout.shape().rank();
        aligned_forward(
            tensor,
            operand.first,
            &operand.layout,
            &[0, 1, 2],
            &(3..rank).collect::<Vec<_>>(),
            // Wider ones are read in several parts.
            (numbers * per_lane * operand.layout.dtype().size()).min(16),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_very_wide_levels_are_too_far_apart() {
        // Pixels of 2 KiB: two rows of 2^21 are 2^32 bytes apart.
        assert!(has_near_rows(2 * ((1 << 21) - 1), 128));
        assert!(!has_near_rows(2 << 21, 128));
        // Pixels of 512 bytes, at most as many as any gather kernel serves.
        assert!(has_near_rows((1 << 23) - 1, 32));
        assert!(!has_near_rows(1 << 30, 1 << 16));
        assert!(has_near_rows(1, usize::MAX));
    }
}
