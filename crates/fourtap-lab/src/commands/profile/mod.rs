//! `fourtap profile`.

use crate::cli::ProfileArgs;
use crate::error::Result;
use crate::exit::ExitCode;

pub fn execute(_arguments: &ProfileArgs) -> Result<ExitCode> {
    Ok(ExitCode::FAILURE)
}
