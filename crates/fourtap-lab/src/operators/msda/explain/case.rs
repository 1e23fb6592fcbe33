//! One case of a workload: sizes, types, points and pass.

use fourtap::DType;
use fourtap::cuda::msda::{ProblemDesc, Types};
use fourtap::msda::{Levels, Problem, Sizes, Traffic};
use fourtap::tuning::Class;

use crate::cli::{CaseArgs, Direction, Distribution};
use crate::computation::TuningKey;
use crate::error::{Error, Result};
use crate::explain::{self, ExplainInputs, Explanation};
use crate::operators::msda::{ProblemSizes, Workload};
use crate::record::{DTypes, ProblemRecord};

/// More than any pass counts a channel and sample, of operations and of bytes.
const MOST_OPERATIONS: u64 = 128;

/// What is explained or profiled.
#[derive(Clone, Debug)]
pub struct Case {
    /// Sizes, and where queries look.
    pub workload: Workload,
    /// Its levels.
    pub levels: Levels,
    /// All sizes.
    pub sizes: Sizes,
    /// Element types.
    pub types: Types,
    /// Where the sampling points lie.
    pub distribution: Distribution,
    /// Which pass.
    pub direction: Direction,
    problem: Problem,
}

impl Case {
    /// The one `arguments` name of a workload.
    pub fn new(workload: Workload, arguments: &CaseArgs) -> Result<Self> {
        let levels = workload.levels()?;
        let sizes = workload.sizes(&levels);
        let value = DType::from(arguments.dtype);
        let coordinates = arguments.coordinates.dtype(value);
        let types = Types {
            value,
            locations: coordinates,
            weights: coordinates,
        };
        let problem = described(&sizes, &levels, types).problem()?;
        let operations = (sizes.samples() as u64)
            .checked_mul(sizes.channels as u64)
            .and_then(|elements| elements.checked_mul(MOST_OPERATIONS));
        if operations.is_none() {
            return Err(Error::Workload {
                origin: workload.name,
                found: "expected sizes whose operations can be counted, found more than 2^64"
                    .to_string(),
            });
        }
        Ok(Case {
            workload,
            sizes,
            types,
            distribution: arguments.distribution,
            direction: arguments.direction,
            problem,
            levels,
        })
    }

    /// The call, to be planned for any device.
    pub fn described(&self) -> ProblemDesc<'_> {
        described(&self.sizes, &self.levels, self.types)
    }

    /// Bytes and operations of the pass.
    pub fn traffic(&self) -> Traffic {
        match self.direction {
            Direction::Forward => Traffic::of_forward(&self.problem),
            Direction::Backward => Traffic::of_backward(&self.problem),
        }
    }

    /// Bytes of `value`.
    pub fn value_bytes(&self) -> u64 {
        let elements: u64 = self.sizes.value().iter().map(|&size| size as u64).product();
        elements * self.types.value.size() as u64
    }

    /// Bytes that lie side by side for one pixel of one head: what one neighbour of a sample asks for.
    pub fn segment_bytes(&self) -> u64 {
        self.sizes.channels as u64 * self.types.value.size() as u64
    }

    /// Its sizes, for a record.
    pub fn problem_sizes(&self) -> ProblemSizes {
        ProblemSizes::from(&self.problem)
    }

    /// What tables know it by.
    pub fn tuned_as(&self) -> TuningKey {
        let kernel = match self.direction {
            Direction::Forward => "msda-forward",
            Direction::Backward => "msda-backward",
        };
        (kernel, Class::of_msda(&self.sizes), self.types.value)
    }
}

impl explain::Case for Case {
    fn name(&self) -> String {
        format!(
            "{}/{}/{}/{}",
            self.workload.name,
            self.distribution.name(),
            self.types.value,
            self.direction.name()
        )
    }

    fn problem(&self) -> ProblemRecord {
        self.problem_sizes().into()
    }

    fn dtypes(&self) -> DTypes {
        DTypes::from(&self.problem)
    }

    fn explained(&self, known: ExplainInputs<'_>) -> Result<Box<dyn Explanation>> {
        Ok(Box::new(super::explained(self, known)?))
    }
}

fn described<'a>(sizes: &Sizes, levels: &'a Levels, types: Types) -> ProblemDesc<'a> {
    ProblemDesc {
        images: sizes.images,
        queries: sizes.queries,
        heads: sizes.heads,
        channels: sizes.channels,
        points: sizes.points,
        levels,
        types,
    }
}
