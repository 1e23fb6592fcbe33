//! `fourtap profile`.

use std::path::PathBuf;

use clap::Args;

use super::{CaseArgs, DeviceChoice};

/// `fourtap profile`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
The workload is computed once under Nsight Compute's `ncu`, and verified there against the oracle.
Each kernel is replayed until every counter has been read, with unlocked clocks and caches flushed
before each replay: bytes are those of a cold launch.

The bottleneck is the busiest unit, if it is busy for at least 60 % of the time; else it is latency.")]
pub struct ProfileArgs {
    #[command(flatten)]
    pub case: CaseArgs,
    /// The profiler [default: ncu on the PATH, else where CUDA installs it]
    #[arg(long, value_name = "PATH", conflicts_with = "import")]
    pub ncu: Option<PathBuf>,
    /// Read counters from a file that `ncu --csv` wrote, instead of running it
    #[arg(long, value_name = "FILE")]
    pub import: Option<PathBuf>,
    /// Additional counters to read, by ncu's names
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        conflicts_with = "import"
    )]
    pub metrics: Vec<String>,
    /// Append one JSON record per kernel to FILE; - prints them instead of a table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Device to profile on: auto, cuda or cuda:N; auto is cuda:0
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "auto",
        help_heading = "Device"
    )]
    pub device: DeviceChoice,
    /// Be the program that is profiled: compute once, verify, and leave a statement in FILE.
    #[arg(long, value_name = "FILE", hide = true)]
    pub statement: Option<PathBuf>,
}
