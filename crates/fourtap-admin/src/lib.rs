//! The commands that manage an installation of fourtap and need only the library: `doctor`, `cache` and `bake`.
//!
//! They are all of `python -m fourtap`, and subcommands of the lab's `fourtap`. What both command lines share besides
//! (exit codes, units, output, tables) is here as well.

mod bake;
mod cache;
pub mod check;
pub mod choices;
pub mod cli;
pub mod console;
mod doctor;
mod error;
pub mod exit;
pub mod machine;
pub mod table;
pub mod tuning;
pub mod units;
mod usual;
mod write_hint;

use std::ffi::OsString;

pub use cli::{Cli, Command};
pub use error::{Error, Result};
pub use exit::ExitCode;
pub use write_hint::write_hint;

/// Schema version of JSON records: raised when a field changes its meaning or is removed.
pub const SCHEMA: u32 = 2;

/// Version of fourtap.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the command line with these arguments, the first being the program's name.
pub fn run(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::parse_words(words) {
        Ok(cli) => cli,
        Err(usage) => return console::report_usage(&usage),
    };
    match cli.execute() {
        Ok(code) => code,
        // The reader of the output has closed it: not a failure.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            console::report(&error, error.hint());
            error.exit_code()
        }
    }
}
