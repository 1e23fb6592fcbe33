//! `fourtap`: compute, measure and explain attention, deformable and dense, from the command line.

mod array;
mod check;
mod choices;
mod cli;
mod commands;
mod comparison;
mod computation;
mod cuda;
mod error;
mod exit;
mod explain;
mod generate;
mod header;
mod isolation;
mod ladder;
mod machine;
mod measure;
mod nearest;
mod operators;
mod output;
mod probe;
mod profile;
mod program;
mod record;
mod report;
mod roof;
mod selection;
mod sink;
mod statistics;
mod table;
mod target;
mod tensors;
mod tune;
mod units;
mod verification;

use std::ffi::OsString;

use clap::Parser;

pub use exit::ExitCode;

pub use program::run_by;

/// Does what these words say, the first being the program's name, and prints what comes of it.
pub fn run(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match cli::Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(usage) => {
            // Help and complaints alike. Where they cannot be printed, the number still tells.
            let _ = usage.print();
            return ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2));
        }
    };
    match commands::execute(cli) {
        Ok(code) => code,
        // Whoever read our output has seen enough: not a failure of ours.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            error.report();
            error.exit_code()
        }
    }
}
