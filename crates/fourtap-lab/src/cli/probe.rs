//! `fourtap probe`.

use std::path::PathBuf;

use clap::Args;

/// `fourtap probe`.
#[derive(Clone, Debug, Args)]
pub struct ProbeArgs {
    /// Probes to run [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Append a JSON record a probe to FILE; - prints them instead of a table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
