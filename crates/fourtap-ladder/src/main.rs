//! `fourtap-ladder`: the `fourtap` command with the subcommand `ladder`, and rungs among the kernels that `tune` knows.
//!
//! Every idea for a fast forward kernel is a rung of one ladder: correct first, then timed, then ranked.

mod case;
mod cli;
mod command;
mod dense;
mod error;
mod library;
mod measurement;
mod msda;
mod numbers;
mod plan;
mod rung;
mod rungs;
mod table;
#[cfg(test)]
mod tests;
mod trial;
mod tune;

use std::process::ExitCode;

use clap::{ArgMatches, Args, FromArgMatches};
use fourtap_lab::extension::{self, Extension, ExternalKernel, Result};

use crate::cli::LadderArgs;
use crate::error::LadderError;

fn main() -> ExitCode {
    extension::run(std::env::args_os(), &Ladder).number().into()
}

/// What is added to the `fourtap` command.
struct Ladder;

impl Extension for Ladder {
    fn name(&self) -> &'static str {
        "fourtap-ladder"
    }

    fn subcommand(&self) -> clap::Command {
        LadderArgs::augment_args(clap::Command::new("ladder"))
    }

    fn execute(&self, arguments: &ArgMatches) -> Result<extension::ExitCode> {
        let arguments = LadderArgs::from_arg_matches(arguments).map_err(LadderError::Usage)?;
        command::execute(&arguments)
    }

    fn kernels(&self) -> Vec<&'static dyn ExternalKernel> {
        tune::kernels()
    }
}
