//! `fourtap probe`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fourtap_admin::cli::ThreadsArgs;

use super::DeviceChoice;
use crate::units;

/// `fourtap probe`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Each probe runs in a subprocess under a time limit: one that hangs or crashes is recorded as that,
and the others still run. What a probe computes is verified before its time counts; a wrong result
has no rate.")]
pub struct ProbeArgs {
    /// Probes to run, by name [default: all of the device]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Only probes with TEXT in their name, as in gather
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// List the probes of the device and exit
    #[arg(long)]
    pub list: bool,
    /// Time limit of one probe, as in 30s or 2m [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    pub limit: Option<Duration>,
    /// Append one JSON record per result to FILE; - prints them instead of tables
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Device to probe: auto, cpu, cuda or cuda:N; auto is cuda:0 if there is one
    #[arg(
        long,
        default_value = "auto",
        value_name = "DEVICE",
        help_heading = "Device"
    )]
    pub device: DeviceChoice,
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Run this probe here and print its records, for the process that watches it
    #[arg(long, value_name = "NAME", hide = true, conflicts_with_all = ["names", "filter", "list", "limit", "json"])]
    pub in_this_process: Option<String>,
}
