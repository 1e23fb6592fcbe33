//! What can be typed.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use fourtap::DType;
use fourtap::cpu::Simd;
use serde::{Deserialize, Serialize};

/// More threads than any machine has cores only exhausts the system.
const MOST_THREADS: i64 = 4096;

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  an error: bad input, a file that cannot be read or written, not enough memory
  2  wrong usage of the command line
  3  a verification failed: a result is not near enough to the f64 oracle";

/// Multi-scale deformable attention: compute it, time it, check it.
#[derive(Debug, Parser)]
#[command(name = "fourtap", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// Threads to use [default: all cores]
    #[arg(long, global = true, help_heading = "Device", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_THREADS))]
    pub threads: Option<u32>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compute the attention, and its gradients, of tensors in a file
    Run(RunArgs),
    /// Verify against the oracle on a sample, then time
    Bench(BenchArgs),
    /// Hold random problems to the f64 oracle, every element compared
    Check(CheckArgs),
    /// Say what this machine has and what is missing
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Where to compute.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Device")]
pub struct TargetArgs {
    /// Where to compute: auto, cpu or cuda:N
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub device: DeviceChoice,
    /// CPU instructions: avx512, avx2 or portable [default: the best there are]
    #[arg(long, value_name = "PATH", hide_possible_values = true)]
    pub simd: Option<SimdChoice>,
}

/// `fourtap run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Tensors of IN (F16, BF16, F32 or F64; locations and weights F32 or the type of value):
  value               [N, S, M, D]
  spatial_shapes      [L, 2]              I64 or I32, height first
  level_start_index   [L]                 I64 or I32, optional
  sampling_locations  [N, Q, M, L, P, 2]  x first
  attention_weights   [N, Q, M, L, P]
  grad_out            [N, Q, M*D]         only for --grad

Tensors of OUT: out [N, Q, M*D]; with --grad also grad_value, grad_locations and grad_weights.
OUT appears whole or not at all.")]
pub struct RunArgs {
    /// A safetensors file with the inputs
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The safetensors file to write
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// Also compute the three gradients, from grad_out in IN
    #[arg(long)]
    pub grad: bool,
    /// Replace OUT if it exists
    #[arg(long)]
    pub force: bool,
    /// Print a JSON record of what was done
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub target: TargetArgs,
}

/// `fourtap bench`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
A WORKLOAD is a built-in name (see --list), a .toml file of the same form, or a .safetensors file
with the tensors of `fourtap run`, which is timed as it is: --dtype, --distribution and --images
do not apply to it.

Distributions: 'local' scatters points around each query's reference point (sigma 4 pixels of each
level), as trained models do; 'uniform' puts them anywhere in the image.")]
pub struct BenchArgs {
    /// What to time [default: all built-in workloads]
    #[arg(value_name = "WORKLOAD")]
    pub workloads: Vec<PathBuf>,
    /// Element types of value: f32, f16, bf16, f64 [default: f32]
    #[arg(
        long,
        value_name = "TYPE",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub dtype: Vec<DTypeChoice>,
    /// Passes to time: forward, backward [default: both]
    #[arg(
        long,
        value_name = "PASS",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub direction: Vec<Direction>,
    /// Where the sampling points lie: uniform, local [default: both]
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub distribution: Vec<Distribution>,
    /// Images, instead of the workload's own number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub images: Option<u32>,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Append a JSON record a result to FILE; - prints them instead of a table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Half a minute at most: three workloads, one image, f32, bf16 and f16
    #[arg(long)]
    pub quick: bool,
    /// Only benchmarks with TEXT in their name, as in encoder/local/f16/forward
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// List the built-in workloads and exit
    #[arg(long)]
    pub list: bool,
    #[command(flatten)]
    pub target: TargetArgs,
}

/// `fourtap check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Random problems to check
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub cases: u64,
    /// Seed of the first problem; the others follow
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Print a JSON record instead of words
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub target: TargetArgs,
}

/// `fourtap doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print a JSON record instead of words
    #[arg(long)]
    pub json: bool,
}

/// `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best there is.
    Auto,
    /// This processor.
    Cpu,
    /// The GPU of this number.
    Cuda(u32),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().map(DeviceChoice::Cuda);
        match text {
            "auto" => Some(DeviceChoice::Auto),
            "cpu" => Some(DeviceChoice::Cpu),
            "cuda" => Some(DeviceChoice::Cuda(0)),
            other => other.strip_prefix("cuda:").and_then(number),
        }
        .ok_or_else(|| "expected auto, cpu or cuda:N".to_string())
    }
}

/// `--simd`. Variants have no comments, here and below: `--help` would spend a paragraph on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimdChoice {
    Avx512,
    Avx2,
    Portable,
}

impl From<SimdChoice> for Simd {
    fn from(choice: SimdChoice) -> Simd {
        match choice {
            SimdChoice::Avx512 => Simd::Avx512,
            SimdChoice::Avx2 => Simd::Avx2,
            SimdChoice::Portable => Simd::Portable,
        }
    }
}

/// `--dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DTypeChoice {
    F32,
    F16,
    Bf16,
    F64,
}

impl From<DTypeChoice> for DType {
    fn from(choice: DTypeChoice) -> DType {
        match choice {
            DTypeChoice::F32 => DType::F32,
            DTypeChoice::F16 => DType::F16,
            DTypeChoice::Bf16 => DType::BF16,
            DTypeChoice::F64 => DType::F64,
        }
    }
}

/// Which pass is timed: the output, or all three gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    Forward,
    Backward,
}

impl Direction {
    /// Both, in the order they are timed.
    pub const ALL: [Direction; 2] = [Direction::Forward, Direction::Backward];

    /// As typed and recorded.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        }
    }
}

/// Where the sampling points of a made-up problem lie: anywhere, or around each query's reference
/// point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    Uniform,
    Local,
}

impl Distribution {
    /// Both.
    pub const ALL: [Distribution; 2] = [Distribution::Uniform, Distribution::Local];

    /// As typed and recorded.
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Local => "local",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn reads_devices() {
        assert_eq!("cuda:3".parse(), Ok(DeviceChoice::Cuda(3)));
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        assert!("cuda:-1".parse::<DeviceChoice>().is_err());
        assert!("gpu".parse::<DeviceChoice>().is_err());
    }
}
