//! `fourtap report`.

use std::path::PathBuf;

use clap::Args;

/// `fourtap report`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
A RUN is a file that `bench`, `probe` or `profile` wrote with --json, or a folder of such files. Of
several, each is compared with the first.

The page is one file that needs nothing else: no network, no scripts or fonts from elsewhere. It is
written completely or not at all.")]
pub struct ReportArgs {
    /// Results to show: files of records, or folders of such files
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// The page to write: .html
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace a page that exists
    #[arg(long)]
    pub force: bool,
    /// Print a JSON record
    #[arg(long)]
    pub json: bool,
}
