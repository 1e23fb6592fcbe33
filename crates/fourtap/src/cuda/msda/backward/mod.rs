//! Backward: which kernels serve a call, how its work is cut, and their launches.

mod plan;
mod sorting;

use std::ffi::c_void;

use super::arguments::{GradientArguments, Held, Work, pointer};
use super::specialised::Specialised;
use super::tuning::{self, BackwardTuning};
use crate::cuda::driver::zero;
use crate::cuda::{Cuda, CudaError, kernels};
use crate::error::Result;
use crate::msda::{Backward, Gradients, Inputs};
use crate::tensor::View;
use crate::tuning::Class;
use sorting::Sorting;

pub use plan::{BackwardPlan, Step};

impl Cuda {
    /// What [`crate::msda::backward`] would do with these tensors.
    pub fn explain_backward(
        &self,
        inputs: Inputs<'_>,
        grad_out: View<'_>,
        gradients: &Gradients<'_>,
    ) -> Result<BackwardPlan> {
        self.plan_backward(&Backward::new(inputs, grad_out, gradients.alias())?)
    }

    /// Bytes of scratch memory [`crate::msda::backward`] would take for these tensors: at most twice what they take
    /// themselves, `grad_out` included, or a few KiB; but 16 bytes (32 in f64) for each sample of one level of one image
    /// and head at least.
    pub fn backward_workspace(
        &self,
        inputs: Inputs<'_>,
        grad_out: View<'_>,
        gradients: &Gradients<'_>,
    ) -> Result<usize> {
        Ok(self
            .explain_backward(inputs, grad_out, gradients)?
            .workspace_bytes())
    }

    fn plan_backward(&self, call: &Backward<'_>) -> Result<BackwardPlan> {
        let by_table = || {
            let problem = &call.problem;
            let (class, dtype) = (Class::of_msda(problem.sizes()), problem.value().dtype());
            let entry = self.chosen(&tuning::BACKWARD, class, dtype)?;
            Ok(entry.map(|entry| BackwardTuning::of(&entry.choice)))
        };
        self.planned(self.asked.msda_backward(), by_table, |tuning| {
            BackwardPlan::new(call, self.size(), self.kernel, self.deterministic, tuning)
        })
    }

    /// Queues the kernels. Nobody waits, once they are loaded, and scratch memory is the caller's or the stream's.
    pub(crate) fn msda_backward(&self, call: &Backward<'_>) -> Result<()> {
        let plan = self.plan_backward(call)?;
        // All of them, before any is queued: whatever fails leaves nothing half done.
        for kernel in plan.all() {
            kernels::load(self.context, &kernel.into())?;
        }
        let scratch = self.scratch(plan.workspace_bytes())?;
        let workspace = scratch.address();
        let parameters = Parameters {
            arguments: Held::new(&call.problem, &call.inputs, None, None),
            gradients: GradientArguments::new(call),
        };
        if let Some(sorting) = &plan.sorting {
            for work in sorting.passes(workspace) {
                self.sum_sorted(sorting, &parameters, &work)?;
            }
        }
        if let Some(step) = &plan.search {
            let Specialised::ValueSearch(kernel) = step.kernel else {
                unreachable!("a search is planned as one");
            };
            let room = Some(kernel.level_capacity);
            let arguments = Held::new(&call.problem, &call.inputs, None, room);
            let work = match &plan.sorting {
                Some(sorting) => sorting.passes(workspace).next(),
                None => None,
            };
            // Without sorting the kernel does not look at it.
            let work = work.unwrap_or_default();
            let mut parameters = [
                arguments.pointer(),
                pointer(&parameters.gradients),
                pointer(&work),
            ];
            // SAFETY: the kernel takes these three; the call has been checked, and whoever made its views answers for
            // the memory behind them.
            unsafe { step.launch(self, &mut parameters) }?;
        }
        if plan.scatter {
            self.zero_grad_value(call)?;
        }
        if let Some(step) = &plan.samples {
            let room = match step.kernel {
                Specialised::SamplesChannel(kernel) => Some(kernel.level_capacity),
                _ => None,
            };
            let arguments = Held::new(&call.problem, &call.inputs, None, room);
            let mut parameters = vec![arguments.pointer(), pointer(&parameters.gradients)];
            parameters.extend(step.schedule.as_ref().map(pointer));
            // SAFETY: as above; the gather kernel takes a schedule besides, the other does not.
            unsafe { step.launch(self, &mut parameters) }?;
        }
        Ok(())
    }

    /// `grad_value` of some planes.
    fn sum_sorted(&self, sorting: &Sorting, parameters: &Parameters, work: &Work) -> Result<()> {
        let [sort, sum] = sorting.steps();
        // SAFETY: the kernel takes arguments and work, whose tables are as large as it expects; the call has been
        // checked, and whoever made its views answers for the memory behind them.
        unsafe { sort.launch(self, &mut [parameters.arguments.pointer(), pointer(work)]) }?;
        let mut parameters: [*mut c_void; 3] = [
            parameters.arguments.pointer(),
            pointer(&parameters.gradients),
            pointer(work),
        ];
        // SAFETY: as above; the kernels that sum take the gradients besides.
        unsafe { sum.launch(self, &mut parameters) }
    }

    fn zero_grad_value(&self, call: &Backward<'_>) -> Result<()> {
        let Some(gradient) = &call.gradients.value else {
            return Ok(());
        };
        let elements = gradient.shape().elements().unwrap_or(0);
        let entered = self.context.enter()?;
        // SAFETY: scattering is planned only for a gradient without gaps, which has so many bytes.
        let done = unsafe {
            zero(
                gradient.as_mut_ptr() as u64,
                elements * gradient.dtype().size(),
                self.stream(),
            )
        };
        drop(entered);
        Ok(done.map_err(CudaError::from)?)
    }
}

impl Step {
    /// Queues the kernel. Nothing is allocated and nobody waits, once it is loaded.
    ///
    /// # Safety
    /// The parameters are what the kernel declares, laid out as it does, and the memory they lead to is as it expects
    /// until the stream has done the work.
    unsafe fn launch(&self, cuda: &Cuda, parameters: &mut [*mut c_void]) -> Result<()> {
        // SAFETY: as the caller promises.
        let launched = unsafe {
            kernels::launch(
                cuda,
                &self.kernel.into(),
                [self.blocks, 1],
                self.threads,
                self.shared_bytes,
                parameters,
            )
        };
        Ok(launched?)
    }
}

/// What most kernels of a call are handed.
struct Parameters {
    arguments: Held,
    gradients: GradientArguments,
}
