//! What a choice about a kernel comes to, and choices worth trying.

use fourtap::DType;
use fourtap::cuda::DeviceSize;
use fourtap::cuda::dense::Tuning;
use fourtap::tuning::Choice;

use super::Workload;
use crate::error::Result;
use crate::tune::{Gpu, LaunchPlan, Points};

/// The library's plan by a choice.
pub fn planned(
    workload: &Workload,
    device: DeviceSize,
    dtype: DType,
    choice: &Choice,
) -> Result<LaunchPlan> {
    let plan = workload.on_cuda(dtype).tuned(device, &Tuning::of(choice))?;
    let kernels: Vec<_> = plan.steps().map(|step| step.kernel).collect();
    Ok(LaunchPlan::new(format!("{plan:?}"), kernels))
}

/// Tiles of queries with as many keys as one, two or three blocks have shared memory for.
pub fn hints(workload: &Workload, points: &Points, gpu: &Gpu) -> Vec<Choice> {
    let channels = workload.sizes().channels.next_multiple_of(32) as u32;
    let mut hints = Vec::new();
    let keys = points.free.iter().find(|(one, _)| one.name == "keys");
    let keys: Vec<u32> = keys.map_or(Vec::new(), |(_, values)| values.clone());
    for blocks in [2, 3, 1] {
        for (rows, columns) in [(128, 1), (64, 1), (64, 2), (32, 2), (16, 4)] {
            let fits = |keys: &&u32| {
                let bytes = 2 * channels * (rows + 2 * **keys);
                blocks * bytes <= gpu.size.shared_bytes
            };
            let largest = |keys: &u32| {
                let choice = points.defaults.clone();
                let choice = choice.with("rows", rows).with("columns", columns);
                choice.with("blocks", blocks).with("keys", *keys)
            };
            let mut choices = keys.iter().rev().filter(fits).map(largest);
            hints.extend(choices.find(|choice| points.has(choice)));
        }
    }
    hints
}
