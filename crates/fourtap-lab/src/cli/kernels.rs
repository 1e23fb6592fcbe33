//! What can be typed about compiled kernels.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use fourtap::cuda::jit::Architecture;

use super::{CoordinatesChoice, DTypeChoice};
use crate::units;

/// `fourtap cache`.
#[derive(Debug, Args)]
#[command(after_help = "\
The cache is in FOURTAP_CACHE_DIR, else in fourtap/kernels under XDG_CACHE_HOME or ~/.cache.
FOURTAP_CACHE_DIR=off turns it off.")]
pub struct CacheArgs {
    /// What to do with the cache.
    #[command(subcommand)]
    pub action: CacheAction,
    /// Print a JSON record instead of words
    #[arg(long, global = true)]
    pub json: bool,
}

/// The subcommands of `fourtap cache`.
#[derive(Debug, Subcommand)]
pub enum CacheAction {
    /// Show every kernel
    List,
    /// Say how many kernels there are and what they take
    Size,
    /// Remove kernels over a limit, those unused for longest first, and what killed processes left behind
    Prune {
        /// What all kernels may take together, as in 100MB or 1GiB
        #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
        max_size: Option<u64>,
        /// How long a kernel may be unused, as in 30d or 12h
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
FOURTAP_PACK names the file to programs that shall use it.")]
pub struct BakeArgs {
    /// Architectures to compile for, as in sm_80,sm_90a
    #[arg(long, value_name = "NAME", value_delimiter = ',', required = true)]
    pub arch: Vec<Architecture>,
    /// Element types of value: f32, f16, bf16, f64
    #[arg(
        long,
        value_name = "TYPE",
        value_delimiter = ',',
        default_values = ["f16", "bf16", "f32"],
        hide_possible_values = true
    )]
    pub dtype: Vec<DTypeChoice>,
    /// Channels a head (D)
    #[arg(long, value_name = "D", value_delimiter = ',', required = true, value_parser = size())]
    pub channels: Vec<u32>,
    /// Heads (M)
    #[arg(long, value_name = "M", value_delimiter = ',', required = true, value_parser = size())]
    pub heads: Vec<u32>,
    /// Levels (L)
    #[arg(long, value_name = "L", value_delimiter = ',', required = true, value_parser = size())]
    pub levels: Vec<u32>,
    /// Points a level (P)
    #[arg(long, value_name = "P", value_delimiter = ',', required = true, value_parser = size())]
    pub points: Vec<u32>,
    /// Element type of locations and weights: f32, or value for that of value
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f32",
        hide_possible_values = true
    )]
    pub coordinates: CoordinatesChoice,
    /// The file to write; one of that name is replaced
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Kernels to compile at a time [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=super::MOST_THREADS))]
    pub jobs: Option<u32>,
    /// Print a JSON record of what was done
    #[arg(long)]
    pub json: bool,
}

/// A size a kernel can have: it counts in 32 bits.
fn size() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=1 << 20)
}
