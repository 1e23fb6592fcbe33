//! `fourtap report`.

use std::path::PathBuf;

use clap::Args;

use crate::report::Theme;

/// `fourtap report`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
A RUN is a file that `bench`, `probe` or `profile` wrote with --json, or a folder of such files. Of
several, each is compared with the first.

For a README that is read on light and on dark pages:
  fourtap report RUN --chart NAME -o light.svg
  fourtap report RUN --chart NAME -o dark.svg --theme dark

An .html page is one file that needs nothing else: no network, no scripts or fonts from elsewhere.
Files are written completely or not at all.")]
pub struct ReportArgs {
    /// Results to show: files of records, or folders of such files
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// The page to write: .html or .md; with --chart a picture, .svg or .png
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Also write each chart to FOLDER, as .svg and .png
    #[arg(long, value_name = "FOLDER")]
    pub plots: Option<PathBuf>,
    /// Write one chart only, without a background: as `peers-detr-encoder-local-f16` (a wrong name lists all)
    #[arg(long, value_name = "NAME", conflicts_with = "plots")]
    pub chart: Option<String>,
    /// The colour of the page that chart is shown on
    #[arg(
        long,
        value_enum,
        default_value_t,
        requires = "chart",
        hide_default_value = true
    )]
    pub theme: Theme,
    /// Replace files that exist
    #[arg(long)]
    pub force: bool,
    /// Print a JSON record
    #[arg(long)]
    pub json: bool,
}
