//! Kernel arguments, laid out as kernels/dense/backward declares them.

use super::hopper::{HopperPlan, QUERIES};
use super::plan::{BackwardPlan, OF_KEYS, OF_QUERIES};
use crate::cuda::dense::arguments::{Arguments, strides};
use crate::cuda::dense::maps::{LoadedTensor, element};
use crate::cuda::dense::mask::MaskArguments;
use crate::cuda::driver::{Context, DriverResult, TensorMap};
use crate::dense::{Backward, ForwardResults, Gradients, Inputs};
use crate::dtype::DType;
use crate::layout::Layout;
use crate::tensor::{View, ViewMut};

/// What differs between calls that share a plan; 0 for a tensor that a call does not have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    query: u64,
    key: u64,
    value: u64,
    mask: u64,
    out: u64,
    lse: u64,
    grad_out: u64,
    grad_query: u64,
    grad_key: u64,
    grad_value: u64,
    grad_bias: u64,
}

impl Addresses {
    /// The addresses of a call.
    pub fn new(
        inputs: &Inputs<'_>,
        results: &ForwardResults<'_>,
        grad_out: &View<'_>,
        gradients: &Gradients<'_>,
    ) -> Self {
        let written =
            |view: &Option<ViewMut<'_>>| view.as_ref().map_or(0, |view| view.as_mut_ptr() as u64);
        Addresses {
            query: inputs.query.as_ptr() as u64,
            key: inputs.key.as_ptr() as u64,
            value: inputs.value.as_ptr() as u64,
            mask: (inputs.attn_mask.as_ref()).map_or(0, |mask| mask.as_ptr() as u64),
            out: results.out.as_ptr() as u64,
            lse: results.lse.as_ptr() as u64,
            grad_out: grad_out.as_ptr() as u64,
            grad_query: written(&gradients.query),
            grad_key: written(&gradients.key),
            grad_value: written(&gradients.value),
            grad_bias: written(&gradients.bias),
        }
    }
}

/// `StatisticsArguments` of kernels/dense/backward/statistics.cu.
#[repr(C)]
#[derive(Clone, Debug)]
pub(super) struct StatisticsArguments {
    out: u64,
    grad_out: u64,
    lse: u64,
    statistics: u64,
    out_strides: [i64; 4],
    grad_out_strides: [i64; 4],
    lse_strides: [i64; 3],
    rows: u64,
    heads: u32,
    queries: u32,
    padded_queries: u32,
    value_channels: u32,
    zeros: u64,
    zero_count: u64,
}

/// `GradientArguments` of kernels/dense/backward/problem.cuh.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub(super) struct GradientArguments {
    of: Arguments,
    row_value: u64,
    sum: u64,
    value_sum: u64,
    statistics: u64,
    row_value_strides: [i64; 4],
    sum_strides: [i64; 4],
    value_sum_strides: [i64; 4],
    row_heads: u32,
    padded_queries: u32,
    factor: f32,
    _unused: u32,
}

/// `HopperArguments` of kernels/dense/backward/hopper.cuh.
#[repr(C)]
#[derive(Clone, Debug)]
pub(super) struct HopperArguments {
    of: GradientArguments,
    grad_query: u64,
    counters: u64,
    tiles: u32,
    key_tiles: u32,
    together: u32,
    _unused: u32,
}

/// `Maps` of the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct HopperMaps([TensorMap; 4]);

/// `FinishArguments` of kernels/dense/backward/finish.cu.
#[repr(C)]
#[derive(Clone, Debug)]
pub(super) struct FinishArguments {
    of: GradientArguments,
    grad_query: u64,
    counters: u64,
    tiles: u32,
    _unused: u32,
}

/// `BiasArguments` of kernels/dense/backward/bias.cuh.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub(super) struct BiasArguments {
    of: GradientArguments,
    grad_bias: u64,
    partial: u64,
    strides: [i64; 4],
    elements: u64,
    sizes: [u32; 4],
    parts: u32,
    splits: u32,
    row_tiles: u32,
    column_tiles: u32,
}

/// Everything but the addresses.
#[derive(Clone, Debug)]
pub(super) struct BackwardArguments {
    query_strides: [i64; 4],
    key_strides: [i64; 4],
    value_strides: [i64; 4],
    grad_query_strides: [i64; 4],
    grad_key_strides: [i64; 4],
    grad_value_strides: [i64; 4],
    statistics: StatisticsArguments,
    /// What all steps have in common.
    common: Arguments,
    key_heads: u32,
    factor: f32,
}

impl BackwardArguments {
    /// Those of a planned call, whose sizes all fit.
    pub fn new(call: &Backward<'_>, plan: &BackwardPlan) -> Self {
        let (problem, sizes) = (&call.problem, call.problem.sizes());
        let gradients = &call.gradients;
        let of_gradient = |view: &Option<ViewMut<'_>>| {
            view.as_ref().map_or([0; 4], |view| strides(view.layout()))
        };
        let lse: &Layout = call.results.lse.layout();
        BackwardArguments {
            query_strides: strides(problem.query()),
            key_strides: strides(problem.key()),
            value_strides: strides(problem.value()),
            grad_query_strides: of_gradient(&gradients.query),
            grad_key_strides: of_gradient(&gradients.key),
            grad_value_strides: of_gradient(&gradients.value),
            statistics: StatisticsArguments {
                out: 0,
                grad_out: 0,
                lse: 0,
                statistics: 0,
                out_strides: strides(call.results.out.layout()),
                grad_out_strides: strides(call.grad_out.layout()),
                lse_strides: std::array::from_fn(|axis| lse.strides()[axis] as i64),
                rows: (plan.folded.planes() * plan.padded_queries) as u64,
                heads: sizes.query_heads as u32,
                queries: sizes.queries as u32,
                padded_queries: plan.padded_queries as u32,
                value_channels: sizes.value_channels as u32,
                zeros: 0,
                zero_count: match &plan.hopper {
                    Some(hopper) => {
                        let end = plan.workspace.counters + hopper.counter_bytes;
                        (end - plan.first_zero(hopper)).div_ceil(16) as u64
                    }
                    None => 0,
                },
            },
            common: Arguments {
                planes: plan.folded.planes() as u32,
                query_heads: sizes.query_heads as u32,
                group: sizes.group() as u32,
                channels: sizes.channels as u32,
                value_channels: sizes.value_channels as u32,
                ..Arguments::default()
            }
            .with_scale(problem.scale()),
            key_heads: sizes.key_heads as u32,
            factor: problem.scale() as f32,
        }
    }

    /// For a call that shares the plan, with scratch memory at `scratch`.
    pub fn at<'p>(
        &'p self,
        addresses: Addresses,
        plan: &'p BackwardPlan,
        scratch: u64,
    ) -> PlacedArguments<'p> {
        PlacedArguments {
            arguments: self,
            addresses,
            plan,
            scratch,
        }
    }
}

/// The arguments of a call.
pub(super) struct PlacedArguments<'p> {
    arguments: &'p BackwardArguments,
    addresses: Addresses,
    plan: &'p BackwardPlan,
    scratch: u64,
}

impl PlacedArguments<'_> {
    fn place(&self, offset: usize) -> u64 {
        self.scratch + offset as u64
    }

    /// What the first kernel is given.
    pub fn of_statistics(&self) -> StatisticsArguments {
        StatisticsArguments {
            out: self.addresses.out,
            grad_out: self.addresses.grad_out,
            lse: self.addresses.lse,
            statistics: self.place(self.plan.workspace.statistics),
            zeros: (self.plan.hopper.as_ref())
                .map_or(0, |hopper| self.place(self.plan.first_zero(hopper))),
            ..self.arguments.statistics.clone()
        }
    }

    /// What the kernel that prepares a mask is given.
    pub fn of_mask(&self, rows: usize) -> MaskArguments {
        let mask = self.plan.masks[rows];
        let mut arguments = mask.map(|mask| mask.arguments).unwrap_or_default();
        arguments.from = self.addresses.mask;
        arguments.to = self.place(self.plan.workspace.masks[rows]);
        arguments.states = self.place(self.plan.workspace.mask_states[rows]);
        arguments
    }

    /// What a kernel with these rows is given; it computes those sums.
    pub fn of_gradient(&self, own_keys: bool, [sum, value_sum]: [bool; 2]) -> GradientArguments {
        let (all, at, plan) = (self.arguments, &self.addresses, self.plan);
        let rows = if own_keys { OF_KEYS } else { OF_QUERIES };
        let folded = if own_keys {
            plan.folded.turned()
        } else {
            plan.folded
        };
        let (first, past) = folded.bounds.unwrap_or((0, 0));
        let mask = plan.masks[rows];
        let query = (at.query, all.query_strides);
        let key = (at.key, all.key_strides);
        let value = (at.value, all.value_strides);
        let grad_out = (at.grad_out, all.statistics.grad_out_strides);
        let ([row, column], [row_value, column_value]) = match own_keys {
            true => ([key, query], [value, grad_out]),
            false => ([query, key], [grad_out, value]),
        };
        let (of_row, of_value) = match own_keys {
            true => (
                (at.grad_key, all.grad_key_strides),
                (at.grad_value, all.grad_value_strides),
            ),
            false => ((at.grad_query, all.grad_query_strides), (0, [0; 4])),
        };
        GradientArguments {
            of: Arguments {
                query: row.0,
                query_strides: row.1,
                key: column.0,
                key_strides: column.1,
                value: column_value.0,
                value_strides: column_value.1,
                queries: folded.rows as i32,
                keys: folded.keys as i32,
                first,
                past,
                mask: self.place(plan.workspace.masks[rows]),
                mask_states: self.place(plan.workspace.mask_states[rows]),
                mask_strides: mask.map_or([0; 4], |mask| mask.strides),
                state_strides: mask.map_or([0; 3], |mask| mask.state_strides),
                ..all.common.clone()
            },
            row_value: row_value.0,
            row_value_strides: row_value.1,
            sum: if sum { of_row.0 } else { 0 },
            sum_strides: of_row.1,
            value_sum: if value_sum { of_value.0 } else { 0 },
            value_sum_strides: of_value.1,
            statistics: self.place(plan.workspace.statistics),
            row_heads: match own_keys {
                true => all.key_heads,
                false => all.common.query_heads,
            },
            padded_queries: plan.padded_queries as u32,
            factor: all.factor,
            _unused: 0,
        }
    }

    /// What the kernel for Hopper is given.
    pub fn of_hopper(&self, hopper: &HopperPlan) -> HopperArguments {
        let mut of = self.of_gradient(true, hopper.sums);
        let tensors = [
            of.of.query_strides,
            of.of.key_strides,
            of.of.value_strides,
            of.row_value_strides,
        ];
        // Sequences and heads whose stride is 0 have, for TMA, one element.
        of.of.same = (tensors.iter().enumerate()).fold(0, |same, (tensor, strides)| {
            let bit = |axis: usize| u32::from(strides[axis] == 0) << (2 * tensor + axis);
            same | bit(0) | bit(1)
        });
        HopperArguments {
            of,
            grad_query: self.place(self.plan.workspace.grad_query),
            counters: self.place(self.plan.workspace.counters),
            tiles: hopper.tiles as u32,
            key_tiles: hopper.key_tiles as u32,
            together: hopper.together as u32,
            _unused: 0,
        }
    }

    /// What TMA loads for it: key, value, query and grad_out.
    pub fn maps(
        &self,
        context: &Context,
        hopper: &HopperPlan,
        dtype: DType,
    ) -> DriverResult<HopperMaps> {
        let (all, at, folded) = (self.arguments, &self.addresses, &self.plan.folded);
        let common = &all.common;
        let encode = |address: u64,
                      strides: [i64; 4],
                      channels: u32,
                      [rows, heads]: [usize; 2],
                      box_rows: u32| {
            let tensor = LoadedTensor {
                element: element(dtype),
                sizes: [channels as usize, rows, heads, folded.batch].map(|count| count as u64),
                box_sides: [64, box_rows],
            };
            tensor.encode(context, address, strides)
        };
        let (keys, queries) = (
            [folded.keys, all.key_heads as usize],
            [folded.rows, folded.heads],
        );
        let (channels, value_channels) = (common.channels, common.value_channels);
        let of_grad = all.statistics.grad_out_strides;
        Ok(HopperMaps([
            encode(at.key, all.key_strides, channels, keys, hopper.keys)?,
            encode(
                at.value,
                all.value_strides,
                value_channels,
                keys,
                hopper.keys,
            )?,
            encode(at.query, all.query_strides, channels, queries, QUERIES)?,
            encode(at.grad_out, of_grad, value_channels, queries, QUERIES)?,
        ]))
    }

    /// What the kernel after it is given: the mask is that of keys.
    pub fn of_finish(&self, hopper: &HopperPlan) -> FinishArguments {
        let mut of = self.of_gradient(false, [true, false]);
        let turned = self.of_gradient(true, [false, false]).of;
        of.of.mask = turned.mask;
        of.of.mask_strides = turned.mask_strides;
        FinishArguments {
            of,
            grad_query: self.place(self.plan.workspace.grad_query),
            counters: self.place(self.plan.workspace.counters),
            tiles: hopper.tiles as u32,
            _unused: 0,
        }
    }

    /// What the kernels of the bias are given.
    pub fn of_bias(&self) -> BiasArguments {
        let Some(bias) = &self.plan.bias else {
            return BiasArguments::default();
        };
        BiasArguments {
            of: self.of_gradient(false, [false, false]),
            grad_bias: self.addresses.grad_bias,
            partial: self.place(self.plan.workspace.bias),
            strides: bias.desc.strides.map(|stride| stride as i64),
            elements: bias.elements as u64,
            sizes: bias.desc.sizes.map(|size| size as u32),
            parts: bias.parts as u32,
            splits: bias.splits as u32,
            row_tiles: bias.row_tiles as u32,
            column_tiles: bias.column_tiles as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_lie_as_the_kernels_declare_them() {
        assert_eq!(std::mem::offset_of!(StatisticsArguments, rows), 120);
        assert_eq!(size_of::<StatisticsArguments>(), 160);
        assert_eq!(
            std::mem::offset_of!(GradientArguments, row_value_strides),
            432
        );
        assert_eq!(std::mem::offset_of!(GradientArguments, factor), 536);
        assert_eq!(size_of::<GradientArguments>(), 544);
        assert_eq!(std::mem::offset_of!(HopperArguments, together), 568);
        assert_eq!(std::mem::offset_of!(BiasArguments, elements), 592);
        assert_eq!(size_of::<BiasArguments>(), 632);
    }
}
