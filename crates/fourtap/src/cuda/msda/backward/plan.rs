//! Which kernels compute the requested gradients.

use std::fmt;

use super::bands::Bands;
use super::sorting::Sorting;
use crate::cuda::device_size::DeviceSize;
use crate::cuda::fit::{Fit, aligned_forward};
use crate::cuda::handle::Cuda;
use crate::cuda::msda::arguments::Schedule;
use crate::cuda::msda::fit;
use crate::cuda::msda::kind::FEW_SAMPLE_THREADS;
use crate::cuda::msda::operands::{GradientOperands, Operand, Operands};
use crate::cuda::msda::options::KernelChoice;
use crate::cuda::msda::schedule::{Dealing, schedule};
use crate::cuda::msda::specialised::{
    Gather, KernelVariant, SamplesChannel, SamplesGather, Sampling, Search,
};
use crate::cuda::msda::tuning::{BackwardTuning, or_usual};
use crate::cuda::recipe::SpecialisedKernel;
use crate::cuda::step::Step;
use crate::cuda::tuning::refused;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::msda::Backward;
use crate::tuning::Class;
use crate::tuning::spaces::cuda::{ALWAYS, MSDA_BACKWARD, NEVER};

/// Threads per block of the generic kernels.
const CHANNEL_THREADS: u32 = 256;
const SEARCH_THREADS: u32 = 128;
/// Blocks of them per multiprocessor: enough to fill it; they loop over the remaining work.
const BLOCKS_EACH: u32 = 8;

/// Maximum shared memory that kernels/msda/backward_samples_gather.cu declares per sample of a block, and the maximum that
/// a block may declare, less a little for levels.
const SAMPLE_BYTES: u32 = 36;
const MOST_DECLARED: u32 = 47 << 10;

/// What kernels for projections keep of a sample until its row is done: `Kept` of kernels/msda/samples.cuh.
const KEPT_BYTES: u32 = 8;
const KEPT_BYTES_MATRIX: u32 = 12;

/// Samples times channels up to which atomic additions are faster than sorting: measured, see docs/cuda-backward.md.
const SCATTER_MOST: usize = 1 << 21;

/// Samples of a call up to which bands are faster than sorting: measured, see docs/cuda-backward.md.
const BANDS_MOST: usize = 3 << 15;

/// The plan of a backward call, for display and for the launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackwardPlan {
    /// Gradients of locations and weights; with `scatter` also of `value`, by atomic additions.
    pub(super) samples: Option<Step<KernelVariant>>,
    /// How its rows are distributed over blocks, for kernels that use a schedule.
    pub(super) schedule: Option<Schedule>,
    /// Whether `grad_value` is zeroed and then accumulated by atomic additions.
    pub(super) scatter: bool,
    /// `grad_value` from sorted samples.
    pub(super) sorting: Option<Sorting>,
    /// `grad_value` band by band.
    pub(super) bands: Option<Bands>,
    /// `grad_value` by searching, for levels that sorting cannot handle.
    pub(super) search: Option<Step<KernelVariant>>,
    /// Why faster kernels were not chosen.
    pub(super) reasons: Vec<String>,
}

impl BackwardPlan {
    /// The plan for `call` on this device: tuned by its handle or a table, or untuned.
    pub(in crate::cuda::msda) fn on(cuda: &Cuda, call: &Backward<'_>) -> Result<Self> {
        let operands = Operands::given(&call.problem, &call.inputs);
        BackwardPlan::of(cuda, &operands, &GradientOperands::given(call))
    }

    /// The same for the operands of any call.
    pub(in crate::cuda::msda) fn of(
        cuda: &Cuda,
        operands: &Operands<'_>,
        gradients: &GradientOperands,
    ) -> Result<Self> {
        let settings = cuda.settings();
        let options = settings.msda;
        let by_table = || {
            let class = Class::of_msda(&operands.sizes);
            let entry = cuda.chosen(&MSDA_BACKWARD, class, operands.kind.types.value)?;
            Some(BackwardTuning::of(&entry.choice))
        };
        cuda.planned(options.backward, by_table, |tuning| {
            let deterministic = settings.deterministic;
            let kernel = options.kernel;
            BackwardPlan::new(
                operands,
                gradients,
                cuda.size(),
                kernel,
                deterministic,
                tuning,
            )
        })
    }

    /// The plan for a call on a device.
    pub(in crate::cuda::msda) fn new(
        operands: &Operands<'_>,
        gradients: &GradientOperands,
        device: DeviceSize,
        wanted: KernelChoice,
        deterministic: bool,
        tuning: &BackwardTuning,
    ) -> Result<Self> {
        let sizes = &operands.sizes;
        let wanted = match wanted {
            KernelChoice::Matrix => KernelChoice::Best,
            other => other,
        };
        let level_capacity = fit::expect_any_kernel(operands)?;
        let (types, sampling) = (operands.kind.types, operands.kind.sampling.general());
        let multiprocessors = device.multiprocessors.max(1);
        let mut plan = BackwardPlan::default();

        let rows = sizes.images * sizes.queries * sizes.heads;
        let any_samples = rows * sizes.levels * sizes.points > 0;
        let gather = match any_samples {
            true => gather(operands, gradients, device, tuning),
            false => Err("no samples".to_string()),
        };
        if any_samples
            && let (KernelChoice::Gather | KernelChoice::GatherMany, Err(reason)) =
                (wanted, &gather)
        {
            return Err(Error::Unsupported {
                backend: "cuda",
                expected: "a problem the gather kernel can serve".to_string(),
                found: reason.clone(),
            });
        }
        if let (true, Err(reason)) = (*tuning != BackwardTuning::default(), &gather) {
            return Err(refused(reason.clone()));
        }
        let may_scatter = !deterministic && can_scatter(operands, gradients) && gather.is_ok();
        if tuning.scatter == ALWAYS && !may_scatter {
            let found = "sums that atomic instructions may not, or cannot, add up";
            return Err(refused(found.to_string()));
        }
        let scatter = may_scatter
            && match (wanted, tuning.scatter) {
                (KernelChoice::Best, NEVER) => false,
                (KernelChoice::Best, ALWAYS) => true,
                (KernelChoice::Best, _) => sizes.samples() * sizes.channels <= SCATTER_MOST,
                (KernelChoice::Gather, _) => true,
                _ => false,
            };
        match gather {
            Ok((step, schedule)) if wanted != KernelChoice::Channel => {
                plan.scatter = scatter;
                plan.schedule = Some(schedule);
                plan.samples = Some(Step {
                    kernel: with_scatter(step.kernel, scatter),
                    ..step
                });
            }
            gather => {
                plan.reasons.extend(gather.err());
                plan.samples = Some(Step {
                    kernel: KernelVariant::SamplesChannel(SamplesChannel {
                        types,
                        sampling,
                        level_capacity,
                    }),
                    blocks: [multiprocessors * BLOCKS_EACH, 1],
                    threads: CHANNEL_THREADS,
                    shared_bytes: 0,
                });
            }
        }
        if !any_samples || !(gradients.of_samples() || plan.scatter) {
            (plan.samples, plan.schedule) = (None, None);
        }

        let Some(grad_value) = &gradients.value else {
            return Ok(plan);
        };
        if plan.scatter || grad_value.layout.shape().elements() == Some(0) {
            return Ok(plan);
        }
        let bands = Bands::new(operands, gradients, device);
        let wants_bands = match tuning.bands {
            NEVER => false,
            ALWAYS => true,
            _ => match wanted {
                KernelChoice::Best => {
                    let level_planes = sizes.images * sizes.heads * sizes.levels;
                    level_planes * operands.samples_of_level() <= BANDS_MOST
                }
                KernelChoice::Gather => true,
                _ => false,
            },
        };
        match bands {
            Ok(bands) if wants_bands => plan.bands = Some(bands),
            Err(reason) if tuning.bands == ALWAYS => return Err(refused(reason)),
            _ => {}
        }
        let mut search = Search {
            types,
            sampling,
            always: true,
            level_capacity,
        };
        match Sorting::new(operands, gradients, device, wanted, tuning) {
            _ if plan.bands.is_some() => search.always = false,
            Ok(sorting) => {
                plan.sorting = Some(sorting);
                search.always = false;
            }
            Err(reason) if *tuning != BackwardTuning::default() => return Err(refused(reason)),
            Err(reason) => plan.reasons.push(format!("not sorted: {reason}")),
        }
        // Levels in device memory may not tile the pixels: then this kernel does the work.
        if search.always || operands.levels_in_device_memory {
            plan.search = Some(Step {
                kernel: KernelVariant::ValueSearch(search),
                blocks: [multiprocessors * BLOCKS_EACH, 1],
                threads: SEARCH_THREADS,
                shared_bytes: 0,
            });
        }
        Ok(plan)
    }

    /// Bytes of scratch memory.
    pub fn workspace_bytes(&self) -> usize {
        self.sorting.as_ref().map_or(0, Sorting::bytes)
    }

    /// Whether kernels that sort or search read, of a call from projections, what the softmax of each row takes. The kernel
    /// for the gradients of samples leaves that behind, if there is one.
    pub(in crate::cuda::msda) fn reads_statistics(&self) -> bool {
        self.sorting.is_some() || self.bands.is_some() || self.search.is_some()
    }

    /// Whether its kernels read `value`.
    pub(in crate::cuda::msda) fn reads_value(&self) -> bool {
        self.samples.is_some()
    }

    /// Whether its result is bitwise reproducible.
    pub fn is_deterministic(&self) -> bool {
        !self.scatter
    }

    /// All kernels it may launch, in order; those that sort and sum, once for each part of the work.
    pub fn steps(&self) -> Vec<Step<KernelVariant>> {
        let sorting = self.sorting.iter().flat_map(Sorting::steps);
        let samples = self.samples.iter().copied();
        let bands = self.bands.map(|bands| bands.step);
        samples
            .chain(sorting)
            .chain(bands)
            .chain(self.search)
            .collect()
    }

    /// The kernels of [`BackwardPlan::steps`].
    pub(super) fn all(&self) -> Vec<KernelVariant> {
        self.steps().iter().map(|step| step.kernel).collect()
    }

    /// The names of their functions.
    pub fn kernels(&self) -> Vec<&'static str> {
        self.all().iter().map(SpecialisedKernel::entry).collect()
    }
}

impl fmt::Display for BackwardPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.all().iter().map(KernelVariant::to_string).collect();
        match names.is_empty() {
            true => f.write_str("nothing to do")?,
            false => f.write_str(&names.join(", "))?,
        }
        write!(f, "; {} bytes of workspace", self.workspace_bytes())?;
        match self.reasons.is_empty() {
            true => Ok(()),
            false => write!(f, " (not gather: {})", self.reasons.join("; ")),
        }
    }
}

fn with_scatter(kernel: KernelVariant, scatter: bool) -> KernelVariant {
    match kernel {
        KernelVariant::SamplesGather(kernel) => {
            KernelVariant::SamplesGather(SamplesGather { scatter, ..kernel })
        }
        other => other,
    }
}

/// Whether `grad_value` can be accumulated by atomic additions: f32, with the layout of `value`.
fn can_scatter(operands: &Operands<'_>, gradients: &GradientOperands) -> bool {
    let value = &operands.value.layout;
    gradients.value.as_ref().is_some_and(|gradient| {
        value.dtype() == DType::F32
            && value.is_contiguous()
            && gradient.layout.is_contiguous()
            && (gradient.first as usize).is_multiple_of(16)
    })
}

/// The gather kernel for the gradients of locations and weights, or the reason why it cannot serve the call.
fn gather(
    operands: &Operands<'_>,
    gradients: &GradientOperands,
    device: DeviceSize,
    tuning: &BackwardTuning,
) -> Fit<(Step<KernelVariant>, Schedule)> {
    let sizes = &operands.sizes;
    let pixel_units = fit::expect_gather(operands)?;
    let grad_out = &gradients.grad_out;
    aligned_forward(
        "grad_out",
        grad_out.first,
        &grad_out.layout,
        &[0, 1],
        &[2],
        16,
    )?;
    let kind = operands.kind;
    let units = pixel_units as u32;
    let matrix = kind
        .samples_matrix(units)
        .filter(|_| fit::has_short_places(&operands.value))
        // Its kernel counts the bytes between rows in 32 bits.
        .filter(|_| fit::has_near_rows(sizes.pixels, pixel_units));
    let on_matrix = matrix.is_some();
    let mut gather = matrix.unwrap_or_else(|| kind.samples_gather(units));
    let rows = sizes.images * sizes.queries * sizes.heads;
    let multiprocessors = device.multiprocessors.max(1);
    if on_matrix && rows * kind.lanes() <= (multiprocessors * FEW_SAMPLE_THREADS) as usize {
        gather.threads = FEW_SAMPLE_THREADS;
    }
    let (locations, weights) = (&operands.locations, &operands.weights);
    let grad_locations = gradients.locations.as_ref().unwrap_or(locations);
    let grad_weights = gradients.weights.as_ref().unwrap_or(weights);
    let dense = |operand: &Operand| operand.layout.is_contiguous();
    gather.dense = dense(locations) && dense(weights);
    gather.grads_dense = gradients.locations.as_ref().is_none_or(dense)
        && gradients.weights.as_ref().is_none_or(dense);
    let of_f32 = |gradient: &Option<Operand>| {
        gradient
            .as_ref()
            .is_some_and(|gradient| gradient.layout.dtype() == DType::F32)
    };
    gather.exact |= of_f32(&gradients.locations) || of_f32(&gradients.weights) || gradients.places;
    let rows = [locations, weights, grad_locations, grad_weights, grad_out];
    gather.narrow = fit::are_narrow(&rows, &operands.references, sizes);
    let fits = |per_lane: u32| {
        fit::expect_samples(locations, weights, per_lane as usize)?;
        fit::expect_samples(grad_locations, grad_weights, per_lane as usize)
    };
    if gather.per_lane == 2 && fits(2).is_err() {
        gather.per_lane = 1;
    }
    gather = Gather {
        threads: or_usual(tuning.threads, gather.threads),
        per_lane: or_usual(tuning.per_lane, gather.per_lane),
        heads_together: or_usual(tuning.heads_together, gather.heads_together),
        ..gather
    };
    gather.expect_possible(sizes.heads)?;
    let (per_lane, lane_samples) = (gather.per_lane, gather.lane_samples());
    let declared = |threads: u32| {
        let exchanged = match on_matrix {
            true => 0,
            false => threads * per_lane * SAMPLE_BYTES,
        };
        let kept = match (kind.sampling, on_matrix) {
            (Sampling::Given, _) => 0,
            (Sampling::Projected(_), false) => threads * lane_samples * KEPT_BYTES,
            (Sampling::Projected(_), true) => threads * lane_samples * KEPT_BYTES_MATRIX,
        };
        exchanged + kept
    };
    if kind.sampling != Sampling::Given && tuning.threads == 0 {
        let fewer = [gather.threads, 384, 256, 128].into_iter();
        let fitting = fewer.filter(|&threads| declared(threads) <= MOST_DECLARED);
        gather.threads = fitting.max().unwrap_or(gather.threads);
    }
    let declared = declared(gather.threads);
    if declared > MOST_DECLARED {
        return Err(format!("too much shared memory declared: {declared} bytes"));
    }
    fits(gather.per_lane)?;
    let dealing = Dealing::new(device).of_blocks(tuning.blocks);
    let (schedule, blocks) = schedule(sizes, &gather, dealing);
    let step = Step {
        kernel: match on_matrix {
            true => KernelVariant::SamplesMatrix(gather),
            false => KernelVariant::SamplesGather(SamplesGather {
                gather,
                scatter: false,
            }),
        },
        blocks: [blocks, 1],
        threads: gather.threads,
        shared_bytes: 0,
    };
    Ok((step, schedule))
}
