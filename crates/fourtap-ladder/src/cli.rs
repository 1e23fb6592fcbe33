//! The command line of `ladder`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fourtap_lab::extension::{
    DeviceChoice, DevicesChoice, Distribution, distributions, parse_duration, parse_setting,
};

/// Verify, time and rank every kernel idea of the ladder
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Each RUNG is one idea for a fast forward kernel: a01 to a19 and the single changes s1 and s2 of
deformable attention, in f16 with f32 locations, and d01 to d10 of dense attention, in f16;
'shipped' and 'shipped-dense' are what the library itself uses, d09 is PyTorch. D6 is d06.

A rung runs in a subprocess under a time limit: one that hangs or fails is recorded as that, and the
others still run. Before it is timed, every element of small problems must match the f64 oracle,
compute-sanitizer must be clean where it is installed, and sampled rows of the workload must match.

'gather' is the bandwidth the samples ask for, as a share of L1's peak in pieces of 64 bytes; 'DRAM'
the bandwidth of what must move at least once, as a share of DRAM's; 'tensor' the FLOP/s of dense
attention as a share of what tensor cores reach by mma.sync, which d08, by wgmma, may exceed.")]
pub struct LadderArgs {
    /// Rungs to run, by name or prefix [default: all]
    #[arg(value_name = "RUNG")]
    pub rungs: Vec<String>,
    /// Workloads: built-in names or .toml files; for dense attention dense-s512, dense-s1024,
    /// dense-b4-h16-s2048 and dense-b4-h16-s2048-d128 [default: seed-full, detr-encoder and three small ones; dense: the
    /// first three]
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',')]
    pub workload: Vec<PathBuf>,
    /// Where the sampling points lie, as for `fourtap bench` [default: uniform and local]
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        hide_possible_values = true,
        visible_alias = "points",
        value_parser = distributions()
    )]
    pub distribution: Vec<Distribution>,
    /// Causal mask, for dense attention
    #[arg(long)]
    pub causal: bool,
    /// A Python that has PyTorch with CUDA, for d09
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub python: PathBuf,
    /// Parameters that differ from the defaults, as in THREADS=128; see --list
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',', value_parser = parse_setting)]
    pub set: Vec<(String, u32)>,
    /// Try every combination of each rung's parameters, and keep the fastest
    #[arg(long, conflicts_with = "set")]
    pub sweep: bool,
    /// Also read hardware counters of the first workload, to name the bottleneck (needs Nsight Compute)
    #[arg(long)]
    pub counters: bool,
    /// Do not run compute-sanitizer; the records then say so
    #[arg(long)]
    pub no_sanitizer: bool,
    /// Random seed
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// List the rungs with their ideas and parameters, and exit
    #[arg(long)]
    pub list: bool,
    /// Time limit of one rung, as in 30s or 2m [default: 60s; 10m with --sweep]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub limit: Option<Duration>,
    /// Append one JSON record per result to FILE; - prints them instead of tables
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Device to run on: auto, cuda or cuda:N
    #[arg(
        long,
        default_value = "auto",
        value_name = "DEVICE",
        help_heading = "Device"
    )]
    pub device: DeviceChoice,
    /// Share rungs among all visible GPUs, which must be of one model: all
    #[arg(
        long,
        value_name = "WHICH",
        hide_possible_values = true,
        conflicts_with = "device",
        help_heading = "Device"
    )]
    pub devices: Option<DevicesChoice>,
    /// Do this with the one rung here, for the process that watches it
    #[arg(long, value_name = "WHAT", hide = true)]
    pub in_this_process: Option<WorkerTask>,
}

/// What the subprocess does with a rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WorkerTask {
    /// Everything, and print records.
    Measure,
    /// Small problems only, watched by a sanitizer.
    Check,
    /// Each case once, watched by a profiler.
    Launch,
}

impl WorkerTask {
    /// As typed.
    pub fn name(self) -> &'static str {
        match self {
            WorkerTask::Measure => "measure",
            WorkerTask::Check => "check",
            WorkerTask::Launch => "launch",
        }
    }
}
