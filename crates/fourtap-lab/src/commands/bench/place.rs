//! Where benchmarks are measured.

use std::time::Duration;

use super::cpu::CpuBench;
use super::cuda::CudaBench;
use super::task::{BenchResult, Task};
use super::turns::served::Turns;
use crate::error::Result;
use crate::machine;
use crate::operators::Operator;
use crate::record::ProbeRecord;
use crate::target::Device;

/// Where benchmarks are measured.
#[derive(Debug)]
pub enum Place {
    /// On the processor.
    Cpu(CpuBench),
    /// On a device.
    Cuda(Box<CudaBench>),
}

impl Place {
    /// What the hardware can do at most for these operators, measured for about so long each.
    pub fn ceilings(
        &self,
        device: &Device,
        operators: &[&'static dyn Operator],
        budget: Duration,
    ) -> Vec<ProbeRecord> {
        match self {
            Place::Cpu(cpu) => cpu.ceilings(operators, budget),
            Place::Cuda(cuda) => cuda.ceilings(device, operators, budget),
        }
    }

    /// Bytes of the largest cache.
    pub fn cache_bytes(&self) -> u64 {
        match self {
            Place::Cpu(_) => machine::last_level_cache().unwrap_or(0),
            Place::Cuda(cuda) => cuda.l2_bytes(),
        }
    }

    /// Verifies, then computes when it is told to.
    pub fn in_turns(&self, task: &Task<'_>, turns: &mut Turns) -> Result<()> {
        match self {
            Place::Cpu(_) => super::cpu::in_turns(task, turns),
            Place::Cuda(cuda) => cuda.in_turns(task, turns),
        }
    }

    /// Verifies, then times.
    pub fn measured(&mut self, task: &Task<'_>, say: impl Fn(&str)) -> Result<BenchResult> {
        match self {
            Place::Cpu(cpu) => cpu.measured(task, say),
            Place::Cuda(cuda) => cuda.measured(task, say),
        }
    }
}
