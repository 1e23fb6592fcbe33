//! Kernel arguments, laid out as kernels/dense/problem.cuh declares them.

use std::f64::consts::LOG2_E;

use super::conversion::Conversion;
use super::mask::MaskArguments;
use super::plan::Plan;
use crate::dense::{Forward, Inputs, Outputs};
use crate::layout::Layout;

/// What differs between calls that share a plan; 0 for a tensor that a call does not have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    query: u64,
    key: u64,
    value: u64,
    out: u64,
    lse: u64,
    /// Of the mask as it is given.
    mask: u64,
}

impl Addresses {
    /// The addresses of a call.
    pub fn new(inputs: &Inputs<'_>, outputs: &Outputs<'_>) -> Self {
        let lse = outputs.lse.as_ref();
        Addresses {
            query: inputs.query.as_ptr() as u64,
            key: inputs.key.as_ptr() as u64,
            value: inputs.value.as_ptr() as u64,
            out: outputs.out.as_mut_ptr() as u64,
            lse: lse.map_or(0, |lse| lse.as_mut_ptr() as u64),
            mask: (inputs.attn_mask.as_ref()).map_or(0, |mask| mask.as_ptr() as u64),
        }
    }
}

/// `Arguments` of kernels/dense/problem.cuh.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    pub(super) query: u64,
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) out: u64,
    pub(super) lse: u64,
    pub(super) partial: u64,
    pub(super) states: u64,
    pub(super) mask: u64,
    pub(super) mask_states: u64,
    pub(super) pieces: [u64; 3],
    pub(super) units: [u64; 3],
    pub(super) query_strides: [i64; 4],
    pub(super) key_strides: [i64; 4],
    pub(super) value_strides: [i64; 4],
    pub(super) out_strides: [i64; 4],
    pub(super) lse_strides: [i64; 3],
    pub(super) state_strides: [i64; 3],
    pub(super) mask_strides: [i64; 4],
    pub(super) planes: u32,
    pub(super) query_heads: u32,
    pub(super) group: u32,
    pub(super) channels: u32,
    pub(super) value_channels: u32,
    pub(super) queries: i32,
    pub(super) keys: i32,
    pub(super) first: i32,
    pub(super) past: i32,
    pub(super) scale: f32,
    pub(super) sign: u32,
    pub(super) kept: u32,
    pub(super) splits: u32,
    pub(super) same: u32,
    pub(super) even: u32,
    pub(super) given_scale: f64,
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
        Arguments {
            query_strides: of_rows(problem.query()),
            key_strides: strides(problem.key()),
            value_strides: strides(problem.value()),
            out_strides: of_rows(call.outputs.out.layout()),
            lse_strides,
            state_strides: plan.mask.map_or([0; 3], |mask| mask.state_strides),
            mask_strides: plan.mask_strides,
            planes: folded.planes() as u32,
            query_heads: folded.heads as u32,
            group: folded.group as u32,
            channels: problem.sizes().channels as u32,
            value_channels: problem.sizes().value_channels as u32,
            queries: folded.rows as i32,
            keys: folded.keys as i32,
            first,
            past,
            splits: plan.splits,
            even: plan.is_even.into(),
            ..Arguments::default()
        }
        .with_scale(problem.scale())
        .with_steps_not_taken()
    }

    /// The same with this scale.
    pub fn with_scale(self, scale: f64) -> Self {
        Arguments {
            // At least the smallest normal number, so that minus infinity stays minus infinity; anything for 0, with which
            // queries become 0.
            scale: match scale {
                0.0 => LOG2_E as f32,
                _ => ((scale.abs() * LOG2_E) as f32).clamp(f32::MIN_POSITIVE, f32::MAX),
            },
            sign: if scale < 0.0 { 0x8000_8000 } else { 0 },
            kept: if scale == 0.0 { 0 } else { u32::MAX },
            given_scale: scale,
            ..self
        }
    }

    /// Sequences and heads whose stride is 0 have, for TMA, one element.
    fn with_steps_not_taken(self) -> Self {
        let bits = self.tensors().into_iter().enumerate();
        let same = bits.fold(0, |same, (tensor, (_, strides))| {
            let bit = |axis: usize| u32::from(strides[axis] == 0) << (2 * tensor + axis);
            same | bit(0) | bit(1)
        });
        Arguments { same, ..self }
    }

    /// Address and strides of query, key and value.
    pub fn tensors(&self) -> [(u64, [i64; 4]); 3] {
        [
            (self.query, self.query_strides),
            (self.key, self.key_strides),
            (self.value, self.value_strides),
        ]
    }

    /// The same for a call that shares the plan, with scratch memory at `scratch`.
    pub fn at(&self, addresses: Addresses, plan: &Plan, scratch: u64) -> Self {
        let from_first_key = |address: u64, strides: &[i64; 4]| {
            let bytes = strides[2] * plan.dtype.size() as i64;
            address.wrapping_add_signed(plan.folded.first_key as i64 * bytes)
        };
        let place = |offset: usize| scratch + offset as u64;
        let workspace = &plan.workspace;
        Arguments {
            query: addresses.query,
            key: from_first_key(addresses.key, &self.key_strides),
            value: from_first_key(addresses.value, &self.value_strides),
            out: addresses.out,
            lse: addresses.lse,
            partial: place(workspace.partial),
            states: place(workspace.states),
            mask: match plan.mask {
                Some(_) => place(workspace.mask),
                None => addresses.mask.wrapping_add_signed(plan.mask_first_byte),
            },
            mask_states: place(workspace.mask_states),
            pieces: workspace.pieces.map(place),
            units: workspace.units.map(place),
            ..self.clone()
        }
    }

    /// What the kernel that prepares the mask is given.
    pub fn of_mask(&self, addresses: Addresses, plan: &Plan) -> MaskArguments {
        let mut arguments = plan.mask.map(|mask| mask.arguments).unwrap_or_default();
        arguments.from = addresses.mask.wrapping_add_signed(plan.mask_first_byte);
        arguments.to = self.mask;
        arguments.states = self.mask_states;
        arguments
    }

    /// What the kernel that converts f32 is given.
    pub fn of_conversion(&self, plan: &Plan) -> [Conversion; 3] {
        let Some(conversion) = &plan.conversion else {
            return Default::default();
        };
        let from = [self.query, self.key, self.value];
        let strides = [self.query_strides, self.key_strides, self.value_strides];
        let channels = [self.channels, self.channels, self.value_channels];
        std::array::from_fn(|index| {
            let bits = match index {
                0 => [self.sign & 0x8000_0000, self.kept],
                _ => [0, u32::MAX],
            };
            let at = [from[index], self.pieces[index], self.units[index]];
            conversion.tensors[index].arguments(at, strides[index], channels[index], bits)
        })
    }
}

/// Of a tensor with four axes.
pub(super) fn strides(layout: &Layout) -> [i64; 4] {
    std::array::from_fn(|axis| layout.strides()[axis] as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lies_as_the_kernels_declare_it() {
        assert_eq!(std::mem::offset_of!(Arguments, query_strides), 120);
        assert_eq!(std::mem::offset_of!(Arguments, lse_strides), 248);
        assert_eq!(std::mem::offset_of!(Arguments, planes), 328);
        assert_eq!(std::mem::offset_of!(Arguments, given_scale), 392);
        assert_eq!(size_of::<Arguments>(), 400);
    }
}
