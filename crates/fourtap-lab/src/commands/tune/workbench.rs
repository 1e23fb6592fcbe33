//! Where candidates are compiled and tried.

use std::time::Duration;

use super::builders::Builders;
use super::trial_worker::{Failure, TrialWorker};
use crate::cli::SearchArgs;
use crate::error::Result;
use crate::record::Outcome;
use crate::tune::{AttemptResult, BuildResult, Candidate, Engine, Subject};

/// Most time of one attempt's timing.
const ATTEMPT: Duration = Duration::from_millis(400);

/// Who compiles and who tries.
#[derive(Debug)]
pub struct Workbench {
    /// None where there is nothing to compile.
    builders: Option<Builders>,
    /// Who tries.
    pub tester: TrialWorker,
}

impl Workbench {
    /// For a subject, as the search was asked for, one of so many at a time.
    pub fn new(subject: &Subject, arguments: &SearchArgs, searches: usize) -> Self {
        let worker = |limit: Duration| TrialWorker::new(subject, &arguments.problem, limit);
        Workbench {
            builders: match subject.engine {
                Engine::Cpu => None,
                _ => Some(Builders::new(searches, || worker(arguments.build_limit))),
            },
            tester: worker(arguments.limit),
        }
    }

    /// Has what a candidate needs compiled some time.
    pub fn begin(&self, candidate: &Candidate) {
        if let Some(builders) = &self.builders {
            builders.begin(candidate.number, &candidate.choice);
        }
    }

    /// What became of a candidate that was begun.
    pub fn attempt(
        &mut self,
        candidate: &Candidate,
    ) -> Result<(Option<BuildResult>, AttemptResult)> {
        let built = match &mut self.builders {
            None => None,
            Some(builders) => match builders.wait(candidate.number)? {
                Ok(built) => Some(built),
                Err((outcome, words)) => {
                    let trouble: Failure = (outcome, format!("while it was compiled: {words}"));
                    return Ok((None, AttemptResult::ended(trouble)));
                }
            },
        };
        let failed = built.as_ref().and_then(|built| built.failed.clone());
        let found = match failed {
            Some(words) => AttemptResult::ended((Outcome::Failed, words)),
            None => self.tester.attempt(&candidate.choice, ATTEMPT)?,
        };
        Ok((built, found))
    }
}
