//! `fourtap explain`.

use std::path::PathBuf;

use clap::Args;

/// `fourtap explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// What to explain: a built-in workload or a .toml file
    #[arg(value_name = "WORKLOAD")]
    pub workload: PathBuf,
}
