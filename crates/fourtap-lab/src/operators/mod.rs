//! The operators, one folder each: workloads, tensors, computations and how they are verified, and what tables, explanations,
//! reports and searches say of them.
//!
//! Everything else asks [`Operator`] and [`Workload`]. [`OPERATORS`] is the one place that knows operators by name: another
//! one is a folder and a line there.

pub mod dense;
pub mod msda;
mod named;
mod workload;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use fourtap::DType;
use fourtap::cpu::Simd;
use fourtap::cuda::Cuda;
use serde_json::Value;

use crate::cli::{Direction, TargetArgs};
use crate::computation::TensorSet;
use crate::error::{Error, Result};
use crate::record::{BenchRecord, ProbeRecord, Sizes};
use crate::report::{Part, Peer, Section};
use crate::tensors::MappedFile;
use fourtap_admin::check;

pub use named::parser;
pub use workload::{BuiltIn, DataSpec, Numbers, Workload, built_in, parsed, read};

/// Every operator, in the order they are shown; the first is what is meant where none is named.
pub static OPERATORS: [&dyn Operator; 2] = [&msda::Msda, &dense::Dense];

/// What the lab asks of an operator.
pub trait Operator: Debug + Sync {
    /// As typed and recorded.
    fn name(&self) -> &'static str;

    /// As a heading.
    fn title(&self) -> &'static str;

    /// In a sentence.
    fn in_words(&self) -> &'static str;

    /// The passes it has.
    fn passes(&self) -> &'static [Direction];

    /// What to say to whoever asks for a pass it does not have.
    fn lacks(&self) -> Option<&'static str> {
        None
    }

    /// Whether `--kernel` can name the kernels of it.
    fn has_named_kernels(&self) -> bool {
        false
    }

    /// Whether it can be computed from projections, too.
    fn has_projections(&self) -> bool {
        false
    }

    /// Whether it can also give the log-sum-exp (LSE).
    fn has_lse(&self) -> bool {
        false
    }

    /// Whether `fourtap profile` counts what its kernels do.
    fn is_profiled(&self) -> bool {
        false
    }

    /// The workloads that its name stands for.
    fn built_in(&self) -> &'static [BuiltIn];

    /// Workloads that are built in too, but only for who names them.
    fn unlisted(&self) -> &'static [BuiltIn] {
        &[]
    }

    /// A workload from a file's text.
    fn workload(&self, origin: &str, text: &str) -> Result<Arc<dyn Workload>>;

    /// The built-in workloads as a table.
    fn list(&self) -> Result<String>;

    /// The workloads of `bench --quick`.
    fn quick_workloads(&self) -> &'static [&'static str];

    /// What its kernels are tuned on unless told otherwise.
    fn tuning_workload(&self) -> &'static str;

    /// The element types it is timed in on a CUDA device.
    fn cuda_dtypes(&self) -> &'static [DType];

    /// The probes that bound its results beside those that bound everything.
    fn ceilings(&self, on_cuda: bool) -> &'static [&'static str];

    /// Whether a file with tensors of these names is of it; the first operator that says so is taken.
    fn has_tensors(&self, is_there: &dyn Fn(&str) -> bool) -> bool;

    /// The tensors of a file, if they fit each other.
    fn read<'a>(&self, file: &'a MappedFile, reading: Reading) -> Result<Box<dyn TensorSet + 'a>>;

    /// The sizes in a record, if they are of it.
    fn sizes(&self, recorded: &Value) -> serde_json::Result<Arc<dyn Sizes>>;

    /// Random problems through each of these vector paths.
    fn check_on_cpu(&self, seeds: Range<u64>, paths: &[Simd]) -> check::Report;

    /// Random problems on a CUDA device.
    fn check_on_cuda(&self, seeds: Range<u64>, cuda: Cuda, target: &TargetArgs) -> check::Report;

    /// Results of `fourtap bench`, a row each.
    fn table(&self, records: &[&BenchRecord], ceilings: &[ProbeRecord], on_cuda: bool) -> String;

    /// A report's section about its speed; none without benchmarks.
    fn speed(&self, parts: &[Part<'_>]) -> Option<Section>;

    /// A report's section about what the device would allow.
    fn roofline(&self, _: &[Part<'_>]) -> Option<Section> {
        None
    }

    /// How its bytes and operations are counted, for a report's method.
    fn counting(&self) -> &'static str;

    /// Others who computed the very same, the fastest first.
    fn peers(&self, _: &BenchRecord) -> Vec<Peer<'static>> {
        Vec::new()
    }
}

/// What the tensors of a file are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// To compute once.
    Compute {
        /// Gradients too.
        grad: bool,
        /// The log-sum-exp (LSE) too.
        lse: bool,
    },
    /// To time every pass; what is not there is random by this seed.
    Time {
        /// Of the random numbers.
        seed: u64,
    },
}

/// That `option` was asked of an operator that has no use for it, but another, for which `has` holds, does.
pub fn refused(option: &'static str, found: String, has: impl Fn(&dyn Operator) -> bool) -> Error {
    let mut others = OPERATORS.into_iter();
    Error::WrongOperator {
        option,
        expected: others.find(|it| has(*it)).unwrap_or(OPERATORS[0]),
        found,
        hint: None,
    }
}

/// That `option` asks for gradients of an operator that has none.
pub fn without_backward(option: &'static str, asked: &dyn Operator, found: String) -> Error {
    let mut others = OPERATORS.into_iter();
    let with = others.find(|it| it.passes().contains(&Direction::Backward));
    Error::WrongOperator {
        option,
        expected: with.unwrap_or(OPERATORS[0]),
        found,
        hint: asked.lacks(),
    }
}
