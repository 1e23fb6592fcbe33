//! What can be typed.

mod choices;
mod compare;
mod explain;
mod probe;
mod profile;
mod report;
mod tune;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use fourtap_admin::cli::ThreadsArgs;

use crate::commands::note;
use crate::exit::ExitCode;
use crate::extension::{self, Extension};
use crate::operators::{self, Operator};

pub use choices::{
    CoordinatesChoice, DTypeChoice, DeviceChoice, Direction, Distribution, KernelChoice, SimdChoice,
};
pub use compare::{CompareArgs, FailOn};
pub use explain::{CaseArgs, ExplainArgs};
pub use probe::ProbeArgs;
pub use profile::ProfileArgs;
pub use report::ReportArgs;
pub use tune::{OneArgs, SearchArgs, TuneArgs, TuneProblem, TuneWhat, WorkArgs, parse_setting};

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  an error: bad input, a file that cannot be read or written, not enough memory
  2  wrong usage of the command line
  3  a verification failed: a result is not near enough to the f64 oracle; or `compare` found what
     it was to fail on";

/// Attention, deformable and dense: compute it, time it, check it.
#[derive(Debug, Parser)]
#[command(name = "fourtap", version, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    pub threads: ThreadsArgs,
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
    /// Compare two sets of results, benchmark by benchmark
    Compare(CompareArgs),
    /// Measure what the hardware can do at most
    Probe(ProbeArgs),
    /// Say what a workload costs, what limits it and why
    Explain(ExplainArgs),
    /// Read the hardware counters of a workload, and what they say
    Profile(ProfileArgs),
    /// Search for better choices about a kernel, each verified, then timed
    Tune(Box<TuneArgs>),
    /// Write a page about results, with charts
    Report(ReportArgs),
    /// Hold random problems to the f64 oracle, every element compared
    Check(CheckArgs),
    #[command(flatten)]
    Admin(fourtap_admin::Command),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// What was typed.
pub enum Typed {
    /// For this program.
    Own(Cli),
    /// For an extension.
    Added {
        /// Whose.
        extension: &'static dyn Extension,
        /// Threads to use.
        threads: ThreadsArgs,
        /// Of its subcommand.
        arguments: ArgMatches,
    },
}

/// What these words say, the first being the program's name.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Typed, clap::Error> {
    let matches = command().try_get_matches_from(words)?;
    match (extension::current(), matches.subcommand()) {
        (Some(added), Some((name, arguments))) if name == added.subcommand().get_name() => {
            Ok(Typed::Added {
                extension: added,
                threads: ThreadsArgs::from_arg_matches(&matches)?,
                arguments: arguments.clone(),
            })
        }
        _ => Cli::from_arg_matches(&matches).map(Typed::Own),
    }
}

/// Everything that can be typed, with what an extension adds.
pub fn command() -> clap::Command {
    let command = Cli::command();
    match extension::current() {
        Some(added) => command.name(added.name()).subcommand(added.subcommand()),
        None => command,
    }
}

/// Prints help, or what is wrong with what was typed.
pub fn refuse(usage: &clap::Error) -> ExitCode {
    // Where it cannot be printed, the number still tells.
    let _ = usage.print();
    let unknown = usage.get(ContextKind::InvalidSubcommand);
    let ladder = ContextValue::String("ladder".to_string());
    if usage.kind() == ErrorKind::InvalidSubcommand && unknown == Some(&ladder) {
        note(
            "hint: the ladder is a program of its own: cargo run --release -p fourtap-ladder -- ladder",
        );
    }
    ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2))
}

/// Where to compute.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Device")]
pub struct TargetArgs {
    /// Where to compute: auto, cpu, cuda or cuda:N; auto is cuda:0 if there is one
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub device: DeviceChoice,
    /// CUDA kernel: best, gather or channel (one thread a channel, what speed is measured against)
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    pub kernel: Option<KernelChoice>,
    /// CUDA backward with the same bits every run, which the CPU's has anyway
    #[arg(long)]
    pub deterministic: bool,
    /// CPU instructions: amx, avx512, avx2 or portable [default: the best]
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
OUT appears whole or not at all.

Dense attention has other tensors, all of one type; OUT holds out [B, Hq, Sq, Dv] and with --lse
also lse [B, Hq, Sq]:
  query               [B, Hq, Sq, D]
  key                 [B, Hk, Sk, D]
  value               [B, Hk, Sk, Dv]
What is to be computed is in the file's metadata: 'scale' (1/sqrt(D) without), 'causal' (top-left or
bottom-right) and 'window' (LEFT,RIGHT: keys seen before and after the diagonal, as in 128,0 or
all,64).")]
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
    /// Also compute the logarithms of the sums of exponentials, of dense attention
    #[arg(long)]
    pub lse: bool,
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
A WORKLOAD is a built-in name (see --list), msda or dense for all of an operator, a .toml file of
the same form, or a .safetensors file with the tensors of `fourtap run`, which is timed as it is:
--dtype, --distribution, --images and --coordinates do not apply to it.

Dense attention has a forward pass only, of normal numbers: --distribution and --coordinates do not
apply to it. On the CPU `dense` leaves out what takes long; on CUDA it is timed in f16 and bf16.

Distributions: 'local' scatters points around each query's reference point (sigma 4 pixels of each
level), as trained models do; 'uniform' puts them anywhere in the image; 'window' puts all of them
into the same 6 x 6 pixels of each level, where gradients of value contend.

A result is two figures: hot (the same inputs again and again, so that what caches can hold stays
there) and cold (copies of them in turn, more than the largest cache holds). What the hardware can
do at most is measured first; a result faster than that allows is marked suspicious. On CUDA the
ruler, one thread a channel, is timed in the same run. Backward computes all three gradients, in
workspace given beforehand; where its bits may differ from run to run, deterministic mode is timed
beside it.")]
pub struct BenchArgs {
    /// What to time [default: msda, all of deformable attention]
    #[arg(value_name = "WORKLOAD")]
    pub workloads: Vec<PathBuf>,
    /// Element types of value: f32, f16, bf16, f64 [default: f32; on CUDA f16, bf16 and f32]
    #[arg(
        long,
        value_name = "TYPE",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub dtype: Vec<DTypeChoice>,
    /// Element type of locations and weights: f32, or value for that of value
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f32",
        hide_possible_values = true
    )]
    pub coordinates: CoordinatesChoice,
    /// Passes to time: forward, backward [default: both]
    #[arg(
        long,
        value_name = "PASS",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub direction: Vec<Direction>,
    /// Where the sampling points lie: uniform, local, window [default: uniform and local]
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub distribution: Vec<Distribution>,
    /// Images, or sequences, instead of the workload's own number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub images: Option<u32>,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Append a JSON record a result to FILE; - prints them instead of a table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Go on with --json FILE after an interruption
    #[arg(long)]
    pub resume: bool,
    /// Also write a page about the results, with charts
    #[arg(long, value_name = "PAGE")]
    pub report: Option<PathBuf>,
    /// Half a minute or so: four workloads, one image, f32, bf16 and f16
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
#[command(after_help = "\
On the CPU both passes of deformable attention go through every vector path. On CUDA they go through
the best kernels and those of one thread a channel, with levels in host memory and, every third
problem, in the device's; backward in both its modes, with --deterministic in that one only.

Dense attention has a forward pass: on the CPU with and without lse, on CUDA in f16 and bf16, the
types there are.")]
pub struct CheckArgs {
    /// Operators to check: msda, dense [default: both]
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        hide_possible_values = true,
        value_parser = operators::parser()
    )]
    pub operator: Vec<&'static dyn Operator>,
    /// Random problems of each operator to check
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
