//! Kernel arguments, laid out as kernels/dense/problem.cuh declares them.

use std::f64::consts::LOG2_E;

use super::plan::Plan;
use crate::dense::{Forward, Inputs, Outputs};
use crate::layout::Layout;

/// What differs between calls that share a plan: the first members of the kernels' `Arguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    query: u64,
    key: u64,
    value: u64,
    out: u64,
    lse: u64,
}

impl Addresses {
    /// The addresses of a call; 0 for a tensor it does not have.
    pub fn new(inputs: &Inputs<'_>, outputs: &Outputs<'_>) -> Self {
        let lse = outputs.lse.as_ref();
        Addresses {
            query: inputs.query.as_ptr() as u64,
            key: inputs.key.as_ptr() as u64,
            value: inputs.value.as_ptr() as u64,
            out: outputs.out.as_mut_ptr() as u64,
            lse: lse.map_or(0, |lse| lse.as_mut_ptr() as u64),
        }
    }
}

/// `Arguments` of kernels/dense/problem.cuh.
#[repr(C)]
#[derive(Clone, Debug)]
pub(super) struct Arguments {
    addresses: Addresses,
    partial: u64,
    states: u64,
    query_strides: [i64; 4],
    key_strides: [i64; 4],
    value_strides: [i64; 4],
    out_strides: [i64; 4],
    lse_strides: [i64; 3],
    planes: u32,
    query_heads: u32,
    group: u32,
    channels: u32,
    value_channels: u32,
    queries: i32,
    keys: i32,
    first: i32,
    past: i32,
    scale: f32,
    sign: u32,
    kept: u32,
    splits: u32,
}

impl Arguments {
    /// The arguments of a planned call, whose sizes all fit; without scratch memory.
    pub fn new(call: &Forward<'_>, plan: &Plan) -> Self {
        let (problem, folded) = (&call.problem, &plan.folded);
        let group = problem.sizes().group() as i64;
        // Where rows are heads, each head of keys has as many of them as share it.
        let of_rows = |layout: &Layout| {
            let mut strides = strides(layout);
            if folded.rows_are_heads {
                (strides[1], strides[2]) = (strides[1] * group, strides[1]);
            }
            strides
        };
        let lse = call.outputs.lse.as_ref();
        let lse_strides = lse.map_or([0; 3], |lse| {
            let [b, h, s] = std::array::from_fn(|axis| lse.layout().strides()[axis] as i64);
            match folded.rows_are_heads {
                true => [b, h * group, h],
                false => [b, h, s],
            }
        });
        let (first, past) = folded.bounds.unwrap_or((0, 0));
        let scale = problem.scale();
        Arguments {
            addresses: Addresses::new(&call.inputs, &call.outputs),
            partial: 0,
            states: 0,
            query_strides: of_rows(problem.query()),
            key_strides: strides(problem.key()),
            value_strides: strides(problem.value()),
            out_strides: of_rows(call.outputs.out.layout()),
            lse_strides,
            planes: folded.planes() as u32,
            query_heads: folded.heads as u32,
            group: folded.group as u32,
            channels: problem.sizes().channels as u32,
            value_channels: problem.sizes().value_channels as u32,
            queries: folded.rows as i32,
            keys: folded.keys as i32,
            first,
            past,
            // At least the smallest normal number, so that minus infinity stays minus infinity.
            scale: ((scale.abs() * LOG2_E) as f32).clamp(f32::MIN_POSITIVE, f32::MAX),
            sign: if scale < 0.0 { 0x8000_8000 } else { 0 },
            kept: if scale == 0.0 { 0 } else { u32::MAX },
            splits: plan.splits,
        }
    }
    /// The same for another call that shares the plan, with partial results at `scratch`.
    pub fn at(&self, addresses: Addresses, plan: &Plan, scratch: u64) -> Self {
        let from_first_key = |address: u64, strides: &[i64; 4]| {
            let bytes = strides[2] * plan.dtype.size() as i64;
            address.wrapping_add_signed(plan.folded.first_key as i64 * bytes)
        };
        Arguments {
            addresses: Addresses {
                key: from_first_key(addresses.key, &self.key_strides),
                value: from_first_key(addresses.value, &self.value_strides),
                ..addresses
            },
            partial: scratch + plan.states_bytes() as u64,
            states: scratch,
            ..self.clone()
        }
    }
}

fn strides(layout: &Layout) -> [i64; 4] {
    std::array::from_fn(|axis| layout.strides()[axis] as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lies_as_the_kernels_declare_it() {
        assert_eq!(std::mem::offset_of!(Arguments, query_strides), 56);
        assert_eq!(std::mem::offset_of!(Arguments, lse_strides), 184);
        assert_eq!(std::mem::offset_of!(Arguments, planes), 208);
        assert_eq!(size_of::<Arguments>(), 264);
    }
}
