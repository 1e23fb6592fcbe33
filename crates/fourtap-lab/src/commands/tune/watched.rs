//! Choices tried in processes of their own.

use std::time::Duration;

use fourtap::tuning::Choice;
use serde::de::DeserializeOwned;

use super::errand::Found;
use crate::cli::{Rehearsal, TuneProblem};
use crate::error::{Error, Result};
use crate::isolation::run;
use crate::program;
use crate::record::Outcome;
use crate::tune::{Finals, Subject};

/// Tries choices about a kernel.
#[derive(Debug)]
pub struct Watched<'a> {
    /// The kernel and the problem.
    pub subject: &'a Subject,
    /// What was asked for.
    pub problem: &'a TuneProblem,
    /// How long an attempt may take.
    pub limit: Duration,
    /// Attempts that end badly on purpose.
    pub rehearse: &'a [Rehearsal],
}

impl Watched<'_> {
    /// Verifies a choice and times it for about so long; whatever becomes of its process is told.
    pub fn attempt(&self, choice: &Choice, budget: Duration) -> Result<Found> {
        match self.said("attempt", std::slice::from_ref(choice), budget, self.limit)? {
            Ok(found) => Ok(found),
            Err((outcome, words)) => Ok(Found {
                outcome,
                words,
                verification: None,
                hot: None,
            }),
        }
    }

    /// Times choices in turns, for about so long; in words what became of them otherwise.
    pub fn finals(
        &self,
        choices: &[Choice],
        budget: Duration,
    ) -> Result<std::result::Result<Finals, String>> {
        let limit = budget + self.limit;
        let said = self.said::<Finals>("finals", choices, budget, limit)?;
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

    fn said<T: DeserializeOwned>(
        &self,
        errand: &str,
        choices: &[Choice],
        budget: Duration,
        limit: Duration,
    ) -> Result<std::result::Result<T, (Outcome, String)>> {
        let mut command = program::again().map_err(Error::Start)?;
        let problem = self.problem;
        command.args(["tune", errand, self.subject.space.kernel]);
        for choice in choices {
            let settings = choice.values().iter();
            let words: Vec<_> = settings
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            command.arg("--choice").arg(words.join(","));
        }
        for (option, value) in [
            ("--seconds", budget.as_secs_f64().to_string()),
            ("--workload", self.subject.named.display().to_string()),
            ("--dtype", self.subject.dtype.to_string()),
            ("--distribution", problem.distribution.name().to_string()),
            ("--seed", problem.seed.to_string()),
            ("--threads", rayon::current_num_threads().to_string()),
        ] {
            command.args([option, &value]);
        }
        if let Some(images) = problem.images {
            command.args(["--images", &images.to_string()]);
        }
        for rehearsal in self.rehearse {
            command.args(["--rehearse", &rehearsal.to_string()]);
        }
        let ended = run(&mut command, limit)?;
        if let Some(trouble) = ended.trouble(limit) {
            return Ok(Err(trouble));
        }
        Ok(serde_json::from_str(&ended.stdout).map_err(|error| {
            let words = format!("it gave no result that can be read: {error}");
            (Outcome::Failed, words)
        }))
    }
}
