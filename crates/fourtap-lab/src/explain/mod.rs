//! What a case of a workload costs and what limits it, for any operator: amounts over measured ceilings.

mod achieved;
mod ceilings;
mod floors;
mod kernel_use;
mod limits;
mod occupancy;
mod resources;
mod words;

use std::fmt::Debug;

use crate::error::Result;
use crate::record::{DTypes, ProblemRecord, Run};

pub use achieved::Efficiency;
pub use ceilings::{Ceiling, Ceilings};
pub use floors::Floors;
pub use kernel_use::{DeviceDesc, KernelUse};
pub use limits::{Floor, Limit, LimitCondition};
pub use occupancy::Multiprocessor;
pub use words::{bytes, count, kernel_in_words, plural, time};

/// One case of a workload: sizes, types and pass.
pub trait Case: Debug {
    /// As benchmarks are called: "detr-encoder/local/f16/forward".
    fn name(&self) -> String;

    /// Its sizes, for a record.
    fn problem(&self) -> ProblemRecord;

    /// Its types, for a record.
    fn dtypes(&self) -> DTypes;

    /// Everything there is to say about it.
    fn explained(&self, known: ExplainInputs<'_>) -> Result<Box<dyn Explanation>>;
}

/// Everything there is to say about a case.
pub trait Explanation {
    /// For people, at most 100 columns wide.
    fn in_words(&self) -> String;

    /// As one JSON object.
    fn to_json(&self) -> serde_json::Result<String>;

    /// What a reader should know of the sources.
    fn notes(&self) -> &[String];
}

/// What an explanation is made from.
#[derive(Debug)]
pub struct ExplainInputs<'a> {
    /// What the hardware can do at most.
    pub ceilings: &'a Ceilings,
    /// The CUDA device it would be computed on; none for the processor.
    pub device: Option<&'a DeviceDesc>,
    /// Results that were named to set the prediction against.
    pub results: Option<&'a Run>,
    /// Else results that lie beside the ceilings.
    pub beside: Option<&'a Run>,
    /// What a reader should know of the sources.
    pub notes: Vec<String>,
}

impl ExplainInputs<'_> {
    /// Where results may be.
    pub fn run(&self) -> Option<&Run> {
        self.results.or(self.beside)
    }

    /// Notes that results were named which have none of this case.
    pub fn note_no_result(&mut self, name: &str) {
        if let Some(results) = self.results {
            self.notes.push(format!(
                "{} holds no result of {name} with these sizes and types",
                results.path.display()
            ));
        }
    }
}
