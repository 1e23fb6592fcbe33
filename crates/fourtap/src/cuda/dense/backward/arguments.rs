//! Kernel arguments, laid out as kernels/dense/backward declares them.

use super::plan::{BackwardPlan, OF_KEYS, OF_QUERIES};
use crate::cuda::dense::arguments::{Arguments, strides};
use crate::cuda::dense::mask::MaskArguments;
use crate::dense::{Backward, ForwardResults, Gradients, Inputs};
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
        assert_eq!(size_of::<StatisticsArguments>(), 144);
        assert_eq!(
            std::mem::offset_of!(GradientArguments, row_value_strides),
            432
        );
        assert_eq!(std::mem::offset_of!(GradientArguments, factor), 536);
        assert_eq!(size_of::<GradientArguments>(), 544);
        assert_eq!(std::mem::offset_of!(BiasArguments, elements), 592);
        assert_eq!(size_of::<BiasArguments>(), 632);
    }
}
