//! Verifying and timing rungs.

use std::time::Duration;

use fourtap::cuda::Cuda;
use fourtap_lab::extension::record::{PairedComparison, RungLaunch, SmallProblems};
use fourtap_lab::extension::{
    Array, DeviceTiming, Error, Result, Rule, Stopwatch, Verification, median,
};

use crate::numbers::{Numbers, small_problems};
use crate::plan::Choice;
use crate::rung::{Contender, Rung};
use crate::trial::{LoadedRung, Tensors};

/// Turns in which a rung and the one it changes are timed, and pairs of replays of a turn.
const TURNS: usize = 5;
const PAIRS: usize = 8;

/// A contender that could be made ready for a problem.
#[derive(Debug)]
pub struct Runner<'a> {
    tensors: Tensors<'a>,
    /// None for what the library ships.
    ready: Option<LoadedRung>,
}

impl<'a> Runner<'a> {
    /// With its kernels loaded; in words if it has no plan for the problem.
    pub fn new(
        contender: &Contender,
        choice: &Choice,
        numbers: &'a Numbers,
        cuda: &Cuda,
    ) -> Result<std::result::Result<Self, String>> {
        let tensors = Tensors::new(numbers, cuda)?;
        let rung = match contender {
            Contender::Rung(rung) => rung,
            Contender::Shipped(_) => {
                return Ok(Ok(Runner {
                    tensors,
                    ready: None,
                }));
            }
            // Its process is told what to compute, not this one.
            Contender::Library(_) => return Ok(Err("it is not ours to launch".to_string())),
        };
        let shape = match numbers.shape()? {
            Ok(shape) => shape,
            Err(words) => return Ok(Err(words)),
        };
        let ready = LoadedRung::new(rung, &shape, choice, &tensors, cuda)?;
        Ok(ready.map(|ready| Runner {
            tensors,
            ready: Some(ready),
        }))
    }

    /// Queues one computation; without its preparation, that of an earlier one is used.
    pub fn queue(&mut self, cuda: &Cuda, prepare: bool) -> Result<()> {
        match &mut self.ready {
            Some(ready) => ready.queue(&mut self.tensors, cuda, prepare),
            None => self.tensors.queue_shipped(cuda),
        }
    }

    /// Makes the result NaN, in the order of the stream's work.
    pub fn poison(&mut self, cuda: &Cuda) -> Result<()> {
        self.tensors.poison(cuda)
    }

    /// Copies the result back. Work on non-blocking streams must be waited for first.
    pub fn download(&self) -> Result<Array> {
        self.tensors.download()
    }

    /// Computes once into what was NaN before; in words if the library cannot do it.
    pub fn computed(
        &mut self,
        stopwatch: &Stopwatch,
    ) -> Result<std::result::Result<Array, String>> {
        let queued = stopwatch.once(|cuda| {
            self.tensors.poison(cuda)?;
            self.queue(cuda, true)
        });
        match queued {
            Err(Error::Library(error)) if matches!(*error, fourtap::Error::Unsupported { .. }) => {
                Ok(Err(error.to_string()))
            }
            queued => queued.and_then(|()| self.tensors.download()).map(Ok),
        }
    }
}

/// What a contender did with one problem.
#[derive(Debug, Default)]
pub struct RungResult {
    /// Why it has no plan for the problem.
    pub refused: Option<String>,
    /// The error of its result against the oracle.
    pub verification: Option<Verification>,
    /// All its steps.
    pub hot: Option<DeviceTiming>,
    /// Without those that depend on value alone.
    pub prepared: Option<DeviceTiming>,
    /// What was launched.
    pub launches: Vec<RungLaunch>,
    /// Memory it works in.
    pub scratch_bytes: u64,
}

/// What to do with a problem.
#[derive(Clone, Copy, Debug)]
pub struct Measurement<'a> {
    /// The device.
    pub stopwatch: &'a Stopwatch,
    /// Of the rows that are compared.
    pub seed: u64,
    /// Most time for one timing; none to compute and verify only.
    pub budget: Option<Duration>,
}

impl Measurement<'_> {
    /// Verifies a contender on a problem; only if it is right, times it.
    pub fn measured(
        &self,
        contender: &Contender,
        choice: &Choice,
        numbers: &Numbers,
    ) -> Result<RungResult> {
        let mut result = RungResult::default();
        let cuda = self.stopwatch.cuda();
        let mut runner = match Runner::new(contender, choice, numbers, cuda)? {
            Ok(runner) => runner,
            Err(words) => {
                result.refused = Some(words);
                return Ok(result);
            }
        };
        if let Some(ready) = &runner.ready {
            result.launches = ready.launches.clone();
            result.scratch_bytes = ready.scratch_bytes;
        }
        let before = match runner.computed(self.stopwatch)? {
            Ok(before) => before,
            Err(words) => {
                result.refused = Some(words);
                return Ok(result);
            }
        };
        let rule = contender.rule();
        let verification = numbers.verify(&before, Some(self.seed), rule)?;
        let (Some(budget), true) = (self.budget, verification.passed) else {
            result.verification = Some(verification);
            return Ok(result);
        };
        // So that it is seen if what is timed does not compute.
        self.stopwatch.once(|cuda| runner.tensors.poison(cuda))?;
        let hot = self
            .stopwatch
            .hot(budget, |cuda| runner.queue(cuda, true))?;
        let after = runner.tensors.download()?;
        result.verification = Some(match before.bytes() == after.bytes() {
            true => verification,
            false => Verification::failed(
                "the timed computations are not bitwise equal to the first".to_string(),
            ),
        });
        if before.bytes() != after.bytes() {
            return Ok(result);
        }
        result.hot = Some(hot);
        if runner.ready.as_ref().is_some_and(LoadedRung::prepares) {
            let timed = self
                .stopwatch
                .hot(budget, |cuda| runner.queue(cuda, false))?;
            result.prepared = Some(timed);
        }
        Ok(result)
    }

    /// Times a rung alternately with the one it changes; both were right before.
    pub fn against(
        &self,
        rung: &Rung,
        choice: &Choice,
        base: &Rung,
        numbers: &Numbers,
    ) -> Result<Option<PairedComparison>> {
        let cuda = self.stopwatch.cuda();
        let base_choice = Choice::new(base.parameters, &[]);
        let of_base = Runner::new(&Contender::Rung(*base), &base_choice, numbers, cuda)?;
        let of_rung = Runner::new(&Contender::Rung(*rung), choice, numbers, cuda)?;
        let (Ok(mut of_base), Ok(mut of_rung)) = (of_base, of_rung) else {
            return Ok(None);
        };
        let Ok(of_base_result) = of_base.computed(self.stopwatch)? else {
            return Ok(None);
        };
        if !numbers
            .verify(&of_base_result, Some(self.seed), Rule::Operator)?
            .passed
        {
            return Ok(None);
        }
        let ratios = self.stopwatch.ratios(
            TURNS * PAIRS,
            |cuda| of_base.queue(cuda, true),
            |cuda| of_rung.queue(cuda, true),
        )?;
        let turns: Vec<f64> = ratios.chunks(PAIRS).map(median).collect();
        Ok(Some(PairedComparison {
            rung: base.name.to_string(),
            ratio: median(&turns),
            low: turns.iter().copied().fold(f64::INFINITY, f64::min),
            high: turns.iter().copied().fold(0.0, f64::max),
            turns: TURNS,
        }))
    }

    /// Holds a contender to every element of the small problems; in words, what it got wrong. It may refuse them all.
    pub fn small(
        &self,
        contender: &Contender,
        choice: &Choice,
    ) -> Result<std::result::Result<SmallProblems, String>> {
        let mut found = SmallProblems::default();
        for (number, small) in small_problems(contender.operator()).iter().enumerate() {
            let numbers = small.numbers(self.seed ^ number as u64)?;
            let runner = Runner::new(contender, choice, &numbers, self.stopwatch.cuda())?;
            let result = match runner {
                Ok(mut runner) => runner.computed(self.stopwatch)?,
                Err(words) => Err(words),
            };
            let result = match result {
                Ok(result) => result,
                Err(words) => {
                    found.refused.push(words);
                    continue;
                }
            };
            let verification = numbers.verify(&result, None, contender.rule())?;
            if let Some(wrong) = verification.found {
                return Ok(Err(format!("{}: {wrong}", small.in_words())));
            }
            found.right += 1;
            found.elements += result.element_count();
        }
        found.refused.sort();
        found.refused.dedup();
        Ok(Ok(found))
    }
}
