//! `fourtap compare`.

use crate::cli::CompareArgs;
use crate::error::Result;
use crate::exit::ExitCode;

pub fn execute(_arguments: &CompareArgs) -> Result<ExitCode> {
    Ok(ExitCode::FAILURE)
}
