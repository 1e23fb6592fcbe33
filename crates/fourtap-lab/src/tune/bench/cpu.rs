//! On the processor, by its clock.

use std::time::{Duration, Instant};

use fourtap::Backend;
use fourtap::cpu::Cpu;
use fourtap::tuning::Choice;

use super::{Bench, refused};
use crate::array::Array;
use crate::cli::Direction;
use crate::computation::{Computation, TensorSet};
use crate::error::Result;
use crate::measure::repeat;
use crate::record::Timing;
use crate::verification::Verification;

/// A sample of the finals takes at least this long, so that the clock does not matter.
const LEAST_SAMPLE: Duration = Duration::from_millis(2);

pub struct CpuTuneBench {
    tensors: Box<dyn TensorSet>,
    pass: Direction,
}

type Runner<'a> = (Box<dyn Computation + 'a>, Vec<Array>);

impl CpuTuneBench {
    pub fn new(tensors: Box<dyn TensorSet>, pass: Direction) -> Self {
        CpuTuneBench { tensors, pass }
    }

    fn trial(&self, choice: &Choice) -> Result<Box<dyn Computation + '_>> {
        let cpu = Cpu::new().with_choice(choice);
        let cpu = cpu.map_err(|why| refused(&choice.to_string(), why))?;
        self.tensors.trial(Backend::Cpu(cpu), self.pass)
    }
}

impl Bench for CpuTuneBench {
    fn computed(&mut self, choice: &Choice) -> Result<Vec<Array>> {
        let trial = self.trial(choice)?;
        let mut outputs = trial.outputs()?;
        trial.compute(&mut outputs)?;
        Ok(outputs)
    }

    fn repeats_bits(&mut self, _: &Choice) -> Result<bool> {
        Ok(true)
    }

    fn verified(&self, outputs: &[Array], seed: u64) -> Result<Verification> {
        let trial = self.tensors.trial(Backend::Cpu(Cpu::new()), self.pass)?;
        trial.verified(outputs, seed)
    }

    fn timed(&mut self, choice: &Choice, budget: Duration) -> Result<(Timing, Vec<Array>)> {
        let trial = self.trial(choice)?;
        let mut outputs = trial.outputs()?;
        trial.compute(&mut outputs)?;
        let samples = repeat(budget, || {
            let begun = Instant::now();
            trial.compute(&mut outputs)?;
            Ok(begun.elapsed().as_secs_f64() * 1e3)
        })?;
        Ok((Timing::of(samples), outputs))
    }

    fn in_turns(
        &mut self,
        choices: &[Choice],
        next: &mut dyn FnMut(Option<f64>) -> Option<usize>,
    ) -> Result<()> {
        let mut runners: Vec<Runner<'_>> = Vec::new();
        for choice in choices {
            let trial = self.trial(choice)?;
            let mut outputs = trial.outputs()?;
            trial.compute(&mut outputs)?;
            runners.push((trial, outputs));
        }
        let once = |(trial, outputs): &mut Runner<'_>, times: u32| -> Result<f64> {
            let begun = Instant::now();
            for _ in 0..times {
                trial.compute(outputs)?;
            }
            Ok(begun.elapsed().as_secs_f64() * 1e3 / f64::from(times))
        };
        let mut fastest = f64::INFINITY;
        for runner in &mut runners {
            fastest = fastest.min(once(runner, 1)?);
        }
        let times = (LEAST_SAMPLE.as_secs_f64() * 1e3 / fastest).ceil();
        let times = times.clamp(1.0, 1e4) as u32;
        let mut last = None;
        while let Some(index) = next(last) {
            last = Some(once(&mut runners[index], times)?);
        }
        Ok(())
    }
}
