//! Forward: which kernel serves a call, how its work is split, and its launch.

use std::ffi::c_void;
use std::{fmt, iter, ptr};

use super::arguments::{Addresses, Schedule, SizedArguments};
use super::fit;
use super::matrix;
use super::operands::{Operand, Operands};
use super::options::KernelChoice;
use super::schedule::{Dealing, schedule};
use super::shared_levels::SharedLevels;
use super::specialised::{Channel, Gather, KernelVariant, Sampling};
use super::tuning::{ForwardTuning, or_usual};
use crate::cuda::device_size::DeviceSize;
use crate::cuda::fit::{Fit, aligned_forward};
use crate::cuda::handle::Cuda;
use crate::cuda::step::{LoadedStep, Step, load_together, parameter};
use crate::cuda::tuning::refused;
use crate::error::{Error, Result};
use crate::msda::Forward;
use crate::tuning::Class;
use crate::tuning::spaces::cuda::{ALWAYS, MSDA_FORWARD, NEVER};

/// The plan of a call, for display and for the launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The kernel and how it is launched.
    pub step: Step<KernelVariant>,
    /// What is queued after it, and computes the call where the kernel finds that levels in device memory do not suit it.
    pub otherwise: Option<Box<Plan>>,
    /// Why a faster kernel was not chosen.
    pub reason: Option<String>,
    pub(super) schedule: Option<Schedule>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan {
            step,
            otherwise,
            reason,
            ..
        } = self;
        let Step {
            kernel,
            blocks: [blocks, _],
            threads,
            shared_bytes,
        } = step;
        write!(f, "{kernel}, {blocks} blocks of {threads} threads")?;
        if *shared_bytes > 0 {
            write!(f, ", {shared_bytes} bytes of levels in shared memory")?;
        }
        if let Some(otherwise) = otherwise {
            write!(f, "; if levels do not fit: {otherwise}")?;
        }
        match reason {
            Some(reason) => write!(f, " (not gather: {reason})"),
            None => Ok(()),
        }
    }
}

/// Threads per block of the kernel with one thread per channel.
const CHANNEL_THREADS: u32 = 256;

impl Plan {
    /// The plan for `call` on this device: tuned by its handle or a table, or untuned.
    pub(super) fn on(cuda: &Cuda, call: &Forward<'_>) -> Result<Plan> {
        let operands = Operands::given(&call.problem, &call.inputs);
        Plan::of(cuda, &operands, &Operand::of_output(&call.out))
    }

    /// The same for the inputs of any call.
    pub(super) fn of(cuda: &Cuda, operands: &Operands<'_>, out: &Operand) -> Result<Plan> {
        let options = cuda.settings().msda;
        let by_table = || {
            let class = Class::of_msda(&operands.sizes);
            let entry = cuda.chosen(&MSDA_FORWARD, class, operands.kind.types.value)?;
            Some(ForwardTuning::of(&entry.choice))
        };
        cuda.planned(options.forward, by_table, |tuning| {
            Plan::new(operands, out, cuda.size(), options.kernel, tuning)
        })
    }

    /// All kernels that are queued, in order.
    pub fn steps(&self) -> Vec<Step<KernelVariant>> {
        self.parts().map(|part| part.step).collect()
    }

    /// This plan and what is queued after it.
    fn parts(&self) -> impl Iterator<Item = &Plan> {
        iter::successors(Some(self), |part| part.otherwise.as_deref())
    }

    /// The plan for a call on a device.
    pub(super) fn new(
        operands: &Operands<'_>,
        out: &Operand,
        device: DeviceSize,
        wanted: KernelChoice,
        tuning: &ForwardTuning,
    ) -> Result<Plan> {
        let on_matrix = match (wanted, tuning.matrix) {
            (KernelChoice::Matrix, _) | (KernelChoice::Best, ALWAYS) => Some(true),
            // Measured on Hopper only.
            (KernelChoice::Best, 0) if device.has_wgmma => Some(false),
            _ => None,
        };
        if let Some(anyway) = on_matrix {
            match (matrix::plan(operands, out, device, tuning, anyway), wanted) {
                (Ok(plan), _) => return Ok(plan),
                (Err(found), KernelChoice::Matrix) => {
                    return Err(Error::Unsupported {
                        backend: "cuda",
                        expected: "a problem the kernel on tensor cores can serve".to_string(),
                        found,
                    });
                }
                (Err(reason), _) if anyway => return Err(refused(reason)),
                _ => {}
            }
        }
        match (wanted, gather(operands, out, device, wanted, tuning, 0)) {
            (KernelChoice::Best, Err(reason)) if *tuning != ForwardTuning::default() => {
                Err(refused(reason))
            }
            (KernelChoice::Best | KernelChoice::Gather | KernelChoice::GatherMany, Ok(plan)) => {
                Ok(plan)
            }
            (KernelChoice::Gather | KernelChoice::GatherMany, Err(reason)) => {
                Err(Error::Unsupported {
                    backend: "cuda",
                    expected: "a problem the gather kernel can serve".to_string(),
                    found: reason,
                })
            }
            (KernelChoice::Best, Err(reason)) => channel(operands, out, device, Some(reason)),
            _ => channel(operands, out, device, None),
        }
    }
}

fn channel(
    operands: &Operands<'_>,
    out: &Operand,
    device: DeviceSize,
    reason: Option<String>,
) -> Result<Plan> {
    let sizes = &operands.sizes;
    let level_capacity = fit::expect_any_kernel(operands)?;
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    let (elements, value, locations) = (
        count(&sizes.out()),
        count(&sizes.value()),
        count(&sizes.sampling_locations()),
    );
    // Less than half of the 32-bit range, so that the step beyond the last element does not wrap around.
    let dense = operands.kind.sampling == Sampling::Given
        && rows_are_dense(operands, out)
        && operands.value.layout.is_contiguous()
        && [elements, value, locations]
            .iter()
            .all(|&count| count < 1 << 31);
    let blocks_needed = elements.div_ceil(CHANNEL_THREADS as usize);
    // Enough to fill any device many times over; threads loop over the remaining work.
    let most = device.multiprocessors as usize * 64;
    Ok(Plan {
        step: Step {
            kernel: KernelVariant::Channel(Channel {
                types: operands.kind.types,
                sampling: operands.kind.sampling.general(),
                strided: !dense,
                level_capacity,
            }),
            blocks: [blocks_needed.clamp(1, most.max(1)) as u32, 1],
            threads: CHANNEL_THREADS,
            shared_bytes: 0,
        },
        otherwise: None,
        reason,
        schedule: None,
    })
}

/// Whether everything but `value` lies in row-major order without gaps.
pub(super) fn rows_are_dense(operands: &Operands<'_>, out: &Operand) -> bool {
    [&operands.locations, &operands.weights, out]
        .iter()
        .all(|operand| operand.layout.is_contiguous())
}

/// The plan for the gather kernel, or the reason why it cannot serve the call. `kept_room`: that of a kernel on tensor cores queued
/// before it, which leaves it the calls whose levels do not fit there; 0 if there is none.
pub(super) fn gather(
    operands: &Operands<'_>,
    out: &Operand,
    device: DeviceSize,
    wanted: KernelChoice,
    tuning: &ForwardTuning,
    kept_room: u32,
) -> Fit<Plan> {
    let sizes = &operands.sizes;
    let pixel_units = fit::expect_gather(operands)?;
    aligned_forward("out", out.first, &out.layout, &[0, 1], &[2], 16)?;

    // Too few rows to fill the device with warps: split each row's samples among several groups of lanes.
    let kind = operands.kind;
    let rows = sizes.images * sizes.queries * sizes.heads;
    let split = match wanted {
        KernelChoice::GatherMany => 1,
        _ => kind.split(rows, device.multiprocessors),
    };
    let mut gather = kind.gather(pixel_units as u32, split);
    gather.kept_room = kept_room;
    gather.dense = rows_are_dense(operands, out);
    let rows = [&operands.locations, &operands.weights, out];
    gather.narrow = fit::are_narrow(&rows, &operands.references, sizes);
    let samples = |per_lane: u32| {
        fit::expect_samples(&operands.locations, &operands.weights, per_lane as usize)
    };
    if gather.per_lane == 2 && samples(2).is_err() {
        gather.per_lane = 1;
        gather.phases = 1;
    }
    gather = Gather {
        threads: or_usual(tuning.threads, gather.threads),
        per_lane: or_usual(tuning.per_lane, gather.per_lane),
        split: or_usual(tuning.split, gather.split),
        heads_together: or_usual(tuning.heads_together, gather.heads_together),
        phases: or_usual(tuning.phases, gather.phases),
        alternate: tuning.alternate == ALWAYS || gather.alternate && tuning.alternate != NEVER,
        ..gather
    };
    gather.expect_possible(sizes.heads)?;
    samples(gather.per_lane)?;
    let dealing = Dealing::tuned(device, tuning);
    let dealt = |gather: &Gather| schedule(sizes, gather, dealing);
    let (mut schedule, mut blocks) = dealt(&gather);
    let mut shared_bytes = 0;
    let keeping = gather.keeping().filter(|_| tuning.keep != NEVER);
    if let Some(keeping) = keeping {
        let keeping = Gather {
            threads: or_usual(tuning.threads, keeping.threads),
            ..keeping
        };
        let (with_kept, as_many) = dealt(&keeping);
        let levels = operands.levels;
        let kept = match (wanted, tuning.keep) {
            (KernelChoice::GatherMany, _) | (_, ALWAYS) => {
                SharedLevels::of(levels, &keeping, device)
            }
            _ => SharedLevels::where_it_pays(levels, &keeping, &with_kept, device),
        };
        if let Some(kept) = kept {
            if tuning.blocks > 1 {
                return Err("levels kept by several blocks of a multiprocessor".to_string());
            }
            (gather, blocks, shared_bytes) = (keeping, as_many, kept.bytes);
            schedule = Schedule {
                kept: kept.levels,
                ..with_kept
            };
        }
    }
    if tuning.keep == ALWAYS && !gather.keeps {
        return Err("no level that can be kept".to_string());
    }
    Ok(Plan {
        step: Step {
            kernel: KernelVariant::Gather(gather),
            blocks: [blocks, 1],
            threads: gather.threads,
            shared_bytes,
        },
        otherwise: None,
        reason: None,
        schedule: Some(schedule),
    })
}

/// The kernels of a plan, loaded, in launch order, each with its schedule; none where there is nothing to compute.
pub(super) struct ForwardSteps(Vec<(LoadedStep, Option<Schedule>)>);

impl ForwardSteps {
    /// Loads all of them before any is queued, so that a failure leaves nothing half done.
    pub fn load(cuda: &Cuda, plan: Option<&Plan>) -> Result<Self> {
        let parts: Vec<&Plan> = plan.into_iter().flat_map(Plan::parts).collect();
        load_together(cuda, parts.iter().map(|part| &part.step));
        let load = |part: &&Plan| Ok((part.step.load(cuda)?, part.schedule));
        Ok(ForwardSteps(parts.iter().map(load).collect::<Result<_>>()?))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Queues them. `last`: what all of them declare after the schedule.
    ///
    /// # Safety
    /// The parameters match their declarations, and what they point to, the memory of tensors too, stays as it is until the stream
    /// has done the work.
    pub unsafe fn launch(
        &self,
        cuda: &Cuda,
        arguments: &SizedArguments,
        last: Option<*mut c_void>,
    ) -> Result<()> {
        for (number, (step, schedule)) in self.0.iter().enumerate() {
            // A second one finds out whether it is needed, and waits for the first.
            let overlaps = number > 0 && cuda.size().has_wgmma;
            let schedule = schedule.as_ref().map(parameter);
            let mut parameters = [arguments.pointer(), ptr::null_mut(), ptr::null_mut()];
            let mut declared = 1;
            for parameter in schedule.into_iter().chain(last) {
                parameters[declared] = parameter;
                declared += 1;
            }
            // SAFETY: a second kernel waits for the one before it by itself; the rest as the caller promises.
            unsafe { step.launch_overlapping(cuda, &mut parameters[..declared], overlaps) }?;
        }
        Ok(())
    }
}

/// A prepared forward launch: everything but the addresses.
pub(super) struct ForwardLaunch {
    steps: ForwardSteps,
    arguments: SizedArguments,
}

impl ForwardLaunch {
    /// Prepares a checked call on this device.
    pub fn new(cuda: &Cuda, call: &Forward<'_>) -> Result<Self> {
        let sizes = call.problem.sizes();
        let plan = match sizes.images * sizes.queries * sizes.heads {
            0 => None,
            _ => Some(Plan::on(cuda, call)?),
        };
        let capacity = match plan.as_ref().map(|plan| plan.step.kernel) {
            Some(KernelVariant::Channel(channel)) => Some(channel.level_capacity),
            _ => None,
        };
        Ok(ForwardLaunch {
            steps: ForwardSteps::load(cuda, plan.as_ref())?,
            arguments: {
                let operands = Operands::given(&call.problem, &call.inputs);
                SizedArguments::new(&operands, Some(&Operand::of_output(&call.out)), capacity)
            },
        })
    }

    /// Queues the kernels without allocating or waiting.
    ///
    /// # Safety
    /// The addresses are of a call that shares its plan, on the same device, and the memory of its tensors stays allocated
    /// until the stream has done the work.
    pub unsafe fn launch(&self, cuda: &Cuda, addresses: Addresses) -> Result<()> {
        if self.steps.is_empty() {
            return Ok(());
        }
        let arguments = self.arguments.at(addresses);
        // SAFETY: kernels of given locations declare nothing after the schedule; the rest as the caller promises.
        unsafe { self.steps.launch(cuda, &arguments, None) }
    }
}
