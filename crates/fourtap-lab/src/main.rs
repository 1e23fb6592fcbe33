//! The `fourtap` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    fourtap_lab::run(std::env::args_os()).number().into()
}
