//! Benchmarks on the CPU.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::task::{BenchResult, Task};
use super::turns::served::Turns;
use crate::array::Array;
use crate::choices::Choices;
use crate::computation::{Computation, InputViews};
use crate::error::Result;
use crate::machine;
use crate::measure::{measure, repeat};
use crate::operators::Operator;
use crate::probe::{self, Setting, found_by};
use crate::record::{Conditions, KernelUsed, ProbeRecord, Timing};
use crate::target::Device;

/// The probes that bound a result.
const CEILINGS: [&str; 3] = ["copy", "dram-read", "fma-f32"];

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
struct BufferSet {
    inputs: Vec<Array>,
    outputs: Vec<Array>,
}

impl CpuBench {
    /// To time on this processor.
    pub fn new(device: &Device) -> Self {
        CpuBench {
            device: device.clone(),
        }
    }

    /// The ceilings that results of these operators are compared with.
    pub fn ceilings(
        &self,
        operators: &[&'static dyn Operator],
        budget: Duration,
    ) -> Vec<ProbeRecord> {
        let special = operators.iter().flat_map(|it| it.ceilings(false));
        let names: Vec<&str> = CEILINGS.iter().chain(special).copied().collect();
        let setting = Setting {
            device: &self.device,
            budget,
            stopwatch: None,
        };
        found_by(&probe::cpu::probes(), &names, &setting)
    }

    /// Verifies, then times.
    pub fn measured(&self, task: &Task<'_>, say: impl Fn(&str)) -> Result<BenchResult> {
        say("verifying");
        let mut outputs = task.trial.outputs()?;
        task.trial.compute(&mut outputs)?;
        let mut measured = BenchResult::new(self.kernel(task.trial)?, task.verified(&outputs)?);
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
        say("timing cold, on rotating inputs");
        measured.cold = cold(task, &outputs)?;
        Ok(measured)
    }

    fn kernel(&self, trial: &dyn Computation) -> Result<KernelUsed> {
        let simd = self.device.simd.clone().unwrap_or_default();
        let threads = self.device.threads.unwrap_or(1);
        let mut words = format!("cpu-{simd}, {threads} threads");
        let mut parameters = BTreeMap::from([
            ("simd".to_string(), simd.into()),
            ("threads".to_string(), threads.into()),
        ]);
        if let Some(entry) = Choices::of(trial).entry {
            words += &format!(", tuned: {}", entry.choice);
            parameters.insert("tuned".to_string(), entry.choice.into());
        }
        Ok(KernelUsed {
            words,
            fingerprint: None,
            parameters,
            asked: None,
            mode: None,
            reproducible: true,
            workspace_bytes: None,
        })
    }
}

/// Verifies, then computes when it is told to.
pub fn in_turns(task: &Task<'_>, turns: &mut Turns) -> Result<()> {
    let mut outputs = task.trial.outputs()?;
    task.trial.compute(&mut outputs)?;
    let verification = task.verified(&outputs)?;
    turns.ready(task.name, verification.found.clone())?;
    if !verification.passed {
        return Ok(());
    }
    let mut timed = task.trial.outputs()?;
    task.trial.compute(&mut timed)?;
    let mut last = None;
    while turns.goes_on(last)? {
        let begun = Instant::now();
        task.trial.compute(&mut timed)?;
        #[cfg(feature = "fault-injection")]
        turns.linger(begun);
        last = Some(begun.elapsed().as_secs_f64() * 1e3);
    }
    turns.done(task.still_right(true, &outputs, &timed)?)
}

/// Many copies of the inputs in turn, so that none is in a cache when it is read again. None where a cache would hold
/// them all, or memory does not.
fn cold(task: &Task<'_>, right: &[Array]) -> Result<Option<Timing>> {
    let one = task.trial.compulsory_bytes().max(1);
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
        match BufferSet::of(task.trial)? {
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

impl BufferSet {
    /// None if a tensor has gaps, as none has that is made here or read from a file.
    fn of(trial: &dyn Computation) -> Result<Option<Self>> {
        let mut inputs = Vec::new();
        for (name, view) in trial.tensors() {
            match Array::of(name, &view)? {
                Some(copy) => inputs.push(copy),
                None => return Ok(None),
            }
        }
        let outputs = trial.outputs()?;
        Ok(Some(BufferSet { inputs, outputs }))
    }

    /// Milliseconds of one computation.
    fn compute(&mut self, like: &dyn Computation) -> Result<f64> {
        let inputs = InputViews {
            tensors: self.inputs.iter().map(Array::view).collect(),
            mask: like.mask(),
        };
        let outputs = self.outputs.iter_mut().map(Array::view_mut).collect();
        let begun = Instant::now();
        like.prepare(&like.backend(), &inputs, outputs)?.launch()?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }
}
