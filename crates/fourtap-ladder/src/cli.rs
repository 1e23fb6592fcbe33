//! What can be typed after `ladder`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fourtap_lab::extension::{DeviceChoice, Distribution, parse_duration, parse_setting};

/// Verify, time and rank every kernel idea of the ladder
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Each RUNG is one idea for a fast forward kernel: a01 to a19 and the single changes s1 and s2 of
deformable attention, in f16 with f32 locations, and d01 to d10 of dense attention, in f16;
'shipped' and 'shipped-dense' are what the library itself uses, d09 is PyTorch. D6 is d06.

A rung runs in a process of its own under a time limit: one that hangs or fails is a result, and the
others still run. Before it has a time it must compute every element of small problems right, pass
the tools of compute-sanitizer where that is installed, and compute sampled rows of the workload
right.

'gather' is what the samples ask for, over the time, as a share of what L1 delivers at most in
pieces of 64 bytes; 'DRAM' what must move at least once, as a share of what DRAM delivers; 'tensor'
the operations of dense attention as a share of what tensor cores do by mma.sync.")]
pub struct LadderArgs {
    /// Rungs to run, by name or prefix [default: all]
    #[arg(value_name = "RUNG")]
    pub rungs: Vec<String>,
    /// Workloads: built-in names or .toml files; of dense attention dense-s512, dense-s1024 and
    /// dense-b4-h16-s2048 [default: seed-full, detr-encoder and three small ones; those three]
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',')]
    pub workload: Vec<PathBuf>,
    /// Where the sampling points lie: uniform, local, window [default: uniform and local]
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub distribution: Vec<Distribution>,
    /// Of dense attention: query i sees keys 0 to i only
    #[arg(long)]
    pub causal: bool,
    /// A Python that has PyTorch with CUDA, for d09
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub python: PathBuf,
    /// Other parameters than the defaults, as in THREADS=128; see --list
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',', value_parser = parse_setting)]
    pub set: Vec<(String, u32)>,
    /// Try every combination of each rung's parameters, and keep the fastest
    #[arg(long, conflicts_with = "set")]
    pub sweep: bool,
    /// Read hardware counters of the first workload too, to say what binds (needs Nsight Compute)
    #[arg(long)]
    pub counters: bool,
    /// Do not run compute-sanitizer; the records then say so
    #[arg(long)]
    pub no_sanitizer: bool,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// List the rungs with their ideas and parameters, and exit
    #[arg(long)]
    pub list: bool,
    /// How long one rung may take, as in 30s or 2m [default: 60s; 10m with --sweep]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub limit: Option<Duration>,
    /// Append a JSON record a result to FILE; - prints them instead of tables
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
    /// Do this with the one rung here, for the process that watches it
    #[arg(long, value_name = "WHAT", hide = true)]
    pub in_this_process: Option<WorkerTask>,
}

/// What a process of its own does with a rung.
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
