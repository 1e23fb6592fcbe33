//! What a process of its own does: verify and time one choice, or time several in turns.

use std::thread;
use std::time::{Duration, Instant};

use fourtap::tuning::{Choice, Space};
use serde::{Deserialize, Serialize};

use super::{backend, print, subject};
use crate::array::Array;
use crate::cli::{ErrandArgs, Rehearsal};
use crate::commands::print_json;
use crate::computation::Computation;
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::isolation::end_with_parent;
use crate::measure::repeat;
use crate::record::{Outcome, Timing};
use crate::statistics::FEWEST_SAMPLES;
use crate::tune::{Finals, Numbers};
use crate::verification::Verification;

/// More rounds than this tell no more.
const MOST_ROUNDS: usize = 400;

/// A sample of the finals takes at least this long, so that the clock does not matter.
const LEAST_SAMPLE: Duration = Duration::from_millis(2);

/// What an attempt prints.
#[derive(Debug, Serialize, Deserialize)]
pub struct Found {
    /// How it ended.
    pub outcome: Outcome,
    /// Why there is no time.
    pub words: String,
    /// How near the oracle it is.
    pub verification: Option<Verification>,
    /// How long it takes.
    pub hot: Option<Timing>,
}

impl Found {
    fn wrong(verification: Verification) -> Self {
        Found {
            outcome: Outcome::Wrong,
            words: verification.found.clone().unwrap_or_default(),
            verification: Some(verification),
            hot: None,
        }
    }
}

/// Verifies a choice and times it.
pub fn attempt(arguments: &ErrandArgs) -> Result<ExitCode> {
    end_with_parent();
    let subject = subject(&arguments.kernel, &arguments.problem)?;
    let seed = arguments.problem.seed;
    let numbers = Numbers::new(&subject, seed)?;
    let choices = choices(arguments, subject.space)?;
    let Some(choice) = choices.first() else {
        return Err(refused("--choice", "a choice, found none".to_string()));
    };
    let rehearsed = Rehearsed::of(choice, &arguments.rehearse);
    rehearsed.end_early()?;
    let trial = numbers.trial(backend(choice).map_err(|why| refused(&choice.to_string(), why))?)?;
    let mut outputs = computed(&*trial)?;
    if rehearsed.is("wrong") {
        outputs = trial.outputs()?;
    }
    let verification = trial.verified(&outputs, seed)?;
    if !verification.passed {
        print_json(&Found::wrong(verification))?;
        return Ok(ExitCode::SUCCESS);
    }
    if subject.space.keeps_bits(choice) {
        let defaults = subject.space.defaults();
        let usual = backend(&defaults).map_err(|why| refused(&defaults.to_string(), why))?;
        let usual = computed(&*numbers.trial(usual)?)?;
        if !are_same(&usual, &outputs) {
            let words = "it gave other bits than the defaults".to_string();
            print_json(&Found::wrong(Verification::failed(words)))?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    let mut timed = trial.outputs()?;
    let budget = Duration::from_secs_f64(arguments.seconds);
    trial.compute(&mut timed)?;
    let samples = repeat(budget, || {
        let begun = Instant::now();
        rehearsed.dawdle();
        trial.compute(&mut timed)?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    })?;
    if !are_same(&outputs, &timed) {
        let words = "the timed computations gave other bits".to_string();
        print_json(&Found::wrong(Verification::failed(words)))?;
        return Ok(ExitCode::SUCCESS);
    }
    print_json(&Found {
        outcome: Outcome::Measured,
        words: String::new(),
        verification: Some(verification),
        hot: Some(Timing::of(samples)),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Times choices in turns until they are told apart.
pub fn finals(arguments: &ErrandArgs) -> Result<ExitCode> {
    end_with_parent();
    let subject = subject(&arguments.kernel, &arguments.problem)?;
    let numbers = Numbers::new(&subject, arguments.problem.seed)?;
    let choices = choices(arguments, subject.space)?;
    let mut runners = Vec::new();
    for choice in &choices {
        let backend = backend(choice).map_err(|why| refused(&choice.to_string(), why))?;
        let trial = numbers.trial(backend)?;
        let outputs = computed(&*trial)?;
        let rehearsed = Rehearsed::of(choice, &arguments.rehearse);
        runners.push((trial, outputs, rehearsed));
    }
    let once = |(trial, outputs, rehearsed): &mut Runner<'_>, times: u32| -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..times {
            rehearsed.dawdle();
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
    let mut finals = Finals {
        samples_ms: vec![Vec::new(); runners.len()],
    };
    let (begun, budget) = (Instant::now(), Duration::from_secs_f64(arguments.seconds));
    for round in 0..MOST_ROUNDS {
        for place in 0..runners.len() {
            // Each follows every other one equally often: what one leaves in the caches is not always the same one's.
            let step = if round % 2 == 0 {
                place
            } else {
                runners.len() - 1 - place
            };
            let index = (step + round / 2) % runners.len();
            let sample = once(&mut runners[index], times)?;
            finals.samples_ms[index].push(sample);
        }
        let is_over = round + 1 >= FEWEST_SAMPLES && begun.elapsed() >= budget;
        if is_over || finals.is_settled() {
            break;
        }
    }
    print_json(&finals)?;
    Ok(ExitCode::SUCCESS)
}

type Runner<'a> = (Box<dyn Computation + 'a>, Vec<Array>, Rehearsed);

/// The choices named, as in `a=1,b=2`.
fn choices(arguments: &ErrandArgs, space: &Space) -> Result<Vec<Choice>> {
    let parse = |text: &String| -> Option<Vec<(String, u32)>> {
        let words = text.split(',').filter(|word| *word != "-");
        words
            .map(|word| {
                let (name, value) = word.split_once('=')?;
                Some((name.to_string(), value.parse().ok()?))
            })
            .collect()
    };
    let choice = |text: &String| {
        let settings = parse(text).ok_or_else(|| refused(text, "NAME=VALUE".to_string()))?;
        space.choice(&settings).map_err(|why| refused(text, why))
    };
    arguments.choice.iter().map(choice).collect()
}

fn refused(setting: &str, expected: String) -> Error {
    Error::Setting {
        setting: setting.to_string(),
        expected,
    }
}

fn computed(trial: &dyn Computation) -> Result<Vec<Array>> {
    let mut outputs = trial.outputs()?;
    trial.compute(&mut outputs)?;
    Ok(outputs)
}

fn are_same(a: &[Array], b: &[Array]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.bytes() == b.bytes())
}

/// How a choice ends badly on purpose, if it does.
struct Rehearsed(Vec<String>);

impl Rehearsed {
    fn of(choice: &Choice, rehearsals: &[Rehearsal]) -> Self {
        let meant = |one: &&Rehearsal| {
            let mut values = choice.values().iter();
            values.any(|(name, value)| *name == one.name && *value == one.value)
        };
        let ends = rehearsals.iter().filter(meant);
        Rehearsed(ends.map(|one| one.end.clone()).collect())
    }

    fn is(&self, end: &str) -> bool {
        self.0.iter().any(|one| one == end)
    }

    fn end_early(&self) -> Result<()> {
        while self.is("hang") {
            thread::sleep(Duration::from_secs(1));
        }
        if self.is("crash") {
            print("half a rec")?;
            std::process::abort();
        }
        match self.is("error") {
            true => Err(Error::NoCache),
            false => Ok(()),
        }
    }

    fn dawdle(&self) {
        if self.is("slow") {
            thread::sleep(Duration::from_millis(3));
        }
    }
}
