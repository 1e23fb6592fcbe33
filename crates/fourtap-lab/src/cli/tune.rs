//! `fourtap tune`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use fourtap_admin::cli::ThreadsArgs;

use super::{DTypeChoice, DeviceChoice, DevicesChoice, Direction, Distribution, distributions};
use crate::units;

/// `fourtap tune`.
#[derive(Clone, Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
A TARGET is a workload (see `fourtap bench --list`), for which every kernel it uses is tuned, or a
kernel (see --space), on a workload of its kind.

A choice is one value per parameter. The first generation is the defaults, what the machine's sizes
suggest, and random choices; later ones mutate and mix the best. Small spaces are searched
exhaustively. Kernels are compiled in parallel while the device times others. Each attempt runs in a
subprocess under a time limit: one that hangs, crashes or computes wrongly is recorded as that, and
the search continues. Before a choice is timed, sampled rows must match the oracle, and all bytes
those of the defaults unless --allow-rounding-changes is given.

The fastest are timed again, alternately with the defaults, until they can be told apart. What is
faster with confidence is stored in your tuning table, for problems of the same class on this
device; every call looks there first. FOURTAP_TUNE names another file; FOURTAP_TUNE=off ignores all
tables."
)]
pub struct TuneArgs {
    /// What else to do.
    #[command(subcommand)]
    pub what: Option<TuneCommand>,
    #[command(flatten)]
    pub search: SearchArgs,
}

impl TuneArgs {
    /// How many threads to compute with, if anything is computed.
    pub fn threads(&self) -> Option<&ThreadsArgs> {
        match &self.what {
            None => Some(&self.search.problem.threads),
            Some(TuneCommand::One(one)) => Some(&one.problem.threads),
            Some(TuneCommand::Work(work)) => Some(&work.problem.threads),
            Some(TuneCommand::Table { .. }) => None,
        }
    }
}

/// What `fourtap tune` does besides searching.
#[derive(Clone, Debug, Subcommand)]
pub enum TuneCommand {
    /// Try a single choice: verify it, and time it alternately with the defaults
    One(OneArgs),
    /// Print the tuning table that searches found, from their records
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
    /// Share targets among all visible GPUs, each searched on one of them: all
    #[arg(
        long,
        value_name = "WHICH",
        hide_possible_values = true,
        conflicts_with_all = ["device", "resume"],
        help_heading = "Device"
    )]
    pub devices: Option<DevicesChoice>,
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
    /// Also try choices whose results may differ from the defaults' in the last bits
    #[arg(long)]
    pub allow_rounding_changes: bool,
    /// Maximum number of generations
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub generations: u32,
    /// Attempts per generation
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub population: u32,
    /// How many of the best breed the next generation and go to the finals
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub top_k: u32,
    /// Time limit per target, as in 5m [default: none]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    pub budget: Option<Duration>,
    /// Time limit of one attempt
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::parse_duration)]
    pub limit: Duration,
    /// Time limit of compiling its kernels
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::parse_duration)]
    pub build_limit: Duration,
    /// Append one JSON record per attempt to FILE; - prints them instead of tables
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Continue an interrupted search: skip what --json FILE holds
    #[arg(long)]
    pub resume: bool,
    /// Also write every attempt as a row of a CSV file
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Also write a report of the search, with charts
    #[arg(long, value_name = "PAGE")]
    pub report: Option<PathBuf>,
    /// Store nothing: print what was found and leave your tuning table as it is
    #[arg(long)]
    pub dry_run: bool,
    /// List the kernels that can be tuned (or the TARGETs) with their parameters, and exit
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
    /// Where the sampling points lie, as for bench
    #[arg(
        long,
        value_name = "KIND",
        default_value = "local",
        hide_possible_values = true,
        visible_alias = "points",
        value_parser = distributions()
    )]
    pub distribution: Distribution,
    /// Batch size (images or sequences) instead of the workload's own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub images: Option<u32>,
    /// Random seed
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Device to tune for: auto, cpu or cuda:N
    #[arg(
        long,
        default_value = "auto",
        value_name = "DEVICE",
        help_heading = "Device"
    )]
    pub device: DeviceChoice,
    #[command(flatten)]
    pub threads: ThreadsArgs,
}

/// `fourtap tune one`.
#[derive(Clone, Debug, Args)]
pub struct OneArgs {
    /// The kernel; `fourtap tune --space` lists them
    #[arg(value_name = "KERNEL")]
    pub kernel: String,
    /// Parameters that differ from the defaults, as in tasks_each=8
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',', value_parser = parse_setting)]
    pub set: Vec<(String, u32)>,
    #[command(flatten)]
    pub problem: TuneProblem,
    /// Time limit
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::parse_duration)]
    pub limit: Duration,
    /// Print a JSON record instead of text
    #[arg(long)]
    pub json: bool,
}

/// The arguments of the subprocess; its tasks come by standard input.
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
