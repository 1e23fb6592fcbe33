//! Benchmarks on the CPU.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fourtap::{Backend, View};

use super::task::{Measured, Task};
use crate::array::Array;
use crate::error::Result;
use crate::machine;
use crate::measure::{measure, repeat};
use crate::probe::{self, Setting, found_by};
use crate::record::{Conditions, KernelUsed, ProbeRecord, Timing};
use crate::target::Device;
use crate::trial::Trial;

/// The probes that bound a result.
const CEILINGS: [&str; 4] = ["copy", "dram-read", "gather-128-l1", "fma-f32"];

/// Copies of the inputs in turn shall take this many times what the last-level cache holds.
const ROTATED: f64 = 1.5;

/// More copies than this are of so small a problem that a cache holds it whatever one does.
const MOST_SETS: u64 = 128;

/// The share of the memory that is free which the copies may take.
const MEMORY: u64 = 4;

/// A processor to time on.
#[derive(Debug)]
pub struct CpuBench {
    device: Device,
}

/// What a pass reads and writes, in memory of its own.
struct Copied {
    value: Array,
    sampling_locations: Array,
    attention_weights: Array,
    grad_out: Option<Array>,
    outputs: Vec<Array>,
}

impl CpuBench {
    /// To time on this processor.
    pub fn new(device: &Device) -> Self {
        CpuBench {
            device: device.clone(),
        }
    }

    /// What everything after is held against.
    pub fn ceilings(&self, budget: Duration) -> Vec<ProbeRecord> {
        let setting = Setting {
            device: &self.device,
            budget,
            stopwatch: None,
        };
        found_by(&probe::cpu::probes(), &CEILINGS, &setting)
    }

    /// Verifies, then times.
    pub fn measured(&self, task: &Task<'_>, say: impl Fn(&str)) -> Result<Measured> {
        say("verifying");
        let mut outputs = task.trial.outputs()?;
        task.trial.compute(&mut outputs)?;
        let mut measured = Measured::new(self.kernel(), task.verified(&outputs)?);
        if !measured.verification.passed {
            return Ok(measured);
        }
        say("timing");
        let mut timed = task.trial.outputs()?;
        let before = machine::reading();
        let hot = Timing::of(measure(task.trial, &mut timed, task.budget)?);
        let after = machine::reading();
        if let Some(found) = task.still_right(true, &outputs, &timed)? {
            measured.verification = crate::verification::Verification::failed(found);
            return Ok(measured);
        }
        measured.hot = Some(hot);
        measured.conditions = Some(Conditions { before, after });
        drop(timed);
        say("timing on inputs in turn");
        measured.cold = cold(task, &outputs)?;
        Ok(measured)
    }

    fn kernel(&self) -> KernelUsed {
        let simd = self.device.simd.clone().unwrap_or_default();
        let threads = self.device.threads.unwrap_or(1);
        KernelUsed {
            words: format!("cpu-{simd}, {threads} threads"),
            fingerprint: None,
            parameters: BTreeMap::from([
                ("simd".to_string(), simd.into()),
                ("threads".to_string(), threads.into()),
            ]),
            asked: None,
            mode: None,
            reproducible: true,
            workspace_bytes: None,
        }
    }
}

/// Many copies of the inputs in turn, so that none is in a cache when it is read again. None where a cache would hold
/// them all, or memory does not.
fn cold(task: &Task<'_>, right: &[Array]) -> Result<Option<Timing>> {
    let one = task.trial.traffic().compulsory_bytes.max(1);
    let Some(cache) = machine::last_level_cache() else {
        return Ok(None);
    };
    let sets = (ROTATED * cache as f64 / one as f64) as u64 + 1;
    let room = machine::memory_available().map_or(u64::MAX, |available| available / MEMORY);
    if sets > MOST_SETS || sets.saturating_mul(one) > room {
        return Ok(None);
    }
    let mut copies = Vec::new();
    for _ in 0..sets.max(2) {
        match Copied::of(task.trial)? {
            Some(copy) => copies.push(copy),
            None => return Ok(None),
        }
    }
    let mut turn = 0;
    let mut once = || {
        let count = copies.len();
        let milliseconds = copies[turn % count].compute(task.trial)?;
        turn += 1;
        Ok(milliseconds)
    };
    // A round that does not count: memory is given out when it is first touched.
    for _ in 0..sets {
        once()?;
    }
    let samples_ms = repeat(task.budget, once)?;
    for copy in &copies {
        if let Some(found) = task.still_right(true, right, &copy.outputs)? {
            return Err(task.wrong(&found));
        }
    }
    Ok(Some(Timing {
        input_sets: copies.len() as u32,
        ..Timing::of(samples_ms)
    }))
}

impl Copied {
    /// None if a tensor has gaps, as none has that is made here or read from a file.
    fn of(trial: &Trial<'_>) -> Result<Option<Self>> {
        let inputs = trial.inputs();
        let copied = |name, view: &View<'_>| Array::of(name, view);
        let (Some(value), Some(sampling_locations), Some(attention_weights)) = (
            copied("value", &inputs.value)?,
            copied("sampling_locations", &inputs.sampling_locations)?,
            copied("attention_weights", &inputs.attention_weights)?,
        ) else {
            return Ok(None);
        };
        let grad_out = match trial.grad_out() {
            Some(grad_out) => copied("grad_out", grad_out)?,
            None => None,
        };
        Ok(Some(Copied {
            value,
            sampling_locations,
            attention_weights,
            grad_out,
            outputs: trial.outputs()?,
        }))
    }

    /// Milliseconds of one computation.
    fn compute(&mut self, like: &Trial<'_>) -> Result<f64> {
        let mut inputs = *like.inputs();
        inputs.value = self.value.view();
        inputs.sampling_locations = self.sampling_locations.view();
        inputs.attention_weights = self.attention_weights.view();
        let backend: Backend = like.backend();
        let trial = match &self.grad_out {
            Some(grad_out) => Trial::backward(backend, inputs, grad_out.view())?,
            None => Trial::forward(backend, inputs)?,
        };
        let begun = Instant::now();
        trial.compute(&mut self.outputs)?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }
}
