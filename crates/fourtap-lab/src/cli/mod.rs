//! The command line.

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
use crate::console;
use crate::error::Result;
use crate::exit::ExitCode;
use crate::extension::{self, Extension};
use crate::operators::{self, Operator};

pub use choices::{
    CoordinatesChoice, DTypeChoice, DeviceChoice, DevicesChoice, Direction, InputsChoice,
    KernelChoice, SimdChoice, distributions,
};
pub use compare::{CompareArgs, FailOn};
pub use explain::{CaseArgs, ExplainArgs};
pub use fourtap::verify::Distribution;
pub use probe::ProbeArgs;
pub use profile::ProfileArgs;
pub use report::ReportArgs;
pub use tune::{OneArgs, SearchArgs, TuneArgs, TuneCommand, TuneProblem, WorkArgs, parse_setting};

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  an error: bad input, a file that cannot be read or written, not enough memory
  2  wrong usage of the command line
  3  a verification failed: a result is outside the error tolerance of the f64 oracle; or `compare`
     or `bench --against` met a --fail-on condition
  130  interrupted by Ctrl-C; `bench` first shows and writes what it has measured";

/// Deformable and dense attention: compute, verify, benchmark, profile and tune.
#[derive(Debug, Parser)]
#[command(name = "fourtap", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compute attention, and its gradients, from tensors in a file
    Run(RunArgs),
    /// Benchmark workloads: verify against the f64 oracle, then time
    Bench(BenchArgs),
    /// Compare two sets of results, benchmark by benchmark
    Compare(CompareArgs),
    /// Measure the hardware's ceilings: bandwidths, FLOP/s, latencies
    Probe(ProbeArgs),
    /// Predict what limits a workload, from bytes, FLOP and measured ceilings
    Explain(ExplainArgs),
    /// Read hardware counters with Nsight Compute, and name the bottleneck
    Profile(ProfileArgs),
    /// Search for faster kernel parameters on this machine
    Tune(Box<TuneArgs>),
    /// Write a page with charts from results
    Report(ReportArgs),
    /// Check random problems against the f64 oracle, every element
    Check(CheckArgs),
    #[command(flatten)]
    Admin(fourtap_admin::Command),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

impl Command {
    /// How many threads to compute with, if the command computes.
    fn threads(&self) -> Option<&ThreadsArgs> {
        match self {
            Command::Run(arguments) => Some(&arguments.target.threads),
            Command::Bench(arguments) => Some(&arguments.target.threads),
            Command::Check(arguments) => Some(&arguments.target.threads),
            Command::Probe(arguments) => Some(&arguments.threads),
            Command::Explain(arguments) => Some(&arguments.threads),
            Command::Tune(arguments) => arguments.threads(),
            Command::Admin(command) => command.threads(),
            Command::Compare(_)
            | Command::Profile(_)
            | Command::Report(_)
            | Command::Completions { .. } => None,
        }
    }
}

impl ParsedCommand {
    /// Starts the threads that the command computes with. To be called once.
    pub fn start_threads(&self) -> Result<()> {
        let threads = match self {
            ParsedCommand::Own(cli) => cli.command.threads().copied(),
            // Parsed with this option already, so that cannot fail.
            ParsedCommand::Added { arguments, .. } => ThreadsArgs::from_arg_matches(arguments).ok(),
        };
        Ok(threads.map_or(Ok(()), |threads| threads.start())?)
    }
}

/// A parsed command line.
pub enum ParsedCommand {
    /// For this program.
    Own(Cli),
    /// For an extension.
    Added {
        /// Whose.
        extension: &'static dyn Extension,
        /// Of its subcommand.
        arguments: ArgMatches,
    },
}

/// What these words say, the first being the program's name.
pub fn parse(
    words: impl IntoIterator<Item = OsString>,
) -> std::result::Result<ParsedCommand, clap::Error> {
    let matches = command().try_get_matches_from(words)?;
    match (extension::current(), matches.subcommand()) {
        (Some(added), Some((name, arguments))) if name == added.subcommand().get_name() => {
            Ok(ParsedCommand::Added {
                extension: added,
                arguments: arguments.clone(),
            })
        }
        _ => Cli::from_arg_matches(&matches).map(ParsedCommand::Own),
    }
}

/// Everything that can be typed, with what an extension adds.
pub fn command() -> clap::Command {
    let command = Cli::command();
    match extension::current() {
        Some(added) => {
            let subcommand = added.subcommand();
            // Which the description of the options would replace.
            let about = subcommand.get_about().cloned().unwrap_or_default();
            let subcommand = ThreadsArgs::augment_args(subcommand).about(about);
            command.name(added.name()).subcommand(subcommand)
        }
        None => command,
    }
}

/// Prints help, or what is wrong with the command line.
pub fn refuse(usage: &clap::Error) -> ExitCode {
    let code = console::report_usage(usage);
    let unknown = usage.get(ContextKind::InvalidSubcommand);
    let ladder = ContextValue::String("ladder".to_string());
    if usage.kind() == ErrorKind::InvalidSubcommand && unknown == Some(&ladder) {
        note(
            "hint: the ladder is a program of its own: cargo run --release -p fourtap-ladder -- ladder",
        );
    }
    code
}

/// Where to compute.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Device")]
pub struct TargetArgs {
    /// Where to compute: auto, cpu, cuda or cuda:N; auto is cuda:0 if there is one
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub device: DeviceChoice,
    /// CUDA kernel: best, gather or channel (the baseline: one thread per channel)
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    pub kernel: Option<KernelChoice>,
    /// Bitwise reproducible backward on CUDA; on the CPU it always is
    #[arg(long)]
    pub deterministic: bool,
    /// CPU instruction set: amx, avx512, avx2 or portable [default: the best]
    #[arg(long, value_name = "PATH", hide_possible_values = true)]
    pub simd: Option<SimdChoice>,
    /// With how many threads.
    #[command(flatten)]
    pub threads: ThreadsArgs,
}

impl TargetArgs {
    /// This device, and the best there is of everything else.
    pub fn on(device: DeviceChoice) -> Self {
        TargetArgs {
            device,
            kernel: None,
            deterministic: false,
            simd: None,
            threads: ThreadsArgs::default(),
        }
    }
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
OUT is written completely or not at all.

From projections, with these instead of locations and weights (F32 or the type of value; K points of
all levels of a head); the gradients are then grad_value, grad_references, grad_offsets and
grad_logits:
  reference_points    [N, Q, L, P, 2 or 4]  points or boxes; P may be left out, sizes may be 1
  sampling_offsets    [N, Q, M, K, 2]       x first
  attention_logits    [N, Q, M, K]          before the softmax
  value_mask          [N, S]                BOOL or U8, true for padding, optional
Options are in the file's metadata: 'points_per_level' (default K/L; or a list, as in 4,4,8),
'sampling' (bilinear or nearest) and 'box_scale' (default 0.5/P; or a list).

Dense attention has other tensors, all of one type; OUT holds out [B, Hq, Sq, Dv] and with --lse
also lse [B, Hq, Sq]:
  query               [B, Hq, Sq, D]
  key                 [B, Hk, Sk, D]
  value               [B, Hk, Sk, Dv]
Options are in the file's metadata: 'scale' (default 1/sqrt(D)), 'causal' (top-left or bottom-right)
and 'window' (LEFT,RIGHT: keys seen before and after the diagonal, as in 128,0 or all,64).")]
pub struct RunArgs {
    /// A safetensors file with the inputs
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The safetensors file to write; - is standard output
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// Also compute the gradients of all inputs, from grad_out in IN
    #[arg(long)]
    pub grad: bool,
    /// Also compute the log-sum-exp (LSE) of dense attention
    #[arg(long)]
    pub lse: bool,
    /// Replace OUT if it exists
    #[arg(long)]
    pub force: bool,
    /// Print a JSON record
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
--dtype, --distribution, --images, --coordinates and --inputs do not apply to it.

Dense attention has only a forward pass, on standard normal inputs: --distribution and --coordinates
do not apply to it. On the CPU `dense` skips large workloads; on CUDA it is timed in f16 and bf16.

Distributions: 'local' puts points around each query's reference point (sigma 4 pixels of each
level), as trained models do; 'uniform' puts them anywhere in the image. In the others they crowd,
and gradients of value contend:
  window           in the same 6 x 6 pixels of each level
  spot             all in one place
  cloud-5          around the middle, sigma 5 % of the image
  cloud-0.5        the same with 0.5 %
  corner-boxes     a quarter of the queries in one corner, with boxes of 0.001; others anywhere
  image-boxes      a third with boxes as large as the image around its corner; others anywhere
  zipf             on 20 objects, the k-th with 1/k as many queries as the first
  row              in one row of each level
  outside          outside the image
  rtdetr           those of RT-DETR's decoder before training, in f16
  deformable-detr  those of Deformable DETR before training

Inputs: 'given' are sampling locations and attention weights; 'projections' are what linear layers
put out: offsets and logits in the type of value, slices of one tensor, and reference points in f32,
boxes for decoders. Both ways have the same points and weights, but for rounding.

A result is two times: hot (the same inputs repeatedly, with warm caches) and cold (rotating through
copies larger than the largest cache). The hardware's ceilings are measured first; a result faster
than they allow is marked suspicious. On CUDA the baseline, one thread per channel, is timed in the
same run. Backward computes all gradients, in workspace allocated beforehand; where it is not
bitwise reproducible, deterministic mode is timed too.

--against OTHER compares A, the program OTHER, with B, this one: SLOWER, FASTER, SAME or UNCLEAR as
in `compare`. Both take turns in 16 rounds or more, in random order and in new processes each round,
so that a busy machine or a lowered clock affects both alike: two equal programs are called slower
or faster in at most 1 of 100 comparisons. Only hot times are taken; --json writes a record per
round.")]
pub struct BenchArgs {
    /// Workloads to time [default: msda, all of deformable attention]
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
    /// What deformable attention is computed from: given, projections [default: given]
    #[arg(
        long,
        value_name = "WAY",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub inputs: Vec<InputsChoice>,
    /// Passes to time: forward, backward [default: both]
    #[arg(
        long,
        value_name = "PASS",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub direction: Vec<Direction>,
    /// Where the sampling points lie, as below [default: uniform and local]
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        hide_possible_values = true,
        visible_alias = "points",
        value_parser = distributions()
    )]
    pub distribution: Vec<Distribution>,
    /// Batch size (images or sequences) instead of the workload's own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub images: Option<u32>,
    /// Random seed
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Append one JSON record per result to FILE; - prints them instead of a table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Continue an interrupted run: skip what --json FILE holds
    #[arg(long)]
    pub resume: bool,
    /// Also write a report with charts
    #[arg(long, value_name = "PAGE")]
    pub report: Option<PathBuf>,
    /// About half a minute: four workloads, one image, f32, bf16 and f16
    #[arg(long)]
    pub quick: bool,
    /// Only benchmarks with TEXT in their name, as in encoder/local/f16/forward
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Time OTHER too, a fourtap of another build, in turns with this one: see below
    #[arg(long, value_name = "OTHER", conflicts_with_all = ["resume", "report", "list"])]
    pub against: Option<PathBuf>,
    /// With --against: exit with 3 on slower, slower:3% or unclear, as `compare` does
    #[arg(
        long,
        value_name = "CONDITION",
        value_delimiter = ',',
        requires = "against"
    )]
    pub fail_on: Vec<FailOn>,
    /// With --against: show benchmarks that are the same as well
    #[arg(long, requires = "against")]
    pub all: bool,
    /// Verify, then compute when standard input says so: what --against starts
    #[arg(long, hide = true, conflicts_with_all = ["against", "json", "resume", "report", "list"])]
    pub in_turns: bool,
    /// List the built-in workloads and exit
    #[arg(long)]
    pub list: bool,
    #[command(flatten)]
    pub target: TargetArgs,
}

/// `fourtap check`.
#[derive(Debug, Args)]
#[command(after_help = "\
On the CPU both passes of deformable attention are checked with every instruction set. On CUDA they
are checked with the best kernels and the baseline (one thread per channel), with level shapes in
host memory and, every third problem, in device memory; backward in both modes, or with
--deterministic only in that one. Each seed stands for two problems: one with given sampling
locations and attention weights, one from projections (offsets, logits and reference points). In
half of them points lie as one of the distributions of `bench` puts them.

Dense attention has a forward pass: on the CPU with and without LSE, and each seed stands for two
problems, one with attn_mask; on CUDA in f16 and bf16, without.")]
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
    /// Random problems per operator
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    pub cases: u64,
    /// Seed of the first problem; the others follow
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Print a JSON record instead of text
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
