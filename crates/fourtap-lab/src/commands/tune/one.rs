//! `fourtap tune one`: a single choice, verified, and timed alternately with the defaults.

use std::time::Duration;

use serde::Serialize;

use super::trial_worker::TrialWorker;
use super::{recorded, subject};
use crate::cli::OneArgs;
use crate::commands::{print, print_json};
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::record::{Origin, Outcome, Timing, TuneSubject};
use crate::table;
use crate::tune::{AttemptResult, BuildResult, Engine};
use crate::verification::Verification;

/// Most time of the choice's own timing, and alternately with the defaults.
const ALONE: Duration = Duration::from_millis(400);
const IN_TURNS: Duration = Duration::from_secs(5);

/// What became of it.
#[derive(Debug, Serialize)]
struct SingleAttempt {
    #[serde(flatten)]
    origin: Origin,
    #[serde(flatten)]
    subject: TuneSubject,
    choice: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    built: Option<BuildResult>,
    outcome: Outcome,
    #[serde(skip_serializing_if = "String::is_empty")]
    words: String,
    verification: Option<Verification>,
    hot: Option<Timing>,
    /// In turns with the defaults: how many times as fast, and what that lies between.
    speed: Option<[f64; 3]>,
}

pub fn execute(arguments: &OneArgs) -> Result<ExitCode> {
    let subject = subject(&arguments.kernel, &arguments.problem)?;
    let setting = |expected| Error::Setting {
        setting: arguments
            .set
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
            .join(","),
        expected,
    };
    let choice = subject.space.choice(&arguments.set).map_err(setting)?;
    let refused = |why: String| setting(format!("values that fit together, found {why}"));
    subject.carried(&choice).map_err(refused)?;
    let mut worker = TrialWorker::new(&subject, &arguments.problem, arguments.limit);
    let mut built = None;
    let mut found = None;
    if !matches!(subject.engine, Engine::Cpu) {
        match worker.build(&choice)? {
            Ok(build) => {
                let failed = build.failed.clone();
                found = failed.map(|words| AttemptResult::ended((Outcome::Failed, words)));
                built = Some(build);
            }
            Err(trouble) => found = Some(AttemptResult::ended(trouble)),
        }
    }
    let found = match found {
        Some(found) => found,
        None => worker.attempt(&choice, ALONE)?,
    };
    let mut one = SingleAttempt {
        origin: Origin::here(),
        subject: recorded(&subject, arguments.problem.seed)?,
        choice: choice.to_string(),
        built,
        outcome: found.outcome,
        words: found.words,
        verification: found.verification,
        hot: found.hot,
        speed: None,
    };
    if one.hot.is_some() {
        let both = [subject.space.defaults(), choice];
        let finals = worker.finals(&both, IN_TURNS)?;
        let finals = finals.map_err(|found| Error::Finals {
            subject: subject.name(),
            found,
        })?;
        let (speed, low, high) = finals.settled(&[0, 1]).speeds[1];
        one.speed = Some([speed, low, high]);
    }
    match arguments.json {
        true => print_json(&one)?,
        false => print(in_words(&one))?,
    }
    Ok(match one.outcome {
        Outcome::Measured => ExitCode::SUCCESS,
        Outcome::Wrong => ExitCode::MISMATCH,
        _ => ExitCode::FAILURE,
    })
}

fn in_words(one: &SingleAttempt) -> String {
    let found = match (&one.hot, one.speed) {
        (Some(hot), Some([speed, low, high])) => format!(
            "correct, {} ms; {speed:.3} times as fast as the defaults ({low:.3} to {high:.3})",
            table::milliseconds(hot.median_ms)
        ),
        _ => format!("{:?}: {}", one.outcome, one.words).to_lowercase(),
    };
    let found = match one
        .built
        .as_ref()
        .and_then(|it| Some((it, it.registers()?)))
    {
        Some((built, registers)) => format!(
            "{registers} registers per thread, {} bytes of stack; {found}",
            built.stack_bytes()
        ),
        None => found,
    };
    let what = format!("{} with {}:", one.subject.name(), one.choice);
    table::wrapped(&what, 0) + &table::wrapped(&found, 0)
}
