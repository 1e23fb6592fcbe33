//! One module a subcommand.

mod bench;
mod check;
mod compare;
mod explain;
mod ladder;
mod probe;
mod profile;
mod report;
mod run;
mod tune;

use clap::CommandFactory;
use serde::Serialize;

use crate::cli::{Cli, Command};
use crate::console::{self, note, progress};
use crate::error::{Error, Result};
use crate::exit::ExitCode;

/// Does what was typed.
pub fn execute(cli: Cli) -> Result<ExitCode> {
    cli.threads.start()?;
    match cli.command {
        Command::Run(arguments) => run::execute(&arguments),
        Command::Bench(arguments) => bench::execute(&arguments),
        Command::Compare(arguments) => compare::execute(&arguments),
        Command::Probe(arguments) => probe::execute(&arguments),
        Command::Explain(arguments) => explain::execute(&arguments),
        Command::Profile(arguments) => profile::execute(&arguments),
        Command::Ladder(arguments) => ladder::execute(&arguments),
        Command::Tune(arguments) => tune::execute(&arguments),
        Command::Report(arguments) => report::execute(&arguments),
        Command::Check(arguments) => check::execute(&arguments),
        Command::Admin(command) => Ok(command.execute()?),
        Command::Completions { shell } => {
            // Into memory first: the generator panics if it cannot write.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "fourtap", &mut script);
            print(&script)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Writes data to standard output.
fn print(data: impl AsRef<[u8]>) -> Result<()> {
    console::print(data).map_err(Error::Stdout)
}

/// Writes one JSON record, on one line.
fn print_json(record: &impl Serialize) -> Result<()> {
    console::print_json(record).map_err(Error::Stdout)
}

fn json_line(record: &impl Serialize) -> Result<String> {
    console::json_line(record).map_err(Error::Stdout)
}
