//! `fourtap`: compute, measure and explain multi-scale deformable attention from the command line.

mod array;
mod cli;
mod commands;
mod cuda;
mod error;
mod generate;
mod header;
mod machine;
mod measure;
mod nearest;
mod output;
mod record;
mod selection;
mod statistics;
mod table;
mod target;
mod tensors;
mod trial;
mod units;
mod verification;
mod workload;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
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
