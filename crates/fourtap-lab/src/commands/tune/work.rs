//! What the subprocess does: compile what a choice needs, verify and time it, or time several alternately.

use std::collections::BTreeMap;
use std::time::Duration;

use fourtap::tuning::{Choice, Space};
use serde::{Deserialize, Serialize};

use super::subject;
use crate::cli::WorkArgs;
use crate::commands::print_json;
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::isolation::questions;
use crate::tune::{BuildResult, ChoiceTester};

/// A value for each parameter that is not at its default, by name.
pub type Settings = BTreeMap<String, u32>;

/// What it is asked, a line each. The answers are a [`BuildResult`], an [`AttemptResult`](crate::tune::AttemptResult) and
/// [`Finals`](crate::tune::Finals).
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Question {
    /// Compile what this needs.
    Build(Settings),
    /// Verify this and time it for so many seconds.
    Attempt(Settings, f64),
    /// Time these alternately for so many seconds.
    Finals(Vec<Settings>, f64),
}

/// Answers until nobody asks any more.
pub fn work(arguments: &WorkArgs) -> Result<ExitCode> {
    let questions = questions();
    let subject = subject(&arguments.kernel, &arguments.problem)?;
    // Whoever only compiles needs neither numbers nor a device.
    let mut trying = None;
    while let Ok(line) = questions.recv() {
        let question = serde_json::from_str(&line).map_err(|error| Error::Setting {
            setting: line.clone(),
            expected: format!("a question: {error}"),
        })?;
        if let Question::Build(settings) = &question {
            let choice = choice(subject.space, settings)?;
            print_json(&BuildResult::new(&subject, &choice)?)?;
            continue;
        }
        let trying = match &mut trying {
            Some(trying) => trying,
            None => trying.insert(ChoiceTester::new(&subject, arguments.problem.seed)?),
        };
        match question {
            Question::Build(_) => {}
            Question::Attempt(settings, seconds) => {
                let choice = choice(subject.space, &settings)?;
                print_json(&trying.attempt(&choice, Duration::from_secs_f64(seconds))?)?;
            }
            Question::Finals(all, seconds) => {
                let choices = all.iter().map(|one| choice(subject.space, one));
                let choices = choices.collect::<Result<Vec<_>>>()?;
                print_json(&trying.finals(&choices, Duration::from_secs_f64(seconds))?)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn choice(space: &Space, settings: &Settings) -> Result<Choice> {
    let settings: Vec<_> = settings
        .iter()
        .map(|(name, value)| (name, *value))
        .collect();
    space.choice(&settings).map_err(|expected| Error::Setting {
        setting: format!("{settings:?}"),
        expected,
    })
}
