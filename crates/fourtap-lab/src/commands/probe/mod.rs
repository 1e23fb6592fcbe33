//! `fourtap probe`.

use crate::cli::ProbeArgs;
use crate::error::Result;
use crate::exit::ExitCode;

pub fn execute(_arguments: &ProbeArgs) -> Result<ExitCode> {
    Ok(ExitCode::FAILURE)
}
