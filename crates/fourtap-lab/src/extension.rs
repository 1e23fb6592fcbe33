//! What a program of another crate needs to be the `fourtap` command with a subcommand and kernels of its own.
//!
//! Such a program calls [`run`] instead of [`crate::run`]. Processes that `tune`, `probe` and the subcommand itself start are
//! this program again, and so know the same kernels. What is listed here is made for the ladder of this repository and
//! changes with it: no promise is made to others.

use std::ffi::OsString;
use std::sync::OnceLock;

use clap::ArgMatches;

pub use crate::array::Array;
pub use crate::cli::{
    DeviceChoice, DevicesChoice, Distribution, TargetArgs, distributions, parse_setting,
};
pub use crate::commands::{note, print, print_json, probe::measured as probed, progress};
pub use crate::cuda::{
    Argument, DeviceArray, DeviceTiming, Grid, Hardware, LoadedKernel, Source, Stopwatch,
};
pub use crate::error::{Error, Result};
pub use crate::exit::ExitCode;
pub use crate::nearest::nearest;
pub use crate::operators::dense::Workload as DenseWorkload;
pub use crate::operators::msda::{Trial, Workload as MsdaWorkload, verify_forward};
pub use crate::operators::{Operator, Workload};
pub use crate::sink::{PartialRecord, Sink};
pub use crate::statistics::median;
pub use crate::target::{Device, Target};
pub use crate::tune::{Bench, ExternalKernel, Subject};
pub use crate::units::parse_duration;
pub use crate::verification::{Rule, TensorError, Verification};

/// Random tensors, the same on every machine.
pub mod generate {
    pub use crate::generate::sample_stream;
    pub use crate::operators::msda::generate::{locations, value, weights};
}

/// Several GPUs that share work.
pub mod devices {
    pub use crate::devices::{all, lock, on_each};
}

/// Processes that may hang or crash.
pub mod isolation {
    pub use crate::isolation::{end_with_parent, recorded, run};
    pub use crate::program::again;
}

/// Hardware counters.
pub mod profile {
    pub use crate::profile::{Launch, Ncu, TIME, binding, launches, wanted};
}

/// What is written down.
pub mod record {
    pub use crate::operators::msda::ProblemSizes;
    pub use crate::record::{
        Binding, Conditions, Line, Origin, Outcome, PairedComparison, ProbeRecord, Run, RungClaim,
        RungLaunch, RungOperator, RungProblem, RungRecord, RungSizes, SmallProblems, Timing,
        TrafficCounts, billions_a_second,
    };
}

/// Problems by the names that are typed.
pub mod selection {
    pub use crate::selection::workload;
}

/// Tables for people.
pub mod table {
    pub use crate::table::{rungs, with_header};
}

/// What a program adds to the `fourtap` command.
pub trait Extension: Sync {
    /// What the program is called in its help.
    fn name(&self) -> &'static str;

    /// A subcommand.
    fn subcommand(&self) -> clap::Command;

    /// Does what was typed after the subcommand.
    fn execute(&self, arguments: &ArgMatches) -> Result<ExitCode>;

    /// Kernels that `tune` can tune beside the library's.
    fn kernels(&self) -> Vec<&'static dyn ExternalKernel>;
}

static EXTENSION: OnceLock<&'static dyn Extension> = OnceLock::new();

/// [`crate::run`], with a program's own additions.
pub fn run(words: impl IntoIterator<Item = OsString>, added: &'static dyn Extension) -> ExitCode {
    // Said once: a process is one program.
    let _ = EXTENSION.set(added);
    crate::run(words)
}

/// What this program adds, if it is not the plain command.
pub(crate) fn current() -> Option<&'static dyn Extension> {
    EXTENSION.get().copied()
}
