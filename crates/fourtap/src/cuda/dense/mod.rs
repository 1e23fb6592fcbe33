//! Dense attention on CUDA.

mod arguments;
mod folded;
mod plan;
mod specialised;
mod tile;
pub(super) mod tuning;

use std::ffi::c_void;

use super::{Cuda, kernels};
use crate::dense::{Forward, Inputs, Options, Outputs};
use crate::error::Result;
use crate::tuning::Class;
use arguments::Arguments;

pub use plan::{Described, Plan, Step};
pub use specialised::{Combine, Mma, Specialised, shipped};
pub use tile::Tile;
pub use tuning::Tuning;

impl Cuda {
    /// What [`crate::dense::forward`] would do with these tensors.
    pub fn explain_dense(
        &self,
        inputs: Inputs<'_>,
        options: Options,
        outputs: &Outputs<'_>,
    ) -> Result<Plan> {
        self.plan_dense(&Forward::new(inputs, options, outputs.alias())?)
    }

    fn plan_dense(&self, call: &Forward<'_>) -> Result<Plan> {
        let described = Described::of(call);
        let by_table = || {
            let class = Class::of_dense(&described.sizes, &described.mask);
            let entry = self.chosen(&tuning::FORWARD, class, described.dtype)?;
            Ok(entry.map(|entry| Tuning::of(&entry.choice)))
        };
        self.planned(self.asked.dense_forward(), by_table, |tuning| {
            described.tuned(self.size(), tuning)
        })
    }

    /// Queues the kernels. Nobody waits, once they are loaded, and scratch memory is the caller's or the stream's.
    pub(crate) fn dense_forward(&self, call: &Forward<'_>) -> Result<()> {
        let sizes = call.problem.sizes();
        if sizes.batch * sizes.query_heads * sizes.queries == 0 {
            return Ok(());
        }
        let plan = self.plan_dense(call)?;
        // Both, before any is queued: whatever fails leaves nothing half done.
        for step in plan.steps() {
            kernels::load(self.context, &step.kernel.into())?;
        }
        let scratch = self.scratch(plan.workspace_bytes())?;
        let arguments = Arguments::new(call, &plan, scratch.address());
        let pointer: *mut c_void = (&raw const arguments).cast_mut().cast();
        for step in plan.steps() {
            // SAFETY: each kernel takes these arguments, laid out as it declares them, and scratch memory is as large as
            // the plan says. The call has been checked, and whoever made its views answers for the memory behind them.
            unsafe {
                kernels::launch(
                    self,
                    &step.kernel.into(),
                    step.blocks,
                    step.threads,
                    step.shared_bytes,
                    &mut [pointer],
                )?
            };
        }
        Ok(())
    }
}
