//! `fourtap explain`, and the case it shares with `fourtap profile`.

use std::path::PathBuf;

use clap::Args;
use fourtap_admin::cli::ThreadsArgs;

use super::{
    CoordinatesChoice, DTypeChoice, DeviceChoice, Direction, Distribution, InputsChoice,
    distributions,
};

/// One case of a workload.
#[derive(Clone, Debug, Args)]
pub struct CaseArgs {
    /// A built-in workload (see `fourtap bench --list`) or a .toml file of the same form
    #[arg(value_name = "WORKLOAD")]
    pub workload: PathBuf,
    /// Element type of value: f32, f16, bf16, f64
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f16",
        hide_possible_values = true
    )]
    pub dtype: DTypeChoice,
    /// Element type of locations and weights: f32, or value for that of value
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f32",
        hide_possible_values = true
    )]
    pub coordinates: CoordinatesChoice,
    /// What deformable attention is computed from: given, projections
    #[arg(
        long,
        value_name = "WAY",
        default_value = "given",
        hide_possible_values = true
    )]
    pub inputs: InputsChoice,
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
    /// Pass: forward, backward
    #[arg(
        long,
        value_name = "PASS",
        default_value = "forward",
        hide_possible_values = true
    )]
    pub direction: Direction,
    /// Batch size (images or sequences) instead of the workload's own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub images: Option<u32>,
}

/// `fourtap explain`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Bytes and FLOP are counted from the sizes and, for the first image, from the points themselves. Each
limit is an amount over a measured ceiling: the least time that part of the hardware needs. The
largest of them is the lower bound, and the bottleneck.

No GPU is needed: ceilings are read from results of `fourtap probe`, and the kernel is chosen for
the device they were measured on. With --device cuda:N it is chosen for that device of this machine.")]
pub struct ExplainArgs {
    #[command(flatten)]
    pub case: CaseArgs,
    /// Measured ceilings: a file of records, or a folder of such files [default: those of an H200]
    #[arg(long, value_name = "RUN")]
    pub probes: Option<PathBuf>,
    /// Results and counters to compare the prediction with [default: those next to --probes, if any]
    #[arg(long, value_name = "RUN")]
    pub results: Option<PathBuf>,
    /// Device to explain it for: auto (the device of --probes), cpu, cuda or cuda:N
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "auto",
        help_heading = "Device"
    )]
    pub device: DeviceChoice,
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Print one JSON object with all numbers instead of text
    #[arg(long)]
    pub json: bool,
}
