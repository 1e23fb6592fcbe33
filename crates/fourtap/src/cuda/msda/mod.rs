//! Multi-scale deformable attention on CUDA.

mod arguments;
mod kind;
mod plan;
mod schedule;
mod specialised;

use std::ffi::c_void;

use super::driver::{Launch, launch};
use super::{Cuda, CudaError, kernels};
use crate::error::Result;
use crate::msda::{Forward, Inputs};
use crate::tensor::ViewMut;
use arguments::{Arguments, LEVEL_CAPACITIES};

pub use kind::Kind;
pub use plan::{Plan, Wanted};
pub use specialised::{Channel, Gather, Shipped, Specialised, Types, shipped};

impl Cuda {
    /// What [`crate::msda::forward`] would do with these tensors.
    pub fn explain_forward(&self, inputs: Inputs<'_>, out: ViewMut<'_>) -> Result<Plan> {
        self.plan(&Forward::new(inputs, out)?)
    }

    fn plan(&self, call: &Forward<'_>) -> Result<Plan> {
        Plan::new(call, self.device().facts(), self.kernel)
    }

    /// Queues the kernel. Nothing is allocated and nobody waits, once the kernel is loaded.
    pub(crate) fn msda_forward(&self, call: &Forward<'_>) -> Result<()> {
        let sizes = call.problem.sizes();
        if sizes.images * sizes.queries * sizes.heads == 0 {
            return Ok(());
        }
        let plan = self.plan(call)?;
        let kernel = kernels::load(self.context, &plan.kernel)?;
        let (small, medium, large);
        let arguments: *const c_void = match capacity(&plan) {
            room if room == LEVEL_CAPACITIES[0] => {
                small = Arguments::<{ LEVEL_CAPACITIES[0] }>::new(call);
                (&raw const small).cast()
            }
            room if room == LEVEL_CAPACITIES[1] => {
                medium = Arguments::<{ LEVEL_CAPACITIES[1] }>::new(call);
                (&raw const medium).cast()
            }
            _ => {
                large = Box::new(Arguments::<{ LEVEL_CAPACITIES[2] }>::new(call));
                (&raw const *large).cast()
            }
        };
        let mut parameters = [arguments.cast_mut(), std::ptr::null_mut()];
        let mut given = 1;
        if let Some(schedule) = &plan.schedule {
            parameters[1] = (&raw const *schedule).cast_mut().cast();
            given = 2;
        }
        let entered = self.context.enter()?;
        // SAFETY: the parameters are what the kernel of this plan declares, laid out as it does, and are copied before
        // the call returns. The call has been checked, and whoever made its views answers for the memory behind them.
        let launched = unsafe {
            launch(
                &kernel,
                &Launch {
                    grid: [plan.blocks, 1, 1],
                    block: [plan.threads, 1, 1],
                    stream: self.stream(),
                    ..Launch::default()
                },
                &mut parameters[..given],
            )
        };
        drop(entered);
        Ok(launched.map_err(CudaError::from)?)
    }
}

fn capacity(plan: &Plan) -> usize {
    match plan.kernel {
        Specialised::Channel(channel) => channel.level_capacity,
        Specialised::Gather(_) => LEVEL_CAPACITIES[0],
    }
}
