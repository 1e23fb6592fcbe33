//! `fourtap explain`.

use crate::cli::ExplainArgs;
use crate::error::Result;
use crate::exit::ExitCode;

pub fn execute(_arguments: &ExplainArgs) -> Result<ExitCode> {
    Ok(ExitCode::FAILURE)
}
