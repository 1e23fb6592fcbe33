//! What would compute a case: the device, and the kernels chosen for it.

use fourtap::cuda::msda::{BackwardTuning, ForwardTuning, KernelVariant};
use serde::Serialize;

use super::Case;
use crate::choices::Choices;
use crate::cli::Direction;
use crate::error::Result;
use crate::explain::{DeviceDesc, KernelUse, Multiprocessor};

const LANES: u64 = 32;
/// Neighbours of a sample.
const NEIGHBOURS: u64 = 4;
/// Steps of which a lane of the kernel on tensor cores has asked for a vector of two rows of pixels each.
const STEPS_AHEAD: u64 = 4;
const ROWS_OF_PIXELS: u64 = 2;
/// Samples whose neighbours a lane of the gather kernel asks for before it needs the first.
const SAMPLES_AHEAD: u64 = 2;
const VECTOR_BYTES: u64 = 16;

/// What computes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Machine {
    /// The processor.
    Cpu,
    /// A CUDA device.
    Cuda {
        /// Its name.
        name: String,
        /// As in "9.0".
        compute_capability: String,
        /// Streaming multiprocessors.
        multiprocessors: u32,
        /// Bytes of L2 cache.
        l2_bytes: u32,
        /// What is launched, in order.
        kernels: Vec<KernelUse>,
        /// Why not faster kernels.
        reason: Option<String>,
        /// Whether backward sorts its samples.
        sorts: bool,
        /// Whether backward adds by atomic instructions.
        scatters: bool,
        /// Bytes of memory to work in.
        workspace_bytes: usize,
        /// Lanes of a multiprocessor that multiply and add in f32, if it is a kind that is known.
        f32_lanes: Option<u32>,
    },
}

impl Machine {
    /// A device with the kernels chosen for a case.
    pub fn cuda(case: &Case, device: &DeviceDesc) -> Result<Self> {
        let (_, entry) = Choices::on_device(&device.name, case.tuned_as());
        let choice = entry.map(|entry| &entry.choice);
        let (launches, reason, sorts, scatters, workspace_bytes) = match case.direction {
            Direction::Forward => {
                let tuning = choice.map_or_else(ForwardTuning::default, ForwardTuning::of);
                let plan = case.forward_plan(device.size, &tuning)?;
                let steps = plan.steps();
                let launches: Vec<_> = steps
                    .iter()
                    .map(|step| (step.kernel, step.blocks[0], step.threads, step.shared_bytes))
                    .collect();
                (launches, plan.reason, false, false, 0)
            }
            Direction::Backward => {
                let tuning = choice.map_or_else(BackwardTuning::default, BackwardTuning::of);
                let plan = case.backward_plan(device.size, &tuning)?;
                let steps = plan.steps();
                let sorts = steps
                    .iter()
                    .any(|step| matches!(step.kernel, KernelVariant::Sort(_)));
                let launches = steps
                    .iter()
                    .map(|step| (step.kernel, step.blocks[0], step.threads, 0));
                let scatters = !plan.is_deterministic();
                (
                    launches.collect(),
                    None,
                    sorts,
                    scatters,
                    plan.workspace_bytes(),
                )
            }
        };
        let used = |(kernel, blocks, threads, asked): (KernelVariant, u32, u32, u32)| KernelUse {
            in_flight_bytes_a_thread: in_flight(&kernel),
            ..KernelUse::new(&kernel, device, [blocks, threads], asked)
        };
        Ok(Machine::Cuda {
            name: device.name.clone(),
            compute_capability: crate::target::dotted(device.capability),
            multiprocessors: device.size.multiprocessors,
            l2_bytes: device.size.l2_bytes,
            kernels: launches.into_iter().map(used).collect(),
            reason,
            sorts,
            scatters,
            workspace_bytes,
            f32_lanes: Multiprocessor::of(device.capability).map(|one| one.f32_lanes),
        })
    }

    /// Kernels launched.
    pub fn launches(&self) -> usize {
        self.kernels().len()
    }

    /// What is launched, in order.
    pub fn kernels(&self) -> &[KernelUse] {
        match self {
            Machine::Cpu => &[],
            Machine::Cuda { kernels, .. } => kernels,
        }
    }

    /// Whether backward adds by atomic instructions.
    pub fn scatters(&self) -> bool {
        matches!(self, Machine::Cuda { scatters: true, .. })
    }

    /// Lanes of a multiprocessor that multiply and add in f32.
    pub fn f32_lanes(&self) -> Option<u32> {
        match self {
            Machine::Cpu => None,
            Machine::Cuda { f32_lanes, .. } => *f32_lanes,
        }
    }

    /// Bytes of neighbours that the whole device can wait for at a time, by a kernel that gathers.
    pub fn in_flight_bytes(&self, kernel: &KernelUse) -> Option<u64> {
        let Machine::Cuda {
            multiprocessors, ..
        } = self
        else {
            return None;
        };
        let held = u64::from(kernel.occupancy.as_ref()?.blocks) * u64::from(*multiprocessors);
        let blocks = held.min(u64::from(kernel.blocks));
        let warps = blocks * u64::from(kernel.threads).div_ceil(LANES);
        Some(warps * LANES * kernel.in_flight_bytes_a_thread?)
    }
}

fn in_flight(kernel: &KernelVariant) -> Option<u64> {
    match kernel {
        KernelVariant::Gather(_) => Some(SAMPLES_AHEAD * NEIGHBOURS * VECTOR_BYTES),
        KernelVariant::Matrix(_) => Some(STEPS_AHEAD * ROWS_OF_PIXELS * VECTOR_BYTES),
        KernelVariant::Channel(channel) => Some(NEIGHBOURS * channel.types.value.size() as u64),
        _ => None,
    }
}
