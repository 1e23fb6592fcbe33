//! `fourtap tune`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{DTypeChoice, DeviceChoice, Direction, Distribution};
use crate::units;

/// `fourtap tune`.
#[derive(Clone, Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A TARGET is a workload (see `fourtap bench --list`), for which every kernel it uses is tuned, or a
kernel (see --space), on a workload of its kind.

The first generation is the defaults, what the machine's sizes suggest, and chance; later ones
change and mix the best. Where there are few enough choices, all of them are tried. Kernels are
compiled by several processes while the device times others. What is tried runs in a process apart,
under a time limit: one that hangs, crashes or computes something else is a result, and the search
goes on with another process. Before a choice has a time it must compute sampled rows right, and the
very bits of the defaults unless --allow-rounding-changes allows others.

The fastest are timed again, in turns with the defaults, until they are told apart. What is faster
beyond doubt is kept in a file of yours, for problems of the same class on this device; every call
looks there first. FOURTAP_TUNE names another file; FOURTAP_TUNE=off goes by the defaults."
)]
pub struct TuneArgs {
    /// What else to do.
    #[command(subcommand)]
    pub what: Option<TuneCommand>,
    #[command(flatten)]
    pub search: SearchArgs,
}

/// What `fourtap tune` does besides searching.
#[derive(Clone, Debug, Subcommand)]
pub enum TuneCommand {
    /// Try a single choice: verify it, and time it in turns with the defaults
    One(OneArgs),
    /// Print the table of choices that searches found, from their records
    Table {
        /// Files of records, or folders of such files
        #[arg(value_name = "RUN", required = true)]
        runs: Vec<PathBuf>,
    },
    /// Compile, verify and time choices here, for the process that watches it
    #[command(hide = true)]
    Work(WorkArgs),
}

/// A search.
#[derive(Clone, Debug, Args)]
pub struct SearchArgs {
    /// Workloads or kernels to tune
    #[arg(value_name = "TARGET")]
    pub targets: Vec<PathBuf>,
    #[command(flatten)]
    pub problem: TuneProblem,
    /// Passes of a workload: forward, backward [default: both]
    #[arg(
        long,
        value_name = "PASS",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub direction: Vec<Direction>,
    /// Fix parameters, as in tasks_each=8; the others are searched
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',', value_parser = parse_setting)]
    pub set: Vec<(String, u32)>,
    /// Also choices whose results may differ from the defaults' in their last bits
    #[arg(long)]
    pub allow_rounding_changes: bool,
    /// Generations, at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub generations: u32,
    /// Attempts a generation
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub population: u32,
    /// How many of the best the next generation is made of, and go to the finals
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub top_k: u32,
    /// Time for each target, as in 5m [default: none set]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    pub budget: Option<Duration>,
    /// How long one attempt may take
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::parse_duration)]
    pub limit: Duration,
    /// How long its kernels may take to compile
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::parse_duration)]
    pub build_limit: Duration,
    /// Append a JSON record an attempt to FILE; - prints them instead of tables
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Go on with --json FILE after an interruption
    #[arg(long)]
    pub resume: bool,
    /// Also write every attempt as a row of a table, for spreadsheets
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Also write a page about the search, with charts
    #[arg(long, value_name = "PAGE")]
    pub report: Option<PathBuf>,
    /// Keep nothing: say what was found, and leave your file as it is
    #[arg(long)]
    pub dry_run: bool,
    /// List the kernels that can be tuned, or the TARGETs, with their parameters, and exit
    #[arg(long)]
    pub space: bool,
}

/// On what to try choices.
#[derive(Clone, Debug, Args)]
pub struct TuneProblem {
    /// Workload for a kernel [default: detr-encoder; dense-s2048-d64 for dense attention]
    #[arg(long, value_name = "WORKLOAD")]
    pub workload: Option<PathBuf>,
    /// Element types: f32, f16, bf16, f64 [default: f32; f16 on a CUDA device]
    #[arg(
        long,
        value_name = "TYPE",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub dtype: Vec<DTypeChoice>,
    /// Where the sampling points lie: uniform, local, window
    #[arg(
        long,
        value_name = "KIND",
        default_value = "local",
        hide_possible_values = true
    )]
    pub distribution: Distribution,
    /// Images, or sequences, instead of the workload's own number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub images: Option<u32>,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// What to tune for: auto, cpu or cuda:N
    #[arg(
        long,
        default_value = "auto",
        value_name = "DEVICE",
        help_heading = "Device"
    )]
    pub device: DeviceChoice,
}

/// `fourtap tune one`.
#[derive(Clone, Debug, Args)]
pub struct OneArgs {
    /// The kernel; `fourtap tune --space` lists them
    #[arg(value_name = "KERNEL")]
    pub kernel: String,
    /// Other parameters than the defaults, as in tasks_each=8
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',', value_parser = parse_setting)]
    pub set: Vec<(String, u32)>,
    #[command(flatten)]
    pub problem: TuneProblem,
    /// How long it may take
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::parse_duration)]
    pub limit: Duration,
    /// Print a JSON record instead of words
    #[arg(long)]
    pub json: bool,
}

/// What a process of its own is told; its tasks come by standard input.
#[derive(Clone, Debug, Args)]
pub struct WorkArgs {
    /// The kernel.
    pub kernel: String,
    #[command(flatten)]
    pub problem: TuneProblem,
}

/// A parameter and its value from "NAME=VALUE".
pub fn parse_setting(text: &str) -> Result<(String, u32), String> {
    let found = text.split_once('=').and_then(|(name, value)| {
        let value = value.trim().parse().ok()?;
        Some((name.trim().to_string(), value))
    });
    found.ok_or_else(|| "expected NAME=VALUE with a whole number".to_string())
}
