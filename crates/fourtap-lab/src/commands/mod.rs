//! One module per subcommand.

mod bench;
mod check;
pub mod compare;
mod explain;
pub mod probe;
mod profile;
mod report;
mod run;
mod tune;

use serde::Serialize;

use crate::cli::{self, Command, ParsedCommand};
use crate::console;
pub use crate::console::{note, progress};
use crate::error::{Error, Result};
use crate::exit::ExitCode;

/// Does what was typed.
pub fn execute(typed: ParsedCommand) -> Result<ExitCode> {
    typed.start_threads()?;
    let command = match typed {
        ParsedCommand::Own(cli) => cli.command,
        ParsedCommand::Added {
            extension,
            arguments,
        } => return extension.execute(&arguments),
    };
    let goes_by_tables = match &command {
        // Whoever has started it says so.
        Command::Bench(arguments) => !arguments.in_turns && !arguments.list,
        Command::Run(_) | Command::Explain(_) | Command::Profile(_) | Command::Check(_) => true,
        _ => false,
    };
    if goes_by_tables && let Some(words) = fourtap_admin::tuning::missing_in_words() {
        note(&format!("warning: {words}"));
    }
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
        Command::Admin(command) => Ok(command.execute()?),
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

/// Writes data to standard output.
pub fn print(data: impl AsRef<[u8]>) -> Result<()> {
    console::print(data).map_err(Error::Stdout)
}

/// Writes one JSON record, on one line.
pub fn print_json(record: &impl Serialize) -> Result<()> {
    console::print_json(record).map_err(Error::Stdout)
}

fn json_line(record: &impl Serialize) -> Result<String> {
    console::json_line(record).map_err(Error::Stdout)
}
