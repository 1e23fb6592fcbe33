//! A rung of the ladder.

use std::time::Duration;

use fourtap::cuda::Cuda;
use fourtap::tuning::Choice;

use super::{Bench, Rehearsed, refused};
use crate::array::Array;
use crate::cuda::Stopwatch;
use crate::error::Result;
use crate::ladder::numbers::Numbers;
use crate::ladder::{Contender, Rung, Runner};
use crate::record::Timing;
use crate::verification::Verification;

pub struct OfRung<'a> {
    contender: Contender,
    stopwatch: Stopwatch,
    numbers: &'a Numbers,
}

impl<'a> OfRung<'a> {
    pub fn new(rung: Rung, ordinal: usize, numbers: &'a Numbers) -> Result<Self> {
        Ok(OfRung {
            contender: Contender::Rung(rung),
            stopwatch: Stopwatch::new(Cuda::new(ordinal).map_err(fourtap::Error::from)?)?,
            numbers,
        })
    }

    fn runner(&self, choice: &Choice) -> Result<Runner<'a>> {
        let cuda = self.stopwatch.cuda();
        let runner = Runner::new(&self.contender, choice, self.numbers, cuda)?;
        runner.map_err(|why| refused(&choice.to_string(), why))
    }
}

impl Bench for OfRung<'_> {
    fn computed(&mut self, choice: &Choice) -> Result<Vec<Array>> {
        let computed = self.runner(choice)?.computed(&self.stopwatch)?;
        let computed = computed.map_err(|why| refused(&choice.to_string(), why))?;
        Ok(vec![computed])
    }

    fn repeats_bits(&mut self, _: &Choice) -> Result<bool> {
        Ok(true)
    }

    fn harm(&mut self, rehearsed: &Rehearsed) -> Result<()> {
        rehearsed.harm(&self.stopwatch)
    }

    fn verified(&self, outputs: &[Array], seed: u64) -> Result<Verification> {
        let rule = self.contender.rule();
        self.numbers.verify(&outputs[0], Some(seed), rule)
    }

    fn timed(
        &mut self,
        choice: &Choice,
        budget: Duration,
        _: &Rehearsed,
    ) -> Result<(Timing, Vec<Array>)> {
        let mut runner = self.runner(choice)?;
        // So that it is seen if what is timed does not compute.
        self.stopwatch.once(|cuda| runner.poison(cuda))?;
        let timed = self
            .stopwatch
            .hot(budget, |cuda| runner.queue(cuda, true))?;
        Ok((timed.timing, vec![runner.download()?]))
    }

    fn in_turns(
        &mut self,
        choices: &[(Choice, Rehearsed)],
        next: &mut dyn FnMut(Option<f64>) -> Option<usize>,
    ) -> Result<()> {
        let runners = choices.iter().map(|(choice, _)| self.runner(choice));
        let mut runners = runners.collect::<Result<Vec<_>>>()?;
        self.stopwatch.in_turns(
            runners.len(),
            |cuda, index| runners[index].queue(cuda, true),
            next,
        )
    }
}
