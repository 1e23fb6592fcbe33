//! Kernel arguments of projected problems, laid out as kernels/msda/projection.cuh, projected_references.cu and projected_mask.cu
//! declare them.

use crate::cuda::msda::arguments::Divisor;
use crate::cuda::msda::specialised::PROJECTED_LEVELS;
use crate::msda::projections::{ProjectedProblem, References};
use crate::tensor::ViewMut;

/// `Projection` of kernels/msda/projection.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ProjectionArguments {
    pub references: u64,
    pub statistics: u64,
    pub places: u64,
    strides: [i64; 5],
    factors: [f64; PROJECTED_LEVELS],
    first: [u32; PROJECTED_LEVELS + 1],
    turns: u32,
    by_points: [Divisor; PROJECTED_LEVELS],
}

impl ProjectionArguments {
    /// Of a problem whose levels and samples fit, but for the addresses.
    pub fn new(problem: &ProjectedProblem) -> Self {
        let References { turns, strides, .. } = *problem.references();
        let mut arguments = ProjectionArguments {
            references: 0,
            statistics: 0,
            places: 0,
            strides: strides.map(|stride| stride as i64),
            factors: [0.0; PROJECTED_LEVELS],
            first: [0; PROJECTED_LEVELS + 1],
            turns: turns as u32,
            by_points: [Divisor::new(1); PROJECTED_LEVELS],
        };
        for (to, &factor) in arguments.factors.iter_mut().zip(problem.factors()) {
            *to = factor;
        }
        for (to, &first) in arguments.first.iter_mut().zip(problem.first_samples()) {
            *to = first as u32;
        }
        let levels = problem.sizes().levels;
        for (level, to) in arguments.by_points.iter_mut().enumerate().take(levels) {
            *to = Divisor::new(problem.points(level).clamp(1, 1 << 31) as u32);
        }
        arguments
    }
}

/// `ReferenceGradients` of kernels/msda/projected_references.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ReferenceArguments {
    pub gradient: u64,
    strides: [i64; 5],
    sizes: [i64; 4],
}

impl ReferenceArguments {
    /// Of the gradient of reference points with or without an axis of points, but for the address.
    pub fn new(gradient: &ViewMut<'_>) -> Self {
        let (shape, strides) = (gradient.shape(), gradient.layout().strides());
        let rank = shape.rank();
        let mut arguments = ReferenceArguments {
            gradient: 0,
            strides: [0; 5],
            sizes: [1; 4],
        };
        for axis in 0..rank - 1 {
            arguments.strides[axis] = strides[axis] as i64;
            arguments.sizes[axis] = shape.sizes()[axis] as i64;
        }
        arguments.strides[4] = strides[rank - 1] as i64;
        arguments
    }

    /// How many reference points there are.
    pub fn count(&self) -> usize {
        self.sizes.iter().product::<i64>() as usize
    }
}

/// `MaskArguments` of kernels/msda/projected_mask.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MaskArguments {
    pub from: u64,
    pub to: u64,
    pub mask: u64,
    pub from_strides: [i64; 4],
    pub to_strides: [i64; 4],
    pub mask_strides: [i64; 2],
    pub images: i64,
    pub pixels: i64,
    pub heads: u32,
    pub units: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lies_as_the_kernels_declare_it() {
        assert_eq!(size_of::<ProjectionArguments>(), 24 + 40 + 128 + 72 + 128);
        assert_eq!(std::mem::offset_of!(ProjectionArguments, first), 192);
        assert_eq!(size_of::<ReferenceArguments>(), 80);
        assert_eq!(size_of::<MaskArguments>(), 128);
    }
}
