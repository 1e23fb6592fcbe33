//! Forward: which kernel serves a call, how its work is cut, and its launch.

use std::fmt;

use super::arguments::{Addresses, Held, Schedule, pointer};
use super::fit::{self, Fit, aligned};
use super::kept::Kept;
use super::repeated;
use super::schedule::{Dealing, schedule};
use super::specialised::{Channel, Gather, Specialised};
use super::tuning::{self, ALWAYS, ForwardTuning, NEVER, or_usual};
use super::{DeviceSize, Wanted};
use crate::cuda::driver::Kernel;
use crate::cuda::tuning::refused;
use crate::cuda::{Cuda, kernels};
use crate::error::{Error, Result};
use crate::msda::{Forward, Inputs};
use crate::tensor::ViewMut;
use crate::tuning::Class;

/// What a call will do: shown to whoever asks, and followed by the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The kernel.
    pub kernel: Specialised,
    /// Blocks to launch.
    pub blocks: u32,
    /// Threads of each.
    pub threads: u32,
    /// Shared memory each asks for beyond what the kernel declares.
    pub shared_bytes: u32,
    /// Why it is not a faster kernel.
    pub reason: Option<String>,
    pub(super) schedule: Option<Schedule>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan {
            kernel,
            blocks,
            threads,
            shared_bytes,
            reason,
            ..
        } = self;
        write!(f, "{kernel}, {blocks} blocks of {threads} threads")?;
        if *shared_bytes > 0 {
            write!(f, ", {shared_bytes} bytes of levels in shared memory")?;
        }
        match reason {
            Some(reason) => write!(f, " (not gather: {reason})"),
            None => Ok(()),
        }
    }
}

/// Threads a block of the kernel of one thread a channel.
const CHANNEL_THREADS: u32 = 256;

impl Plan {
    /// For `call` on a device.
    pub(super) fn new(
        call: &Forward<'_>,
        device: DeviceSize,
        wanted: Wanted,
        tuning: &ForwardTuning,
    ) -> Result<Plan> {
        match (wanted, gather(call, device, wanted, tuning)) {
            (Wanted::Best, Err(reason)) if *tuning != ForwardTuning::default() => {
                Err(refused(reason))
            }
            (Wanted::Best | Wanted::Gather | Wanted::GatherMany, Ok(plan)) => Ok(plan),
            (Wanted::Gather | Wanted::GatherMany, Err(reason)) => Err(Error::Unsupported {
                backend: "cuda",
                expected: "a problem the gather kernel can serve".to_string(),
                found: reason,
            }),
            (Wanted::Best, Err(reason)) => channel(call, device, Some(reason)),
            (Wanted::Channel, _) => channel(call, device, None),
        }
    }
}

fn channel(call: &Forward<'_>, device: DeviceSize, reason: Option<String>) -> Result<Plan> {
    let sizes = call.problem.sizes();
    let level_capacity = fit::expect_any_kernel(&call.problem)?;
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    let (elements, value, locations) = (
        count(&sizes.out()),
        count(&sizes.value()),
        count(&sizes.sampling_locations()),
    );
    // Less than half of what 32 bits count, so that the step beyond the last element does not come round.
    let dense = rows_are_dense(call)
        && call.problem.value().is_contiguous()
        && [elements, value, locations]
            .iter()
            .all(|&count| count < 1 << 31);
    let blocks_needed = elements.div_ceil(CHANNEL_THREADS as usize);
    // Enough to fill any device many times over; threads loop over the rest.
    let most = device.multiprocessors as usize * 64;
    Ok(Plan {
        kernel: Specialised::Channel(Channel {
            types: fit::types(&call.problem),
            strided: !dense,
            level_capacity,
        }),
        blocks: blocks_needed.clamp(1, most.max(1)) as u32,
        threads: CHANNEL_THREADS,
        shared_bytes: 0,
        reason,
        schedule: None,
    })
}

/// Whether everything but `value` lies in row-major order without gaps.
fn rows_are_dense(call: &Forward<'_>) -> bool {
    call.problem.sampling_locations().is_contiguous()
        && call.problem.attention_weights().is_contiguous()
        && call.out.layout().is_contiguous()
}

/// The plan for the gather kernel, or in words why it cannot serve the call.
fn gather(
    call: &Forward<'_>,
    device: DeviceSize,
    wanted: Wanted,
    tuning: &ForwardTuning,
) -> Fit<Plan> {
    let (problem, inputs) = (&call.problem, &call.inputs);
    let sizes = problem.sizes();
    let pixel_units = fit::expect_gather(problem, inputs)?;
    aligned(
        "out",
        call.out.as_mut_ptr(),
        call.out.layout(),
        &[0, 1],
        &[2],
        16,
    )?;

    // Too few rows to fill the device with warps: share each row's samples among more of them.
    let kind = fit::kind(problem);
    let rows = sizes.images * sizes.queries * sizes.heads;
    let split = match wanted {
        Wanted::GatherMany => 1,
        _ => kind.split(rows, device.multiprocessors),
    };
    let mut gather = kind.gather(pixel_units as u32, split);
    gather.dense = rows_are_dense(call);
    let samples = |per_lane: u32| {
        fit::expect_samples(
            (
                problem.sampling_locations(),
                inputs.sampling_locations.as_ptr(),
            ),
            (
                problem.attention_weights(),
                inputs.attention_weights.as_ptr(),
            ),
            per_lane as usize,
        )
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
        let levels = problem.levels();
        let kept = match (wanted, tuning.keep) {
            (Wanted::GatherMany, _) | (_, ALWAYS) => Kept::of(levels, &keeping, device),
            _ => Kept::where_it_pays(levels, &keeping, &with_kept, device),
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
        kernel: Specialised::Gather(gather),
        blocks,
        threads: gather.threads,
        shared_bytes,
        reason: None,
        schedule: Some(schedule),
    })
}

impl Cuda {
    /// What [`crate::msda::forward`] would do with these tensors.
    pub fn explain_forward(&self, inputs: Inputs<'_>, out: ViewMut<'_>) -> Result<Plan> {
        self.plan_forward(&Forward::new(inputs, out)?)
    }

    fn plan_forward(&self, call: &Forward<'_>) -> Result<Plan> {
        let by_table = || {
            let problem = &call.problem;
            let (class, dtype) = (Class::of_msda(problem.sizes()), problem.value().dtype());
            let entry = self.chosen(&tuning::FORWARD, class, dtype)?;
            Ok(entry.map(|entry| ForwardTuning::of(&entry.choice)))
        };
        self.planned(self.asked.msda_forward(), by_table, |tuning| {
            Plan::new(call, self.size(), self.kernel, tuning)
        })
    }

    /// Queues the kernel. Nothing is allocated and nobody waits, once the kernel is loaded.
    pub(crate) fn msda_forward(&self, call: &Forward<'_>) -> Result<()> {
        let sizes = call.problem.sizes();
        if sizes.images * sizes.queries * sizes.heads == 0 {
            return Ok(());
        }
        let plan = self.plan_forward(call)?;
        let capacity = match plan.kernel {
            Specialised::Channel(channel) => Some(channel.level_capacity),
            _ => None,
        };
        let ready = Ready {
            kernel: kernels::load(self.context, &plan.kernel.into())?,
            arguments: Held::new(&call.problem, &call.inputs, Some(&call.out), capacity),
            plan,
        };
        // SAFETY: the call has been checked, and whoever made its views answers for the memory behind them.
        unsafe { ready.launch(self) }?;
        repeated::remember(self, call, ready);
        Ok(())
    }
}

/// All a launch takes.
pub(super) struct Ready {
    plan: Plan,
    kernel: Kernel,
    arguments: Held,
}

impl Ready {
    /// The same for another call like the one it was made for.
    pub fn point_at(&mut self, addresses: Addresses) {
        self.arguments.point_at(addresses);
    }

    /// Queues the kernel.
    ///
    /// # Safety
    /// What it was made for, or pointed at since, is a call that was checked, on this device, and the memory of its
    /// tensors is there until the stream has done the work.
    pub unsafe fn launch(&self, cuda: &Cuda) -> Result<()> {
        let plan = &self.plan;
        let schedule = plan.schedule.as_ref().map(pointer);
        let mut parameters = [
            self.arguments.pointer(),
            schedule.unwrap_or(std::ptr::null_mut()),
        ];
        let declared = 1 + usize::from(schedule.is_some());
        // SAFETY: the parameters are what the kernel of this plan declares, laid out as it does; the rest as the caller
        // promises.
        let launched = unsafe {
            kernels::launch_loaded(
                cuda,
                &self.kernel,
                [plan.blocks, 1],
                plan.threads,
                plan.shared_bytes,
                &mut parameters[..declared],
            )
        };
        Ok(launched?)
    }
}
