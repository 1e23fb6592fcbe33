//! Layout and alignment that kernels need. A refusal is a text that plans report as the reason.

use crate::layout::Layout;

/// A value, or the reason why a kernel cannot be used.
pub(super) type Fit<T> = std::result::Result<T, String>;

/// Checks that the axes `dense` are contiguous and row-major, that the strides of `rows` are multiples of `bytes`, and
/// that the first element is aligned to `bytes`. Returns the strides of `rows`, at most five, in bytes.
pub(super) fn aligned(
    tensor: &str,
    first: *const u8,
    layout: &Layout,
    rows: &[usize],
    dense: &[usize],
    bytes: usize,
) -> Fit<[isize; 5]> {
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
    let mut steps = [0; 5];
    for (found, &axis) in steps.iter_mut().zip(rows) {
        // The stride of an axis of size 1 does not matter.
        let is_taken = shape.sizes()[axis] > 1;
        let stride = if is_taken { strides[axis] } else { expected };
        *found = stride * layout.dtype().size() as isize;
        if is_taken && !found.unsigned_abs().is_multiple_of(bytes) {
            return Err(uneven(tensor, *found, axis, bytes));
        }
    }
    Ok(steps)
}

/// As [`aligned`], for a tensor whose strides must not be negative.
pub(super) fn aligned_forward(
    tensor: &str,
    first: *const u8,
    layout: &Layout,
    rows: &[usize],
    dense: &[usize],
    bytes: usize,
) -> Fit<[usize; 5]> {
    let steps = aligned(tensor, first, layout, rows, dense, bytes)?;
    let is_even = |step: isize| usize::try_from(step).is_ok_and(|step| step.is_multiple_of(bytes));
    match steps.iter().position(|step| !is_even(*step)) {
        None => Ok(steps.map(|step| step as usize)),
        Some(row) => Err(uneven(tensor, steps[row], rows[row], bytes)),
    }
}

fn uneven(tensor: &str, step: isize, axis: usize, bytes: usize) -> String {
    format!("{tensor} steps by {step} bytes on axis {axis}, not by a multiple of {bytes}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    const FIRST: *const u8 = std::ptr::without_provenance(0x1000);

    /// Pairs of f32, on five axes of size 2 with these strides in elements.
    fn pairs(strides: [isize; 5]) -> Fit<[usize; 5]> {
        let [a, b, c, d, e] = strides;
        let layout = Layout::strided(DType::F32, &[2; 6], &[a, b, c, d, e, 1]);
        aligned_forward("pairs", FIRST, &layout, &[0, 1, 2, 3, 4], &[5], 8)
    }

    #[test]
    fn every_axis_is_looked_at() {
        assert_eq!(pairs([32, 16, 8, 4, 2]), Ok([128, 64, 32, 16, 8]));
        let even = [96, 48, 24, 12, 4];
        assert!(pairs(even).is_ok());
        for axis in 0..5 {
            for wrong in [even[axis] + 1, -even[axis]] {
                let mut strides = even;
                strides[axis] = wrong;
                let refused = pairs(strides).unwrap_err();
                assert!(refused.contains(&format!("on axis {axis}")), "{refused}");
            }
        }
    }

    #[test]
    fn steps_nobody_takes_may_be_anything() {
        let layout = Layout::strided(DType::F16, &[1, 1, 3, 8], &[5, -7, 8, 1]);
        let rows = [0, 1, 2];
        assert!(aligned("query", FIRST, &layout, &rows, &[3], 16).is_ok());
        let layout = Layout::strided(DType::F16, &[1, 2, 3, 8], &[5, -24, 8, 1]);
        assert!(aligned("query", FIRST, &layout, &rows, &[3], 16).is_ok());
        assert!(aligned_forward("query", FIRST, &layout, &rows, &[3], 16).is_err());
        let beside = FIRST.wrapping_add(2);
        assert!(aligned("query", beside, &layout, &rows, &[3], 16).is_err());
        let apart = Layout::strided(DType::F16, &[1, 2, 3, 8], &[5, 48, 16, 2]);
        let refused = aligned("query", FIRST, &apart, &rows, &[3], 2).unwrap_err();
        assert_eq!(refused, "query has gaps on axis 3");
    }
}
