//! `fourtap profile`.

use std::path::PathBuf;

use clap::Args;

/// `fourtap profile`.
#[derive(Clone, Debug, Args)]
pub struct ProfileArgs {
    /// What to profile: a built-in workload or a .toml file
    #[arg(value_name = "WORKLOAD")]
    pub workload: PathBuf,
}
