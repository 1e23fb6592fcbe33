//! What the subprocess does with a rung.

use std::time::Duration;

use fourtap_lab::extension::isolation::end_with_parent;
use fourtap_lab::extension::record::{Conditions, Line, Outcome, RungRecord};
use fourtap_lab::extension::{
    Device, Error, ExitCode, Result, Stopwatch, Target, TargetArgs, print_json,
};

use super::blank;
use super::cases::Cases;
use crate::cli::{LadderArgs, WorkerTask};
use crate::error::LadderError;
use crate::library::{Answer, Library, Python};
use crate::measurement::{Measurement, RungResult};
use crate::numbers::Numbers;
use crate::plan::{Choice, Parameter};
use crate::rung::Contender;

/// Most time for one timing.
const BUDGET: Duration = Duration::from_secs(1);

/// Bytes gathered from which on a few percent of the time can be told apart.
const LARGE: u64 = 1 << 30;

/// In a sweep there are many.
const SWEEP_BUDGET: Duration = Duration::from_millis(100);

/// Does it with the one rung chosen.
pub fn run(
    task: WorkerTask,
    chosen: &[Contender],
    cases: &Cases,
    arguments: &LadderArgs,
) -> Result<ExitCode> {
    if task != WorkerTask::Launch {
        end_with_parent();
    }
    let target = Target::new(&TargetArgs::on(arguments.device))?;
    let (Some(cuda), [contender]) = (target.cuda(), chosen) else {
        return Err(Error::Misplaced {
            option: "--in-this-process",
            expected: "a CUDA device, with one rung",
            found: format!("{} rungs on {}", chosen.len(), target.device.kind),
        });
    };
    let stopwatch = Stopwatch::new(cuda)?;
    let worker = RungWorker {
        contender,
        device: &target.device,
        measurement: Measurement {
            stopwatch: &stopwatch,
            seed: arguments.seed,
            budget: (task == WorkerTask::Measure).then_some(BUDGET),
        },
    };
    let choice = Choice::new(contender.parameters(), &arguments.set);
    match task {
        WorkerTask::Check => match worker.measurement.small(contender, &choice)? {
            Ok(_) => Ok(ExitCode::SUCCESS),
            Err(found) => {
                let rung = contender.name();
                Err(LadderError::Wrong { rung, found }.into())
            }
        },
        WorkerTask::Launch => {
            for case in cases.each(contender.operator()) {
                let numbers = case.numbers(arguments.seed)?;
                worker.measurement.measured(contender, &choice, &numbers)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        WorkerTask::Measure => {
            if let Contender::Library(library) = contender {
                let python = Python {
                    program: arguments.python.clone(),
                    device: cuda.ordinal() as u32,
                };
                worker.measure_library(library, &python, cases)?;
                return Ok(ExitCode::SUCCESS);
            }
            let choices = match arguments.sweep {
                true => combinations(contender.parameters()),
                false => vec![choice],
            };
            worker.measure(cases, &choices)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

struct RungWorker<'a> {
    contender: &'a Contender,
    device: &'a Device,
    measurement: Measurement<'a>,
}

impl RungWorker<'_> {
    /// Small problems with each choice, then every case with each that is right; prints a record per case, of the fastest.
    fn measure(&self, cases: &Cases, choices: &[Choice]) -> Result<()> {
        let mut right = Vec::new();
        let (mut wrong, mut refused) = (None, String::new());
        for choice in choices {
            match self.measurement.small(self.contender, choice)? {
                Ok(small) if small.right > 0 => right.push((choice, small)),
                Ok(small) => refused = small.refused.join("; "),
                Err(words) => wrong = Some(words),
            }
        }
        for case in cases.each(self.contender.operator()) {
            let seed = self.measurement.seed;
            let mut record = blank(self.contender, self.device, &case, seed)?;
            // In a sweep some combinations may be impossible; in a plain run there is but one.
            if right.is_empty() {
                (record.outcome, record.words) = match &wrong {
                    Some(words) => (Outcome::Wrong, words.clone()),
                    None => (Outcome::Refused, refused.clone()),
                };
                print_json(&Line::Rung(Box::new(record)))?;
                continue;
            }
            let numbers = case.numbers(seed)?;
            let best = match &right[..] {
                [one] => one,
                several => {
                    let choices: Vec<_> = several.iter().map(|(choice, _)| *choice).collect();
                    &several[self.fastest(&choices, &numbers)?]
                }
            };
            let (choice, small) = best;
            let result = self
                .measurement
                .measured(self.contender, choice, &numbers)?;
            record.small = Some(small.clone());
            let values = choice.values().iter();
            record.parameters = values
                .map(|&(name, value)| (name.to_string(), value))
                .collect();
            fill(&mut record, result);
            let large = record.traffic.gathered_bytes >= LARGE;
            if let (Some(base), Contender::Rung(rung), Outcome::Measured, true) = (
                self.contender.single_change_to(),
                self.contender,
                record.outcome,
                large,
            ) {
                record.against = self.measurement.against(rung, choice, &base, &numbers)?;
            }
            print_json(&Line::Rung(Box::new(record)))?;
        }
        Ok(())
    }

    /// Lets a library compute every case; prints a record per case.
    fn measure_library(&self, library: &Library, python: &Python, cases: &Cases) -> Result<()> {
        for case in cases.each(self.contender.operator()) {
            let seed = self.measurement.seed;
            let mut record = blank(self.contender, self.device, &case, seed)?;
            let Numbers::Dense(numbers) = case.numbers(seed)? else {
                continue;
            };
            let before = self.measurement.stopwatch.reading();
            match library.measured(&numbers, python, seed, BUDGET)? {
                Answer::Unavailable(words) => {
                    (record.outcome, record.words) = (Outcome::Unavailable, words);
                }
                Answer::Refused(words) => {
                    (record.outcome, record.words) = (Outcome::Refused, words);
                }
                Answer::Computed {
                    verification,
                    timing,
                    software,
                } => {
                    (record.outcome, record.words) = match (&verification.found, &timing) {
                        (Some(found), _) => (Outcome::Wrong, found.clone()),
                        (None, Some(_)) => (Outcome::Measured, String::new()),
                        (None, None) => (Outcome::Failed, "it gave no time".to_string()),
                    };
                    record.library = Some(software);
                    record.verification = Some(verification);
                    record.hot = timing;
                    let after = self.measurement.stopwatch.reading();
                    record.conditions = Some(Conditions { before, after });
                }
            }
            print_json(&Line::Rung(Box::new(record)))?;
        }
        Ok(())
    }

    /// Which of several choices is fastest; the first if none can be timed.
    fn fastest(&self, choices: &[&Choice], numbers: &Numbers) -> Result<usize> {
        let measurement = Measurement {
            budget: Some(SWEEP_BUDGET),
            ..self.measurement
        };
        let mut best = (f64::INFINITY, 0);
        for (place, choice) in choices.iter().enumerate() {
            let result = measurement.measured(self.contender, choice, numbers)?;
            let time = result.hot.map(|hot| hot.timing.median_ms);
            if let Some(time) = time.filter(|&time| time < best.0) {
                best = (time, place);
            }
        }
        Ok(best.1)
    }
}

/// What became of it.
fn fill(record: &mut RungRecord, result: RungResult) {
    record.launches = result.launches;
    record.scratch_bytes = result.scratch_bytes;
    record.prepared = result.prepared.map(|timed| timed.timing);
    if let Some(words) = result.refused {
        record.outcome = Outcome::Refused;
        record.words = words;
        return;
    }
    if let Some(found) = result
        .verification
        .as_ref()
        .and_then(|one| one.found.clone())
    {
        record.outcome = Outcome::Wrong;
        record.words = found;
    }
    record.verification = result.verification;
    if let Some(hot) = result.hot {
        record.outcome = Outcome::Measured;
        record.hot = Some(hot.timing);
        record.conditions = Some(hot.conditions);
    }
}

/// Every combination of the parameters' values.
fn combinations(parameters: &[Parameter]) -> Vec<Choice> {
    let mut all: Vec<Vec<(String, u32)>> = vec![vec![]];
    for parameter in parameters {
        let longer = all.iter().flat_map(|one| {
            let values = parameter.values.iter();
            values.map(move |&value| {
                let mut longer = one.clone();
                longer.push((parameter.name.to_string(), value));
                longer
            })
        });
        all = longer.collect();
    }
    let choice = |chosen: &Vec<(String, u32)>| Choice::new(parameters, chosen);
    all.iter().map(choice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_all_of_them_once() {
        let parameter = |name, values: &'static [u32]| Parameter::new(name, "", values, values[0]);
        let found = combinations(&[parameter("A", &[1, 2, 3]), parameter("B", &[4, 5])]);
        assert_eq!(found.len(), 6);
        for (number, one) in found.iter().enumerate() {
            assert!(!found[..number].contains(one));
        }
        assert_eq!(combinations(&[]).len(), 1);
    }
}
