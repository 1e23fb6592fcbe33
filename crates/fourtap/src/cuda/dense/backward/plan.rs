//! Which kernels compute the gradients of a call.

use std::fmt;

use super::bias::BiasPlan;
use super::hopper::HopperPlan;
use super::kernels::{Common, GradientMma, GradientStatistics, GradientTile, Rows, WARPS};
use crate::cuda::dense::described::{ProblemDesc, block_count, expect_served, unsupported};
use crate::cuda::dense::folded::FoldedProblem;
use crate::cuda::dense::maps;
use crate::cuda::dense::mask::MaskPlan;
use crate::cuda::dense::options::GradientKernels;
use crate::cuda::dense::specialised::{AttnKind, KernelVariant};
use crate::cuda::device_size::DeviceSize;
use crate::cuda::fit;
use crate::cuda::handle::Cuda;
use crate::cuda::step::Step;
use crate::dense::{AttnMaskDesc, Backward, BiasGradientDesc, Sizes};
use crate::dtype::DType;
use crate::error::Result;

/// What the number of queries is rounded up to where something is known of each.
const WHOLE_QUERIES: usize = 64;

/// Threads per block of the kernel for that, and channels per thread.
const STATISTICS_THREADS: usize = 256;
const STATISTICS_CHANNELS: usize = 8;

/// As memory is allocated.
const ALIGNMENT: usize = 256;

/// The plan of a backward call, for display and for the launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackwardPlan {
    /// What is known of each query; `None` if there is none.
    pub(super) statistics: Option<Step<KernelVariant>>,
    pub(super) padded_queries: usize,
    /// The mask for kernels whose rows are queries, and for those whose rows are keys.
    pub(super) masks: [Option<MaskPlan>; 2],
    /// Kernels for Hopper, or those that every device has.
    pub(super) hopper: Option<HopperPlan>,
    pub(super) gradients: Vec<GradientStep>,
    pub(super) bias: Option<BiasPlan>,
    pub(super) folded: FoldedProblem,
    pub(super) workspace: BackwardWorkspace,
}

/// A kernel that computes gradients, and what its rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GradientStep {
    pub step: Step<KernelVariant>,
    pub own_keys: bool,
    pub sum: bool,
    pub value_sum: bool,
}

/// What a kernel of a plan is given. A kernel and this are always in one list, so that none is left out, or given what is
/// another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    Statistics,
    /// Rows are [`OF_QUERIES`] or [`OF_KEYS`].
    Mask {
        rows: usize,
    },
    Hopper(HopperPlan),
    Finish(HopperPlan),
    Gradient {
        own_keys: bool,
        sums: [bool; 2],
    },
    Bias,
}

/// What lies where in the scratch memory of a call: offsets in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BackwardWorkspace {
    pub statistics: usize,
    pub masks: [usize; 2],
    pub mask_states: [usize; 2],
    pub bias: usize,
    /// On Hopper: sums of queries, and counters, one after the other. They must be zero.
    pub grad_query: usize,
    pub counters: usize,
    pub bytes: usize,
}

/// Rows are queries, or keys: an index.
pub(super) const OF_QUERIES: usize = 0;
pub(super) const OF_KEYS: usize = 1;

/// What the choice of kernels depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackwardDesc {
    pub sizes: Sizes,
    pub folded: FoldedProblem,
    pub attn_mask: Option<AttnMaskDesc>,
    pub rows: Rows,
    pub scale: f64,
    /// Whether TMA can load boxes of all inputs.
    pub is_loadable: bool,
    /// Which gradients are wanted: of query, key and value.
    pub wanted: [bool; 3],
    pub bias: Option<BiasGradientDesc>,
}

impl BackwardPlan {
    /// The plan for `call` on this device.
    pub(super) fn on(cuda: &Cuda, call: &Backward<'_>) -> Result<Self> {
        let problem = &call.problem;
        let sizes = *problem.sizes();
        let gradients = &call.gradients;
        let described = BackwardDesc {
            sizes,
            folded: FoldedProblem::unfolded(&sizes, &problem.options().mask),
            attn_mask: problem.attn_mask().copied(),
            rows: Rows::new(problem.dtype(), &sizes, alignment(call)),
            scale: problem.scale(),
            is_loadable: [
                problem.query(),
                problem.key(),
                problem.value(),
                call.grad_out.layout(),
            ]
            .into_iter()
            .all(maps::has_boxes),
            wanted: [&gradients.query, &gradients.key, &gradients.value].map(Option::is_some),
            bias: call.grad_bias(),
        };
        described.plan(cuda.size(), cuda.settings().dense.backward)
    }

    /// Where scratch memory that must be zero begins, which ends with the counters.
    pub(super) fn first_zero(&self, hopper: &HopperPlan) -> usize {
        match hopper.stores_first {
            true => self.workspace.counters,
            false => self.workspace.grad_query,
        }
    }

    /// The kernels, in launch order.
    pub fn steps(&self) -> impl Iterator<Item = &Step<KernelVariant>> {
        self.launches().map(|(step, _)| step)
    }

    /// The same, each with what it is given.
    pub(super) fn launches(&self) -> impl Iterator<Item = (&Step<KernelVariant>, Given)> {
        let statistics = self.statistics.iter().map(|step| (step, Given::Statistics));
        let masks = self.masks.iter().enumerate();
        let masks =
            masks.filter_map(|(rows, mask)| Some((&mask.as_ref()?.step, Given::Mask { rows })));
        let hopper = self.hopper.iter().flat_map(|hopper| {
            let finish = hopper.finish.as_ref();
            let finish = finish.map(|step| (step, Given::Finish(*hopper)));
            [Some((&hopper.step, Given::Hopper(*hopper))), finish]
        });
        let gradients = self.gradients.iter().map(|gradient| {
            let given = Given::Gradient {
                own_keys: gradient.own_keys,
                sums: [gradient.sum, gradient.value_sum],
            };
            (&gradient.step, given)
        });
        let bias = self.bias.iter().flat_map(|bias| [&bias.step, &bias.sum]);
        let bias = bias.flatten().map(|step| (step, Given::Bias));
        (statistics.chain(masks))
            .chain(hopper.flatten())
            .chain(gradients)
            .chain(bias)
    }

    /// Bytes of scratch memory: eight for each query, masks in the form that kernels read, sums of a bias's gradient that several
    /// blocks compute, and, on Hopper, those of queries in f32.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace.bytes
    }
}

impl fmt::Display for BackwardPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps().enumerate() {
            let then = if index > 0 { ", then " } else { "" };
            let Step {
                kernel,
                blocks: [blocks, _],
                threads,
                ..
            } = step;
            write!(f, "{then}{kernel}, {blocks} blocks of {threads} threads")?;
        }
        Ok(())
    }
}

impl ProblemDesc {
    /// The plan of all gradients on such a device: by the kernels that should be faster, or by those `chosen`.
    pub fn plan_backward(
        &self,
        device: DeviceSize,
        chosen: Option<GradientKernels>,
    ) -> Result<BackwardPlan> {
        let Sizes {
            batch,
            query_heads,
            queries,
            keys,
            ..
        } = self.sizes;
        let bias = self.attn_mask.and_then(|mask| Some((mask.bias?, mask)));
        let described = BackwardDesc {
            sizes: self.sizes,
            folded: FoldedProblem::unfolded(&self.sizes, &self.mask),
            attn_mask: self.attn_mask,
            rows: Rows::new(self.dtype, &self.sizes, self.align),
            scale: 1.0,
            is_loadable: self.boxes,
            wanted: [true; 3],
            bias: bias.map(|(dtype, mask)| {
                let whole = [batch, query_heads, queries, keys];
                let size = |axis: usize| {
                    if mask.strides[axis] == 0 {
                        1
                    } else {
                        whole[axis]
                    }
                };
                BiasGradientDesc {
                    dtype,
                    sizes: std::array::from_fn(size),
                    strides: mask.strides,
                }
            }),
        };
        described.plan(device, chosen)
    }
}

impl BackwardDesc {
    fn plan(&self, device: DeviceSize, chosen: Option<GradientKernels>) -> Result<BackwardPlan> {
        expect_served(&self.sizes)?;
        if !matches!(self.rows.dtype, DType::F16 | DType::BF16) {
            return Err(unsupported(
                "f16 or bf16 for gradients of dense attention; the CPU has them of every type",
                self.rows.dtype.to_string(),
            ));
        }
        let folded = self.folded;
        let padded_queries = folded.rows.next_multiple_of(WHOLE_QUERIES);
        let [query, key, value] = self.wanted;
        let asked_for = chosen.map(|kernels| kernels == GradientKernels::Wgmma);
        let hopper = self.on_hopper(device, asked_for)?;
        let mut gradients = Vec::new();
        if (key || value) && hopper.is_none() {
            let at_once = self.rows.head.max(self.rows.head_v) <= 128;
            match (key, value, at_once) {
                (true, true, false) => {
                    gradients.extend(self.gradient(device, true, [true, false])?);
                    gradients.extend(self.gradient(device, true, [false, true])?);
                }
                _ => gradients.extend(self.gradient(device, true, [key, value])?),
            }
        }
        if query && hopper.is_none() {
            gradients.extend(self.gradient(device, false, [true, false])?);
        }
        let bias = match self.bias {
            Some(desc) => Some(BiasPlan::new(desc, &folded, self.rows, device)?),
            None => None,
        };
        let own = |own_keys: bool| gradients.iter().any(|step| step.own_keys == own_keys);
        let has_bias = bias.is_some_and(|bias| bias.step.is_some());
        let tile = self.tile(device)?;
        let [rows_of_tile, columns] = [tile.rows, tile.columns];
        let masks = [
            self.mask_in(false, own(false) || has_bias, [rows_of_tile, columns])?,
            match hopper {
                Some((_, mask)) => mask,
                None => self.mask_in(true, own(true), [rows_of_tile, columns])?,
            },
        ];
        let hopper = hopper.map(|(plan, _)| plan);
        let rows = folded.planes() * padded_queries;
        let lanes = (self.rows.head_v as usize / STATISTICS_CHANNELS).next_power_of_two();
        let statistics = Step {
            kernel: KernelVariant::GradientStatistics(GradientStatistics { rows: self.rows }),
            blocks: [block_count((rows * lanes).div_ceil(STATISTICS_THREADS))?, 1],
            threads: STATISTICS_THREADS as u32,
            shared_bytes: 0,
        };
        let mut bytes = 0;
        let mut place = |needed: usize| {
            let at = bytes;
            bytes += needed.next_multiple_of(ALIGNMENT);
            at
        };
        let workspace = BackwardWorkspace {
            statistics: place(rows * size_of::<[f32; 2]>()),
            masks: masks.map(|mask| place(mask.map_or(0, |mask| mask.bytes))),
            mask_states: masks.map(|mask| place(mask.map_or(0, |mask| mask.state_bytes))),
            bias: place(bias.map_or(0, |bias| bias.bytes())),
            grad_query: place(hopper.map_or(0, |hopper| hopper.grad_query_bytes)),
            counters: place(hopper.map_or(0, |hopper| hopper.counter_bytes)),
            bytes: 0,
        };
        let any = !gradients.is_empty() || hopper.is_some() || has_bias;
        Ok(BackwardPlan {
            statistics: (rows > 0 && any).then_some(statistics),
            padded_queries,
            masks,
            hopper,
            gradients,
            bias,
            folded,
            workspace: BackwardWorkspace { bytes, ..workspace },
        })
    }

    /// The step for these sums, unless there are no rows.
    fn gradient(
        &self,
        device: DeviceSize,
        own_keys: bool,
        [sum, value_sum]: [bool; 2],
    ) -> Result<Option<GradientStep>> {
        let folded = if own_keys {
            self.folded.turned()
        } else {
            self.folded
        };
        let heads = if own_keys {
            self.sizes.key_heads
        } else {
            self.sizes.query_heads
        };
        let tile = self.tile(device)?;
        let blocks = self.sizes.batch * heads * folded.rows.div_ceil(tile.rows as usize);
        let kernel = GradientMma {
            common: Common {
                rows: self.rows,
                tile,
                mask: folded.bounds.is_some(),
                attn: AttnKind::of(self.attn_mask.as_ref()),
                own_keys,
            },
            sum,
            value_sum,
        };
        let step = Step {
            kernel: KernelVariant::GradientMma(kernel),
            blocks: [block_count(blocks)?, 1],
            threads: 32 * WARPS,
            shared_bytes: shared_bytes(self.rows, tile),
        };
        Ok((blocks > 0).then_some(GradientStep {
            step,
            own_keys,
            sum,
            value_sum,
        }))
    }

    /// The tile for such rows.
    fn tile(&self, device: DeviceSize) -> Result<GradientTile> {
        let (columns, blocks) = match self.rows.head.max(self.rows.head_v) {
            ..=32 => (64, 3),
            33..=64 => (64, 2),
            65..=128 => (32, 2),
            _ => (32, 1),
        };
        let tile = |stages: u32| GradientTile {
            rows: 64,
            columns,
            blocks,
            stages,
        };
        let fits = |tile: &GradientTile| shared_bytes(self.rows, *tile) <= device.shared_bytes;
        [tile(2), tile(1)].into_iter().find(fits).ok_or_else(|| {
            unsupported(
                "a device with 99 KiB of shared memory per block",
                format!("{} bytes", device.shared_bytes),
            )
        })
    }

    /// The mask for kernels whose rows are keys, or queries, and whose tiles have this many rows and columns.
    pub fn mask_in(
        &self,
        own_keys: bool,
        is_needed: bool,
        tile: [u32; 2],
    ) -> Result<Option<MaskPlan>> {
        let Some(mut mask) = self.attn_mask.filter(|_| is_needed) else {
            return Ok(None);
        };
        let mut folded = self.folded;
        if own_keys {
            mask.strides.swap(2, 3);
            folded = folded.turned();
        }
        let plan = MaskPlan::new(&mask, &folded, self.sizes.group(), tile);
        let too_many = || unsupported("fewer elements", format!("{:?}", self.sizes));
        Ok(Some(plan.ok_or_else(too_many)?))
    }
}

/// Shared memory per block; see kernels/dense/backward/gradient_mma.cu.
fn shared_bytes(rows: Rows, tile: GradientTile) -> u32 {
    let row = 2 * (rows.head + rows.head_v);
    let statistics = size_of::<[f32; 2]>() as u32;
    tile.rows * row + tile.stages * tile.columns * (row + statistics)
}

/// Bytes to which all rows are aligned.
fn alignment(call: &Backward<'_>) -> u32 {
    let (inputs, gradients) = (&call.inputs, &call.gradients);
    let read = [
        &inputs.query,
        &inputs.key,
        &inputs.value,
        &call.results.out,
        &call.grad_out,
    ];
    let written = [&gradients.query, &gradients.key, &gradients.value];
    let written = written.into_iter().flatten().map(|view| view.as_view());
    let views: Vec<_> = read.into_iter().chain(written).collect();
    let aligned = |align: &u32| {
        views.iter().all(|view| {
            let (first, layout) = (view.as_ptr(), view.layout());
            fit::aligned("", first, layout, &[0, 1, 2], &[3], *align as usize).is_ok()
        })
    };
    [16, 4].into_iter().find(aligned).unwrap_or(2)
}
