//! A CUDA device, and the kernels that would be launched there.

use fourtap::cuda::{DeviceSize, SpecialisedKernel};
use serde::Serialize;

use super::occupancy::{Block, Multiprocessor, Occupancy};
use super::resources::KernelResources;

/// A CUDA device by what explanations need of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDesc {
    /// Its name.
    pub name: String,
    /// What the choice of kernels depends on.
    pub size: DeviceSize,
    /// Compute capability.
    pub capability: (u32, u32),
}

/// A kernel and its launch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelUse {
    /// Its name.
    pub name: String,
    /// Blocks launched.
    pub blocks: u32,
    /// Threads of each.
    pub threads: u32,
    /// What it takes, if anybody knows.
    pub taken: Option<KernelResources>,
    /// How many a multiprocessor holds, if that is known.
    pub occupancy: Option<Occupancy>,
    /// Bytes of neighbours a thread can ask for before it needs the first, if it gathers.
    pub in_flight_bytes_a_thread: Option<u64>,
}

impl KernelUse {
    /// Of so many blocks and threads of each, with so many bytes of shared memory asked for beyond what is declared.
    pub fn new(
        kernel: &dyn SpecialisedKernel,
        device: &DeviceDesc,
        [blocks, threads]: [u32; 2],
        asked: u32,
    ) -> Self {
        let mut taken = KernelResources::by(kernel, device.capability);
        if let Some(taken) = &mut taken {
            taken.shared_bytes += asked;
        }
        let held = |taken: &KernelResources| {
            Multiprocessor::of(device.capability)?.holds(Block {
                threads,
                registers: taken.registers,
                shared_bytes: taken.shared_bytes,
            })
        };
        KernelUse {
            name: kernel.to_string(),
            blocks,
            threads,
            occupancy: taken.as_ref().and_then(held),
            taken,
            in_flight_bytes_a_thread: None,
        }
    }
}
