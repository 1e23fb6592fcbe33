//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{RangedI64ValueParser, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use fourtap::cuda::jit::Architecture;

use crate::choices::{BakeInputs, CoordinatesChoice, DTypeChoice};
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::{bake, cache, doctor, units};

/// More threads than any machine has cores only exhausts the system.
const MOST_THREADS: i64 = 4096;

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  an error: bad input, a file that cannot be read or written, not enough memory
  2  wrong usage of the command line
  3  a verification failed: a result is not near enough to the f64 oracle";

const ELSEWHERE: &str = "commands that compute and measure (bench, check, compare, ...) are in the lab's `fourtap` \
    binary: run `cargo install --path crates/fourtap-lab` in a checkout of fourtap";

/// Diagnose an installation of fourtap and manage its compiled kernels.
#[derive(Debug, Parser)]
#[command(name = "fourtap", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

impl Cli {
    /// Parses the arguments, the first being the program's name. The error for an unknown command says where others are.
    pub(crate) fn parse_words(
        words: impl IntoIterator<Item = OsString>,
    ) -> std::result::Result<Cli, clap::Error> {
        Cli::try_parse_from(words).map_err(|mut usage| {
            if usage.kind() == ErrorKind::InvalidSubcommand {
                let tips = vec![StyledStr::from(ELSEWHERE)];
                usage.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
            }
            usage
        })
    }

    /// Runs the command.
    pub(crate) fn execute(&self) -> Result<ExitCode> {
        if let Some(threads) = self.command.threads() {
            threads.start()?;
        }
        self.command.execute()
    }
}

/// The option `--threads` of commands that compute.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ThreadsArgs {
    /// Threads to use [default: all cores]
    #[arg(long, help_heading = "Device", value_name = "N", value_parser = thread_count())]
    threads: Option<u32>,
}

impl ThreadsArgs {
    /// Starts the thread pool. To be called once, before anything is computed.
    pub fn start(&self) -> Result<()> {
        let Some(requested) = self.threads else {
            return Ok(());
        };
        rayon::ThreadPoolBuilder::new()
            .num_threads(requested as usize)
            .build_global()
            .map_err(|error| Error::Threads {
                requested,
                reason: error.to_string(),
            })
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Report what this machine has and what is missing
    Doctor(DoctorArgs),
    /// Manage the kernel cache
    Cache(CacheArgs),
    /// Compile kernels into a file, for machines without a compiler
    Bake(BakeArgs),
}

impl Command {
    /// How many threads to compute with, if the command computes.
    pub fn threads(&self) -> Option<&ThreadsArgs> {
        match self {
            Command::Doctor(arguments) => Some(&arguments.threads),
            // Compiling goes by --jobs.
            Command::Cache(_) | Command::Bake(_) => None,
        }
    }

    /// Runs it.
    pub fn execute(&self) -> Result<ExitCode> {
        match self {
            Command::Doctor(arguments) => doctor::execute(arguments),
            Command::Cache(arguments) => cache::execute(arguments),
            Command::Bake(arguments) => bake::execute(arguments),
        }
    }
}

/// `fourtap doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print a JSON record instead of text
    #[arg(long)]
    pub json: bool,
    /// Of the check.
    #[command(flatten)]
    pub threads: ThreadsArgs,
}

/// `fourtap cache`.
#[derive(Debug, Args)]
#[command(after_help = "\
The cache is in FOURTAP_CACHE_DIR, else in fourtap/kernels under XDG_CACHE_HOME or ~/.cache.
FOURTAP_CACHE_DIR=off turns it off.")]
pub struct CacheArgs {
    /// What to do with the cache.
    #[command(subcommand)]
    pub action: CacheAction,
    /// Print a JSON record instead of text
    #[arg(long, global = true)]
    pub json: bool,
}

/// The subcommands of `fourtap cache`.
#[derive(Debug, Subcommand)]
pub enum CacheAction {
    /// Show every kernel
    List,
    /// Print the number of kernels and their total size
    Size,
    /// Remove kernels over a limit, least recently used first, and leftovers of killed processes
    Prune {
        /// Maximum total size of all kernels, as in 100MB or 1GiB
        #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
        max_size: Option<u64>,
        /// Maximum time a kernel may be unused, as in 30d or 12h
        #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
        max_age: Option<Duration>,
    },
    /// Check every kernel
    Verify {
        /// Remove those that are damaged
        #[arg(long)]
        remove: bool,
    },
    /// Remove every kernel
    Clear,
}

/// `fourtap bake`.
#[derive(Debug, Args)]
#[command(after_help = "\
A device looks for kernels of its own architecture: sm_80 (A100), sm_86 (RTX 30), sm_89 (RTX 40),
sm_90a (H100, H200), sm_100f (B200, B300), sm_120f (RTX 50). Each list is combined with every other.
Projections are offsets and logits in the type of value, apart or slices of one tensor, and reference
points in f32, as fourtap.nn and the drop-in modules have them; --coordinates does not apply to them.
--usual takes the kernels of usual calls, as the Python package fourtap-kernels has them, and writes
a folder with a file for each architecture. Programs use the file or folder that FOURTAP_PACK names.")]
pub struct BakeArgs {
    /// Architectures to compile for, as in sm_80,sm_90a [default with --usual: all six]
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        required_unless_present = "usual"
    )]
    pub arch: Vec<Architecture>,
    /// The kernels of usual calls, instead of those of the sizes and types given
    #[arg(
        long,
        conflicts_with_all = ["dtype", "channels", "heads", "levels", "points", "coordinates", "inputs"]
    )]
    pub usual: bool,
    /// Element types of value: f32, f16, bf16, f64
    #[arg(
        long,
        value_name = "TYPE",
        value_delimiter = ',',
        default_values = ["f16", "bf16", "f32"],
        hide_possible_values = true
    )]
    pub dtype: Vec<DTypeChoice>,
    /// Channels per head (D)
    #[arg(long, value_name = "D", value_delimiter = ',', required_unless_present = "usual", value_parser = size())]
    pub channels: Vec<u32>,
    /// Heads (M)
    #[arg(long, value_name = "M", value_delimiter = ',', required_unless_present = "usual", value_parser = size())]
    pub heads: Vec<u32>,
    /// Levels (L)
    #[arg(long, value_name = "L", value_delimiter = ',', required_unless_present = "usual", value_parser = size())]
    pub levels: Vec<u32>,
    /// Points per level (P)
    #[arg(long, value_name = "P", value_delimiter = ',', required_unless_present = "usual", value_parser = size())]
    pub points: Vec<u32>,
    /// Element type of locations and weights: f32, or `value` for the type of value
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f32",
        hide_possible_values = true
    )]
    pub coordinates: CoordinatesChoice,
    /// Inputs to compile for: given (locations and weights), points, boxes (projections)
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        default_values = ["given", "points", "boxes"],
        hide_possible_values = true
    )]
    pub inputs: Vec<BakeInputs>,
    /// Only kernels whose names contain this, as in forward-gather-f16-d32
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// The file to write, with --usual the folder; an existing one is replaced
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Kernels to compile in parallel [default: all cores]
    #[arg(long, value_name = "N", value_parser = thread_count())]
    pub jobs: Option<u32>,
    /// Print a JSON record of what was done
    #[arg(long)]
    pub json: bool,
}

fn thread_count() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=MOST_THREADS)
}

/// Sizes that kernels support: they count in 32 bits.
fn size() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> std::result::Result<Cli, clap::Error> {
        let words = ["fourtap"].iter().chain(words);
        Cli::parse_words(words.map(OsString::from))
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_of_the_lab_is_a_usage_error_that_says_where_it_is() {
        for command in ["bench", "check", "compare"] {
            let usage = parse(&[command, "--json", "-"]).unwrap_err();
            assert_eq!(usage.exit_code(), 2);
            let text = usage.to_string();
            assert!(text.contains(&format!("'{command}'")), "{text}");
            let line = text.lines().find(|line| line.contains(ELSEWHERE));
            assert!(line.is_some(), "{text}");
        }
    }

    #[test]
    fn only_commands_that_compute_take_a_number_of_threads() {
        assert!(parse(&["doctor", "--threads", "2"]).is_ok());
        for command in [&["cache", "list"][..], &["cache", "clear"]] {
            let words = [command, &["--threads", "2"]].concat();
            assert_eq!(parse(&words).unwrap_err().exit_code(), 2, "{words:?}");
        }
    }

    #[test]
    fn a_slip_in_a_command_is_named() {
        let text = parse(&["docter"]).unwrap_err().to_string();
        assert!(
            text.contains("similar subcommand exists: 'doctor'"),
            "{text}"
        );
    }
}
