//! `fourtap`: compute, benchmark, profile and tune deformable and dense attention from the command line.
//!
//! All that other crates can use is [`run`], and what [`extension`] lists for programs that add kernels of their own.

mod array;
mod choices;
mod cli;
mod commands;
mod comparison;
mod computation;
mod cuda;
mod devices;
mod error;
mod explain;
pub mod extension;
mod generate;
mod header;
mod interrupt;
mod isolation;
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
mod signed_rank;
mod sink;
mod statistics;
mod table;
mod target;
mod tensors;
mod tune;
mod verification;

use std::ffi::OsString;

use fourtap_admin::{console, exit, units};

pub use fourtap_admin::ExitCode;

/// Does what these words say, the first being the program's name, and prints what comes of it.
pub fn run(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let typed = match cli::parse(words) {
        Ok(typed) => typed,
        Err(usage) => return cli::refuse(&usage),
    };
    match commands::execute(typed) {
        Ok(code) => code,
        // Whoever read our output has seen enough: not a failure of ours.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            error.report();
            error.exit_code()
        }
    }
}
