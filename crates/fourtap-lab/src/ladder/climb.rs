//! Verifying and timing rungs.

use std::time::Duration;

use fourtap::Backend;
use fourtap::cuda::Cuda;
use fourtap::msda::Inputs;

use super::plan::Choice;
use super::small::SMALL;
use super::trial::{Ready, Tensors, shape_of};
use super::{Contender, Rung};
use crate::array::Array;
use crate::cuda::{DeviceTrial, Stopwatch, Timed};
use crate::error::Result;
use crate::record::{Against, RungLaunch, SmallProblems};
use crate::statistics::median;
use crate::trial::Trial;
use crate::verification::{Rule, Verification, verify_forward};

/// Turns in which a rung and the one it changes are timed, and pairs of replays of a turn.
const TURNS: usize = 5;
const PAIRS: usize = 8;

/// A contender that could be made ready for a problem.
#[derive(Debug)]
enum Runner<'a> {
    Rung(Box<Ready>, Box<Tensors<'a>>),
    Shipped(Box<DeviceTrial<'a>>),
}

impl<'a> Runner<'a> {
    fn new(
        contender: &Contender,
        choice: &Choice,
        trial: &'a Trial<'a>,
        cuda: &Cuda,
    ) -> Result<std::result::Result<Self, String>> {
        let Contender::Rung(rung) = contender else {
            let device = DeviceTrial::new(trial, cuda.context())?;
            return Ok(Ok(Runner::Shipped(Box::new(device))));
        };
        let shape = match shape_of(trial) {
            Ok(shape) => shape,
            Err(words) => return Ok(Err(words)),
        };
        let tensors = Tensors::new(trial, cuda)?;
        let ready = Ready::new(rung, &shape, choice, &tensors, cuda)?;
        Ok(ready.map(|ready| Runner::Rung(Box::new(ready), Box::new(tensors))))
    }

    fn queue(&mut self, cuda: &Cuda, prepare: bool) -> Result<()> {
        match self {
            Runner::Rung(ready, tensors) => ready.queue(tensors, cuda, prepare),
            Runner::Shipped(device) => device.queue(cuda),
        }
    }

    fn poison(&mut self, cuda: &Cuda) -> Result<()> {
        match self {
            Runner::Rung(_, tensors) => tensors.poison(cuda),
            Runner::Shipped(device) => device.poison(cuda.stream()),
        }
    }

    fn download(&self) -> Result<Vec<Array>> {
        match self {
            Runner::Rung(_, tensors) => tensors.download(),
            Runner::Shipped(device) => device.download(),
        }
    }

    /// Computes once into what was NaN before.
    fn computed(&mut self, stopwatch: &Stopwatch) -> Result<Vec<Array>> {
        stopwatch.once(|cuda| {
            self.poison(cuda)?;
            self.queue(cuda, true)
        })?;
        self.download()
    }
}

/// What a contender did with one problem.
#[derive(Debug, Default)]
pub struct Climbed {
    /// Why it has no plan for the problem.
    pub refused: Option<String>,
    /// How near the oracle its result is.
    pub verification: Option<Verification>,
    /// All its steps.
    pub hot: Option<Timed>,
    /// Without those that depend on value alone.
    pub prepared: Option<Timed>,
    /// What was launched.
    pub launches: Vec<RungLaunch>,
    /// Memory it works in.
    pub scratch_bytes: u64,
}

/// What to do with a problem.
#[derive(Clone, Copy, Debug)]
pub struct Climb<'a> {
    /// The device.
    pub stopwatch: &'a Stopwatch,
    /// Of the rows that are compared.
    pub seed: u64,
    /// Most time for one timing; none to compute and verify only.
    pub budget: Option<Duration>,
}

impl Climb<'_> {
    /// Verifies a contender on a problem; only if it is right, times it.
    pub fn climbed(
        &self,
        contender: &Contender,
        choice: &Choice,
        trial: &Trial<'_>,
    ) -> Result<Climbed> {
        let mut climbed = Climbed::default();
        let cuda = self.stopwatch.cuda();
        let mut runner = match Runner::new(contender, choice, trial, cuda)? {
            Ok(runner) => runner,
            Err(words) => {
                climbed.refused = Some(words);
                return Ok(climbed);
            }
        };
        if let Runner::Rung(ready, _) = &runner {
            climbed.launches = ready.launches.clone();
            climbed.scratch_bytes = ready.scratch_bytes;
        }
        let before = runner.computed(self.stopwatch)?;
        let rule = contender.rule();
        let verification = verify_forward(trial, &before, Some(self.seed), rule)?;
        let (Some(budget), true) = (self.budget, verification.passed) else {
            climbed.verification = Some(verification);
            return Ok(climbed);
        };
        // So that it is seen if what is timed does not compute.
        self.stopwatch.once(|cuda| runner.poison(cuda))?;
        let hot = self
            .stopwatch
            .hot(budget, |cuda| runner.queue(cuda, true))?;
        let after = runner.download()?;
        climbed.verification = Some(match before[0].bytes() == after[0].bytes() {
            true => verification,
            false => Verification::failed("the timed computations gave other bits".to_string()),
        });
        if before[0].bytes() != after[0].bytes() {
            return Ok(climbed);
        }
        climbed.hot = Some(hot);
        if matches!(&runner, Runner::Rung(ready, _) if ready.prepares()) {
            let timed = self
                .stopwatch
                .hot(budget, |cuda| runner.queue(cuda, false))?;
            climbed.prepared = Some(timed);
        }
        Ok(climbed)
    }

    /// Times a rung in turns with the one it changes; both were right before.
    pub fn against(
        &self,
        rung: &Rung,
        choice: &Choice,
        base: &Rung,
        trial: &Trial<'_>,
    ) -> Result<Option<Against>> {
        let cuda = self.stopwatch.cuda();
        let base_choice = Choice::new(base.parameters, &[]);
        let of_base = Runner::new(&Contender::Rung(*base), &base_choice, trial, cuda)?;
        let of_rung = Runner::new(&Contender::Rung(*rung), choice, trial, cuda)?;
        let (Ok(mut of_base), Ok(mut of_rung)) = (of_base, of_rung) else {
            return Ok(None);
        };
        let base_result = of_base.computed(self.stopwatch)?;
        if !verify_forward(trial, &base_result, Some(self.seed), Rule::Operator)?.passed {
            return Ok(None);
        }
        let ratios = self.stopwatch.ratios(
            TURNS * PAIRS,
            |cuda| of_base.queue(cuda, true),
            |cuda| of_rung.queue(cuda, true),
        )?;
        let turns: Vec<f64> = ratios.chunks(PAIRS).map(median).collect();
        Ok(Some(Against {
            rung: base.name.to_string(),
            ratio: median(&turns),
            low: turns.iter().copied().fold(f64::INFINITY, f64::min),
            high: turns.iter().copied().fold(0.0, f64::max),
            turns: TURNS,
        }))
    }

    /// Holds a contender to every element of the small problems; in words, what it got wrong.
    pub fn small(
        &self,
        contender: &Contender,
        choice: &Choice,
    ) -> Result<std::result::Result<SmallProblems, String>> {
        let mut found = SmallProblems::default();
        for (number, small) in SMALL.iter().enumerate() {
            let tensors = small.tensors(self.seed ^ number as u64)?;
            let inputs = Inputs {
                value: tensors.value.view(),
                levels: (&tensors.levels).into(),
                sampling_locations: tensors.locations.view(),
                attention_weights: tensors.weights.view(),
            };
            let trial = Trial::forward(Backend::Cuda(*self.stopwatch.cuda()), inputs)?;
            let mut runner = match Runner::new(contender, choice, &trial, self.stopwatch.cuda())? {
                Ok(runner) => runner,
                Err(words) => {
                    found.refused.push(words);
                    continue;
                }
            };
            let result = runner.computed(self.stopwatch)?;
            let verification = verify_forward(&trial, &result, None, contender.rule())?;
            if let Some(wrong) = verification.found {
                return Ok(Err(format!("{}: {wrong}", tensors.words)));
            }
            found.right += 1;
            found.elements += result[0].len();
        }
        found.refused.sort();
        found.refused.dedup();
        Ok(match found.right {
            0 => Err(format!(
                "it refuses every small problem: {}",
                found.refused.join("; ")
            )),
            _ => Ok(found),
        })
    }
}
