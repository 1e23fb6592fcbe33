//! `fourtap report`.

use std::path::PathBuf;

use clap::Args;

/// `fourtap report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Results to show: files of records, or folders of such files
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// The page to write: .html or .md
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}
