//! Choices tried: each verified before it is timed, and the fastest timed alternately.

mod cpu;
mod cuda;

use std::time::{Duration, Instant};

use fourtap::tuning::{Choice, Space};

use super::{AttemptResult, Engine, Finals, Subject};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::record::Timing;
use crate::statistics::FEWEST_SAMPLES;
use crate::verification::Verification;

#[cfg(feature = "fault-injection")]
use super::faults::Faults;

/// More rounds than this tell no more.
const MOST_ROUNDS: usize = 400;

/// How a subject is computed with one choice or another.
pub trait Bench {
    /// Computes once, into tensors of NaN.
    fn computed(&mut self, choice: &Choice) -> Result<Vec<Array>>;

    /// Whether it is bitwise reproducible.
    fn repeats_bits(&mut self, choice: &Choice) -> Result<bool>;

    /// The error of a result against the oracle.
    fn verified(&self, outputs: &[Array], seed: u64) -> Result<Verification>;

    /// Computes repeatedly for about so long; with what the last gave.
    fn timed(&mut self, choice: &Choice, budget: Duration) -> Result<(Timing, Vec<Array>)>;

    /// Times choices alternately: `next` is told the milliseconds of the one it named last, at first none, and names the
    /// next, or none to end.
    fn in_turns(
        &mut self,
        choices: &[Choice],
        next: &mut dyn FnMut(Option<f64>) -> Option<usize>,
    ) -> Result<()>;
}

/// Tries choices about a subject.
pub struct ChoiceTester {
    bench: Box<dyn Bench>,
    space: &'static Space,
    /// Whether it declares which choices change bits; kernels of other crates do not.
    declares_bits: bool,
    seed: u64,
    /// What the defaults give: whether that is always the same, the numbers, and how right they are.
    usual: Option<(bool, Vec<Array>, Verification)>,
    #[cfg(feature = "fault-injection")]
    faults: Faults,
}

impl ChoiceTester {
    /// Ready to try choices on random numbers of this seed.
    pub fn new(subject: &Subject, seed: u64) -> Result<Self> {
        let tensors = || subject.tensors(seed);
        let bench: Box<dyn Bench> = match &subject.engine {
            Engine::Cpu => Box::new(cpu::CpuTuneBench::new(tensors()?, subject.direction)),
            Engine::Cuda(gpu) => {
                Box::new(cuda::CudaTuneBench::new(subject, gpu.ordinal, tensors()?)?)
            }
            Engine::External(kernel, gpu) => kernel.bench(subject, gpu.ordinal, seed)?,
        };
        Ok(ChoiceTester {
            bench,
            space: subject.space,
            declares_bits: !matches!(subject.engine, Engine::External(..)),
            seed,
            usual: None,
            #[cfg(feature = "fault-injection")]
            faults: Faults::asked_for(&subject.engine)?,
        })
    }

    /// Verifies a choice; if it is right, times it.
    pub fn attempt(&mut self, choice: &Choice, budget: Duration) -> Result<AttemptResult> {
        #[cfg(feature = "fault-injection")]
        self.faults.strike(choice)?;
        if self.usual.is_none() {
            let defaults = self.space.defaults();
            let repeats = self.bench.repeats_bits(&defaults)?;
            let outputs = self.bench.computed(&defaults)?;
            let verification = self.bench.verified(&outputs, self.seed)?;
            self.usual = Some((repeats, outputs, verification));
        }
        let repeats = self.bench.repeats_bits(choice)?;
        let outputs = self.bench.computed(choice)?;
        #[cfg(feature = "fault-injection")]
        let outputs = self.faults.spoiled(choice, outputs)?;
        let Some((usual_repeats, usual, usual_verified)) = &self.usual else {
            return Err(fourtap_admin::Error::NoCache.into());
        };
        let same = are_same(usual, &outputs);
        let verification = match same {
            // The very numbers that were compared before.
            true => usual_verified.clone(),
            false => self.bench.verified(&outputs, self.seed)?,
        };
        if !verification.passed {
            return Ok(AttemptResult::wrong(verification));
        }
        let keeps_bits = self.declares_bits && self.space.keeps_bits(choice);
        if !same && *usual_repeats && repeats && keeps_bits {
            let words = "it is not bitwise equal to the defaults".to_string();
            return Ok(AttemptResult::wrong(Verification::failed(words)));
        }
        let (timing, after) = self.bench.timed(choice, budget)?;
        #[cfg(feature = "fault-injection")]
        let timing = self.faults.slowed(choice, timing);
        let still_right = match repeats {
            true if are_same(&outputs, &after) => None,
            true => Some("the timed computations are not bitwise equal to the first".to_string()),
            false => self.bench.verified(&after, self.seed)?.found,
        };
        Ok(match still_right {
            None => AttemptResult::measured(verification, timing),
            Some(words) => AttemptResult::wrong(Verification::failed(words)),
        })
    }

    /// Times choices alternately until they are told apart, or for about so long.
    pub fn finals(&mut self, choices: &[Choice], budget: Duration) -> Result<Finals> {
        let mut rounds = Rounds::new(choices.len(), budget);
        self.bench.in_turns(choices, &mut |sample| {
            #[cfg(feature = "fault-injection")]
            let sample = sample.map(|it| it + self.faults.delay(&choices[rounds.index()]));
            rounds.next(sample)
        })?;
        Ok(rounds.finals)
    }
}

fn are_same(a: &[Array], b: &[Array]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.bytes() == b.bytes())
}

/// A choice that cannot be carried out after all.
fn refused(setting: &str, expected: String) -> Error {
    Error::Setting {
        setting: setting.to_string(),
        expected,
    }
}

/// Whose turn it is.
struct Rounds {
    finals: Finals,
    round: usize,
    place: usize,
    budget: Duration,
    begun: Option<Instant>,
}

impl Rounds {
    fn new(count: usize, budget: Duration) -> Self {
        Rounds {
            finals: Finals {
                samples_ms: vec![Vec::new(); count],
            },
            round: 0,
            place: 0,
            budget,
            begun: None,
        }
    }

    /// Each follows every other one equally often: what one leaves in the caches is not always the same one's.
    fn index(&self) -> usize {
        let count = self.finals.samples_ms.len();
        let step = match self.round % 2 {
            0 => self.place,
            _ => count - 1 - self.place,
        };
        (step + self.round / 2) % count
    }

    /// Takes the time of the one named last; names the next.
    fn next(&mut self, sample: Option<f64>) -> Option<usize> {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        if let Some(sample) = sample {
            let index = self.index();
            self.finals.samples_ms[index].push(sample);
            self.place += 1;
            if self.place == self.finals.samples_ms.len() {
                (self.place, self.round) = (0, self.round + 1);
                let is_over = self.round >= FEWEST_SAMPLES && begun.elapsed() >= self.budget;
                if is_over || self.round >= MOST_ROUNDS || self.finals.is_settled() {
                    return None;
                }
            }
        }
        Some(self.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_a_turn_in_every_round() {
        let mut rounds = Rounds::new(3, Duration::ZERO);
        let mut sample = None;
        let mut order = Vec::new();
        while let Some(index) = rounds.next(sample) {
            order.push(index);
            sample = Some(1.0 + index as f64);
        }
        assert_eq!(order.len(), 3 * FEWEST_SAMPLES);
        for round in order.chunks(3) {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
        }
        assert_ne!(order[..3], order[3..6]);
        for (index, row) in rounds.finals.samples_ms.iter().enumerate() {
            assert!(row.iter().all(|time| *time == 1.0 + index as f64));
        }
    }
}
