//! What a case costs, what limits it and why.

mod amounts;
mod case;
mod limits;
mod machine;
mod measured;
mod points;
mod verdict;
mod words;

use fourtap::Backend;
use fourtap::cpu::Cpu;
use serde::Serialize;

use super::ProblemSizes;
use super::coverage::PixelCoverage;
use crate::choices::Choices;
use crate::cli::Direction;
use crate::error::Result;
use crate::explain::{self, Case as _, Efficiency, ExplainInputs, Floor, Limit};
use crate::record::{DTypes, VERSION};
use crate::target::Device;

use amounts::Amounts;
use machine::Machine;
use measured::CaseRecords;
use verdict::{Evidence, Verdict};

pub use case::Case;

/// Everything there is to say about a case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Version of fourtap.
    pub version: &'static str,
    /// What it is called, as in "seed-full/local/f16/forward".
    pub name: String,
    /// Its sizes.
    pub problem: ProblemSizes,
    /// Its element types.
    pub dtypes: DTypes,
    /// What would compute it.
    pub machine: Machine,
    /// What the ceilings were measured on.
    pub ceilings_of: Device,
    /// Where they come from.
    pub ceilings_from: String,
    /// What its points touch.
    pub touched: PixelCoverage,
    /// What it needs.
    pub amounts: Amounts,
    /// Bytes at each level of memory.
    pub memory: [amounts::Level; 3],
    /// The least time each part of the machine allows.
    pub limits: Vec<Limit>,
    /// The largest of them, for inputs used just before.
    pub floor_hot: Option<Floor>,
    /// The same for inputs that no cache holds.
    pub floor_cold: Option<Floor>,
    /// What was measured, against that.
    pub achieved: Option<Efficiency>,
    /// What hardware counters say of each kernel.
    pub counted: Vec<KernelBinding>,
    /// Ideas, judged.
    pub verdicts: Vec<Verdict>,
    /// What was chosen about the kernel, and why.
    pub choices: Choices,
    /// What a reader should know of the sources.
    pub notes: Vec<String>,
}

/// What counters say of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelBinding {
    /// The kernel.
    pub kernel: String,
    /// Its bottleneck, in a sentence.
    pub binding: String,
}

/// Explains a case by what is known.
fn explained(case: &Case, mut known: ExplainInputs<'_>) -> Result<Explanation> {
    let ceilings = known.ceilings;
    let machine = match known.device {
        None => Machine::Cpu,
        Some(device) => Machine::cuda(case, device)?,
    };
    let kind = match machine {
        Machine::Cpu => "cpu",
        Machine::Cuda { .. } => "cuda",
    };
    let measured = known
        .run()
        .map(|run| CaseRecords::of(case, run, kind))
        .unwrap_or_default();
    if measured.is_empty() {
        known.note_no_result(&case.name());
    }
    if case.is_projected() && case.direction == Direction::Backward && known.device.is_some() {
        known.notes.push(
            "only kernels that given locations have too are shown: those for the softmax and the gradients of \
             reference points come besides"
                .to_string(),
        );
    }
    let touched = points::touched(case)?;
    let amounts = Amounts::of(case, &touched);
    let counted = measured.counted();
    let limits = limits::limits(case, &amounts, ceilings, &machine, counted[1]);
    let floor_hot = Floor::of(&limits, false);
    let floor_cold = Floor::of(&limits, true);
    let achieved = measured.achieved(floor_hot.as_ref(), floor_cold.as_ref());
    let evidence = Evidence {
        case,
        amounts: &amounts,
        ceilings,
        machine: &machine,
        limits: &limits,
        floor: floor_hot.as_ref(),
        measured_ms: achieved.as_ref().and_then(|achieved| achieved.hot_ms),
    };
    let verdicts = evidence.verdicts();
    let binding = measured.counters.iter().map(|record| KernelBinding {
        kernel: record.kernel.clone(),
        binding: record.binding.words.clone(),
    });
    Ok(Explanation {
        version: VERSION,
        name: case.name(),
        problem: case.problem_sizes(),
        dtypes: case.dtypes(),
        ceilings_of: ceilings.device.clone(),
        ceilings_from: ceilings.origin.clone(),
        memory: amounts::levels(&amounts, counted),
        touched,
        amounts,
        limits,
        floor_hot,
        floor_cold,
        achieved,
        counted: binding.collect(),
        verdicts,
        choices: match machine {
            Machine::Cpu => Choices::by(&Backend::Cpu(Cpu::new()), case.tuned_as()),
            Machine::Cuda { ref name, .. } => Choices::on_device(name, case.tuned_as()).0,
        },
        machine,
        notes: known.notes,
    })
}

impl explain::Explanation for Explanation {
    fn in_words(&self) -> String {
        Explanation::in_words(self)
    }

    fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}
