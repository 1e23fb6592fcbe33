//! Which kernels compute the requested gradients.

use std::fmt;

use super::sorting::Sorting;
use crate::cuda::device_size::DeviceSize;
use crate::cuda::fit::{Fit, aligned_forward};
use crate::cuda::handle::Cuda;
use crate::cuda::msda::arguments::Schedule;
use crate::cuda::msda::fit;
use crate::cuda::msda::options::KernelChoice;
use crate::cuda::msda::schedule::{Dealing, schedule};
use crate::cuda::msda::specialised::{
    Gather, KernelVariant, SamplesChannel, SamplesGather, Search,
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

/// Samples times channels up to which atomic additions are faster than sorting: measured, see docs/cuda-backward.md.
const SCATTER_MOST: usize = 1 << 21;

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
    /// `grad_value` by searching, for levels that sorting cannot handle.
    pub(super) search: Option<Step<KernelVariant>>,
    /// Why faster kernels were not chosen.
    pub(super) reasons: Vec<String>,
}

impl BackwardPlan {
    /// The plan for `call` on this device: tuned by its handle or a table, or untuned.
    pub(in crate::cuda::msda) fn on(cuda: &Cuda, call: &Backward<'_>) -> Result<Self> {
        let settings = cuda.settings();
        let options = settings.msda;
        let by_table = || {
            let problem = &call.problem;
            let (class, dtype) = (Class::of_msda(problem.sizes()), problem.value().dtype());
            let entry = cuda.chosen(&MSDA_BACKWARD, class, dtype)?;
            Some(BackwardTuning::of(&entry.choice))
        };
        cuda.planned(options.backward, by_table, |tuning| {
            let deterministic = settings.deterministic;
            BackwardPlan::new(call, cuda.size(), options.kernel, deterministic, tuning)
        })
    }

    /// The plan for `call` on a device.
    pub(in crate::cuda::msda) fn new(
        call: &Backward<'_>,
        device: DeviceSize,
        wanted: KernelChoice,
        deterministic: bool,
        tuning: &BackwardTuning,
    ) -> Result<Self> {
        let problem = &call.problem;
        let sizes = problem.sizes();
        let level_capacity = fit::expect_any_kernel(problem)?;
        let multiprocessors = device.multiprocessors.max(1);
        let mut plan = BackwardPlan::default();

        let gradients = &call.gradients;
        let rows = sizes.images * sizes.queries * sizes.heads;
        let of_samples =
            gradients.sampling_locations.is_some() || gradients.attention_weights.is_some();
        let any_samples = rows * sizes.levels * sizes.points > 0;
        let gather = match any_samples {
            true => gather(call, device, tuning),
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
        let may_scatter = !deterministic && can_scatter(call) && gather.is_ok();
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
                (KernelChoice::GatherMany | KernelChoice::Channel, _) => false,
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
                        types: fit::types(problem),
                        level_capacity,
                    }),
                    blocks: [multiprocessors * BLOCKS_EACH, 1],
                    threads: CHANNEL_THREADS,
                    shared_bytes: 0,
                });
            }
        }
        if !any_samples || !(of_samples || plan.scatter) {
            (plan.samples, plan.schedule) = (None, None);
        }

        let Some(grad_value) = &gradients.value else {
            return Ok(plan);
        };
        if plan.scatter || grad_value.shape().elements() == Some(0) {
            return Ok(plan);
        }
        let mut search = Search {
            types: fit::types(problem),
            always: true,
            level_capacity,
        };
        match Sorting::new(call, grad_value, device, wanted, tuning) {
            Ok(sorting) => {
                plan.sorting = Some(sorting);
                search.always = false;
            }
            Err(reason) if *tuning != BackwardTuning::default() => return Err(refused(reason)),
            Err(reason) => plan.reasons.push(format!("not sorted: {reason}")),
        }
        // Levels in device memory may not tile the pixels: then this kernel does the work.
        if search.always || problem.cuda_levels().is_some() {
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

    /// Whether its result is bitwise reproducible.
    pub fn is_deterministic(&self) -> bool {
        !self.scatter
    }

    /// All kernels it may launch, in order; those that sort and sum, once for each part of the work.
    pub fn steps(&self) -> Vec<Step<KernelVariant>> {
        let sorting = self.sorting.iter().flat_map(Sorting::steps);
        let others = self.search.iter().chain(&self.samples);
        sorting.chain(others.copied()).collect()
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
fn can_scatter(call: &Backward<'_>) -> bool {
    let value = call.problem.value();
    call.gradients.value.as_ref().is_some_and(|gradient| {
        value.dtype() == DType::F32
            && value.is_contiguous()
            && gradient.layout().is_contiguous()
            && (gradient.as_mut_ptr() as usize).is_multiple_of(16)
    })
}

/// The gather kernel for the gradients of locations and weights, or the reason why it cannot serve the call.
fn gather(
    call: &Backward<'_>,
    device: DeviceSize,
    tuning: &BackwardTuning,
) -> Fit<(Step<KernelVariant>, Schedule)> {
    let (problem, inputs, gradients) = (&call.problem, &call.inputs, &call.gradients);
    let sizes = problem.sizes();
    let pixel_units = fit::expect_gather(problem, inputs)?;
    aligned_forward(
        "grad_out",
        call.grad_out.as_ptr(),
        call.grad_out.layout(),
        &[0, 1],
        &[2],
        16,
    )?;
    let kind = fit::kind(problem);
    let units = pixel_units as u32;
    let matrix = kind
        .samples_matrix(units)
        .filter(|_| fit::has_short_places(problem));
    let on_matrix = matrix.is_some();
    let mut gather = matrix.unwrap_or_else(|| kind.samples_gather(units));
    let locations = (
        problem.sampling_locations(),
        inputs.sampling_locations.as_ptr(),
    );
    let weights = (
        problem.attention_weights(),
        inputs.attention_weights.as_ptr(),
    );
    let grad_locations = gradients
        .sampling_locations
        .as_ref()
        .map_or(locations, |view| {
            (view.layout(), view.as_mut_ptr().cast_const())
        });
    let grad_weights = gradients
        .attention_weights
        .as_ref()
        .map_or(weights, |view| {
            (view.layout(), view.as_mut_ptr().cast_const())
        });
    gather.dense = [locations.0, weights.0, grad_locations.0, grad_weights.0]
        .iter()
        .all(|layout| layout.is_contiguous());
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
    let declared = gather.threads * gather.per_lane * SAMPLE_BYTES;
    if !on_matrix && declared > MOST_DECLARED {
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
