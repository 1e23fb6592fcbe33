//! Choices tried in a process of its own, which is replaced if it ends badly.

use std::time::Duration;

use fourtap::tuning::Choice;
use serde::de::DeserializeOwned;

use super::work::{Question, Settings};
use crate::cli::TuneProblem;
use crate::error::{Error, Result};
use crate::isolation::Worker;
use crate::program;
use crate::record::Outcome;
use crate::tune::{AttemptResult, BuildResult, Engine, Finals, Subject};

/// How a task failed.
pub type Failure = (Outcome, String);

/// Tries choices about a subject.
#[derive(Debug)]
pub struct TrialWorker {
    worker: Worker,
    /// How long an attempt may take.
    limit: Duration,
}

impl TrialWorker {
    /// A process is started for the first task.
    pub fn new(subject: &Subject, problem: &TuneProblem, limit: Duration) -> Self {
        let words = words(subject, problem);
        TrialWorker {
            worker: Worker::new(move || {
                let mut command = program::again().map_err(Error::Start)?;
                command.args(&words);
                Ok(command)
            }),
            limit,
        }
    }

    /// Verifies a choice and times it for about so long; whatever becomes of its process is told.
    pub fn attempt(&mut self, choice: &Choice, budget: Duration) -> Result<AttemptResult> {
        let question = Question::Attempt(settings(choice), budget.as_secs_f64());
        Ok(self
            .asked(&question, self.limit)?
            .unwrap_or_else(AttemptResult::ended))
    }

    /// Compiles what a choice needs.
    pub fn build(&mut self, choice: &Choice) -> Result<std::result::Result<BuildResult, Failure>> {
        self.asked(&Question::Build(settings(choice)), self.limit)
    }

    /// Times choices alternately, for about so long; in words what became of them otherwise.
    pub fn finals(
        &mut self,
        choices: &[Choice],
        budget: Duration,
    ) -> Result<std::result::Result<Finals, String>> {
        let limit = budget + self.limit;
        let all = choices.iter().map(settings).collect();
        let question = Question::Finals(all, budget.as_secs_f64());
        let said = self.asked::<Finals>(&question, limit)?;
        let complete = |finals: &Finals| {
            finals.samples_ms.len() == choices.len()
                && finals.samples_ms.iter().all(|row| row.len() > 1)
        };
        Ok(match said {
            Ok(finals) if complete(&finals) => Ok(finals),
            Ok(_) => Err("it gave too few samples".to_string()),
            Err((_, words)) => Err(words),
        })
    }

    fn asked<T: DeserializeOwned>(
        &mut self,
        question: &Question,
        limit: Duration,
    ) -> Result<std::result::Result<T, Failure>> {
        let line = serde_json::to_string(question).map_err(|error| Error::Start(error.into()))?;
        Ok(self.worker.ask(&line, limit)?.and_then(|answer| {
            serde_json::from_str(&answer).map_err(|error| {
                let words = format!("it gave no result that can be read: {error}");
                (Outcome::Failed, words)
            })
        }))
    }
}

fn settings(choice: &Choice) -> Settings {
    let values = choice.values().iter();
    values
        .map(|(name, value)| (name.to_string(), *value))
        .collect()
}

/// The words that make another process of this program work on the subject.
fn words(subject: &Subject, problem: &TuneProblem) -> Vec<String> {
    let device = match &subject.engine {
        Engine::Cpu => "cpu".to_string(),
        Engine::Cuda(gpu) | Engine::External(_, gpu) => format!("cuda:{}", gpu.ordinal),
    };
    let mut words = vec!["tune".to_string(), "work".to_string()];
    words.push(subject.space.kernel.to_string());
    for (option, value) in [
        ("--workload", subject.named.display().to_string()),
        ("--dtype", subject.dtype.to_string()),
        ("--distribution", problem.distribution.name().to_string()),
        ("--seed", problem.seed.to_string()),
        ("--threads", rayon::current_num_threads().to_string()),
        ("--device", device),
    ] {
        words.extend([option.to_string(), value]);
    }
    if let Some(images) = problem.images {
        words.extend(["--images".to_string(), images.to_string()]);
    }
    words
}
