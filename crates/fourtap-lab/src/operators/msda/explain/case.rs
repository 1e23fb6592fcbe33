//! One case of a workload: sizes, types, points and pass.

use fourtap::DType;
use fourtap::cuda::DeviceSize;
use fourtap::cuda::msda::{
    BackwardPlan, BackwardTuning, ForwardTuning, Plan, ProblemDesc, ProjectedDesc, Types,
};
use fourtap::msda::projections::ProjectedProblem;
use fourtap::msda::{Levels, Problem, Sizes, Traffic};
use fourtap::tuning::Class;

use crate::cli::{CaseArgs, Direction, Distribution, InputsChoice};
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
    problem: CheckedProblem,
}

/// A problem that was checked, by what it is computed from.
#[derive(Clone, Debug)]
enum CheckedProblem {
    Given(Problem),
    Projected(ProjectedProblem),
}

/// A call, to be planned for any device.
enum Call<'a> {
    Given(ProblemDesc<'a>),
    Projected(ProjectedDesc<'a>),
}

impl Case {
    /// The one `arguments` name of a workload.
    pub fn new(workload: Workload, arguments: &CaseArgs) -> Result<Self> {
        let levels = workload.levels()?;
        let sizes = workload.sizes(&levels);
        let value = DType::from(arguments.dtype);
        let coordinates = match workload.inputs {
            InputsChoice::Given => arguments.coordinates.dtype(value),
            // As linear layers put them out.
            InputsChoice::Projections => value,
        };
        let types = Types {
            value,
            locations: coordinates,
            weights: coordinates,
        };
        let problem = match called(&workload, &sizes, &levels, types) {
            Call::Given(call) => CheckedProblem::Given(call.problem()?),
            Call::Projected(call) => CheckedProblem::Projected(call.problem()?),
        };
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

    fn called(&self) -> Call<'_> {
        called(&self.workload, &self.sizes, &self.levels, self.types)
    }

    /// The plan of forward on a device.
    pub fn forward_plan(&self, device: DeviceSize, tuning: &ForwardTuning) -> Result<Plan> {
        Ok(match self.called() {
            Call::Given(call) => call.tuned_forward(device, tuning),
            Call::Projected(call) => call.tuned_forward(device, tuning),
        }?)
    }

    /// The plan of backward, in fast mode, on a device.
    pub fn backward_plan(
        &self,
        device: DeviceSize,
        tuning: &BackwardTuning,
    ) -> Result<BackwardPlan> {
        Ok(match self.called() {
            Call::Given(call) => call.tuned_backward(device, false, tuning),
            Call::Projected(call) => call.tuned_backward(device, false, tuning),
        }?)
    }

    /// Whether it is computed from projections.
    pub fn is_projected(&self) -> bool {
        self.workload.inputs == InputsChoice::Projections
    }

    /// Bytes and operations of the pass.
    pub fn traffic(&self) -> Traffic {
        use CheckedProblem::{Given, Projected};
        match (&self.problem, self.direction) {
            (Given(problem), Direction::Forward) => Traffic::of_forward(problem),
            (Given(problem), Direction::Backward) => Traffic::of_backward(problem),
            (Projected(problem), Direction::Forward) => Traffic::of_projected_forward(problem),
            (Projected(problem), Direction::Backward) => Traffic::of_projected_backward(problem),
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
        ProblemSizes {
            inputs: self.workload.inputs,
            ..ProblemSizes::new(&self.sizes, &self.levels)
        }
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
        let name = format!(
            "{}/{}/{}/{}",
            self.workload.name,
            self.distribution.name(),
            self.types.value,
            self.direction.name()
        );
        match self.workload.inputs.variant() {
            Some(variant) => format!("{name}/{variant}"),
            None => name,
        }
    }

    fn problem(&self) -> ProblemRecord {
        self.problem_sizes().into()
    }

    fn dtypes(&self) -> DTypes {
        match &self.problem {
            CheckedProblem::Given(problem) => problem.into(),
            CheckedProblem::Projected(problem) => problem.into(),
        }
    }

    fn explained(&self, known: ExplainInputs<'_>) -> Result<Box<dyn Explanation>> {
        Ok(Box::new(super::explained(self, known)?))
    }
}

fn called<'a>(workload: &Workload, sizes: &Sizes, levels: &'a Levels, types: Types) -> Call<'a> {
    let call = ProblemDesc {
        images: sizes.images,
        queries: sizes.queries,
        heads: sizes.heads,
        channels: sizes.channels,
        points: sizes.points,
        levels,
        types,
    };
    match workload.inputs {
        InputsChoice::Given => Call::Given(call),
        InputsChoice::Projections => Call::Projected(ProjectedDesc {
            call,
            references: DType::F32,
            boxes: workload.has_boxes(),
        }),
    }
}
