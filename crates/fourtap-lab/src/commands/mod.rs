//! One module a subcommand.

mod bake;
mod bench;
mod cache;
mod check;
mod compare;
mod doctor;
mod explain;
pub mod probe;
mod profile;
mod report;
mod run;
mod tune;

use crate::exit::ExitCode;
use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::cli::{self, Command, Typed};
use crate::error::{Error, Result};

/// Does what was typed.
pub fn execute(typed: Typed) -> Result<ExitCode> {
    let threads = match &typed {
        Typed::Own(cli) => cli.threads,
        Typed::Added { threads, .. } => *threads,
    };
    if let Some(requested) = threads {
        rayon::ThreadPoolBuilder::new()
            .num_threads(requested as usize)
            .build_global()
            .map_err(|error| Error::Threads {
                requested,
                reason: error.to_string(),
            })?;
    }
    let command = match typed {
        Typed::Own(cli) => cli.command,
        Typed::Added {
            extension,
            arguments,
            ..
        } => return extension.execute(&arguments),
    };
    match command {
        Command::Run(arguments) => run::execute(&arguments),
        Command::Bench(arguments) => bench::execute(&arguments),
        Command::Compare(arguments) => compare::execute(&arguments),
        Command::Probe(arguments) => probe::execute(&arguments),
        Command::Explain(arguments) => explain::execute(&arguments),
        Command::Profile(arguments) => profile::execute(&arguments),
        Command::Tune(arguments) => tune::execute(&arguments),
        Command::Report(arguments) => report::execute(&arguments),
        Command::Check(arguments) => check::execute(&arguments),
        Command::Doctor(arguments) => doctor::execute(&arguments),
        Command::Cache(arguments) => cache::execute(&arguments),
        Command::Bake(arguments) => bake::execute(&arguments),
        Command::Completions { shell } => {
            // Into memory first: the generator panics if it cannot write.
            let mut script = Vec::new();
            let mut command = cli::command();
            let name = command.get_name().to_string();
            clap_complete::generate(shell, &mut command, name, &mut script);
            print(&script)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Writes data to standard output; `print!` would panic where that is closed.
pub fn print(data: impl AsRef<[u8]>) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(data.as_ref())
        .and_then(|()| stdout.flush())
        .map_err(Error::Stdout)
}

/// Writes one JSON record, on one line.
pub fn print_json(record: &impl Serialize) -> Result<()> {
    print(json_line(record)?)
}

fn json_line(record: &impl Serialize) -> Result<String> {
    let json = serde_json::to_string(record).map_err(|error| Error::Stdout(error.into()))?;
    Ok(json + "\n")
}

/// Tells the user something that is not data.
pub fn note(text: &str) {
    // A note that cannot be read is no reason to stop.
    let _ = writeln!(io::stderr(), "{text}");
}

/// A bar on standard error; nothing is drawn unless that is a terminal.
pub fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar
}
