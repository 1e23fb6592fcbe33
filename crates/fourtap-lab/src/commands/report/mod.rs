//! `fourtap report`.

use crate::cli::ReportArgs;
use crate::error::Result;
use crate::exit::ExitCode;

pub fn execute(_arguments: &ReportArgs) -> Result<ExitCode> {
    Ok(ExitCode::FAILURE)
}
