//! What a choice about a kernel comes to.

use fourtap::DType;
use fourtap::cuda::DeviceSize;
use fourtap::cuda::msda::{BackwardTuning, ForwardTuning, ProblemDesc, Types};
use fourtap::tuning::Choice;

use super::Workload;
use crate::cli::Direction;
use crate::error::Result;
use crate::tune::LaunchPlan;

/// The library's plan for a pass by a choice.
pub fn planned(
    workload: &Workload,
    device: DeviceSize,
    (dtype, direction): (DType, Direction),
    choice: &Choice,
) -> Result<LaunchPlan> {
    let levels = workload.levels()?;
    let sizes = workload.sizes(&levels);
    let described = ProblemDesc {
        images: sizes.images,
        queries: sizes.queries,
        heads: sizes.heads,
        channels: sizes.channels,
        points: sizes.points,
        levels: &levels,
        types: Types {
            value: dtype,
            locations: DType::F32,
            weights: DType::F32,
        },
    };
    let (key, kernels) = match direction {
        Direction::Forward => {
            let tuning = ForwardTuning::of(choice);
            let plan = described.tuned_forward(device, &tuning)?;
            let kernels = plan.steps().iter().map(|step| step.kernel).collect();
            (format!("{plan:?}"), kernels)
        }
        Direction::Backward => {
            let tuning = BackwardTuning::of(choice);
            let plan = described.tuned_backward(device, false, &tuning)?;
            let kernels = plan.steps().iter().map(|step| step.kernel).collect();
            (format!("{plan:?}"), kernels)
        }
    };
    Ok(LaunchPlan::new(key, kernels))
}
