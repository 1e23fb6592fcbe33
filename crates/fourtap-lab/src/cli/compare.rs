//! `fourtap compare`.

use std::path::PathBuf;

use clap::Args;

/// `fourtap compare`.
#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    /// Results to compare with: a file of records, or a folder of such files
    #[arg(value_name = "A")]
    pub before: PathBuf,
    /// Results to judge
    #[arg(value_name = "B")]
    pub after: PathBuf,
}
