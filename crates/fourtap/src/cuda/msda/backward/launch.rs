//! The kernels of a backward call, one after another.

use std::ffi::c_void;

use super::plan::BackwardPlan;
use super::sorting::Sorting;
use crate::cuda::driver::zero;
use crate::cuda::error::CudaError;
use crate::cuda::handle::Cuda;
use crate::cuda::msda::arguments::{
    Addresses, BandArguments, GradientAddresses, GradientArguments, Schedule, SizedArguments, Work,
};
use crate::cuda::msda::operands::{GradientOperands, Operands};
use crate::cuda::msda::specialised::KernelVariant;
use crate::cuda::step::{LoadedStep, load_together, parameter};
use crate::error::Result;
use crate::msda::Backward;

/// A prepared backward launch: everything but the addresses.
pub(in crate::cuda::msda) struct BackwardLaunch {
    workspace_bytes: usize,
    /// For kernels that come before or after.
    general: SizedArguments,
    gradients: GradientArguments,
    /// `grad_value` from sorted samples.
    sorting: Option<SortingLaunch>,
    /// `grad_value` band by band.
    bands: Option<BandsLaunch>,
    /// `grad_value` by searching.
    search: Option<StepLaunch>,
    /// Bytes of `grad_value` that are set to zero before atomic additions.
    zeroed_bytes: Option<usize>,
    /// Gradients of locations and weights.
    samples: Option<StepLaunch>,
    schedule: Option<Schedule>,
}

struct SortingLaunch {
    sorting: Sorting,
    sort: LoadedStep,
    sum: LoadedStep,
    /// Whether each begins while the kernel before it still runs.
    overlaps: bool,
    arguments: SizedArguments,
}

struct BandsLaunch {
    step: LoadedStep,
    /// Whether it begins while the kernel for the gradients of samples still runs.
    overlaps: bool,
    bands: BandArguments,
    arguments: SizedArguments,
}

struct StepLaunch {
    step: LoadedStep,
    arguments: SizedArguments,
}

impl BackwardLaunch {
    /// Prepares a checked call with given locations on this device.
    pub fn of_given(cuda: &Cuda, call: &Backward<'_>) -> Result<Self> {
        let operands = Operands::given(&call.problem, &call.inputs);
        let gradients = GradientOperands::given(call);
        let plan = BackwardPlan::of(cuda, &operands, &gradients)?;
        BackwardLaunch::new(cuda, &operands, &gradients, plan)
    }

    /// Prepares a checked call on this device. All kernels are loaded before any is queued, so that a failure leaves
    /// nothing half done.
    pub fn new(
        cuda: &Cuda,
        operands: &Operands<'_>,
        of_gradients: &GradientOperands,
        plan: BackwardPlan,
    ) -> Result<Self> {
        let arguments = |room| SizedArguments::new(operands, None, room);
        let workspace_bytes = plan.workspace_bytes();
        load_together(cuda, &plan.steps());
        // Measured on Hopper only.
        let can_overlap = cuda.size().has_wgmma;
        let sorting = match plan.sorting {
            None => None,
            Some(sorting) => {
                let [sort, sum] = sorting.steps();
                Some(SortingLaunch {
                    sort: sort.load(cuda)?,
                    sum: sum.load(cuda)?,
                    overlaps: can_overlap,
                    arguments: arguments(None),
                    sorting,
                })
            }
        };
        let bands = match plan.bands {
            None => None,
            Some(bands) => Some(BandsLaunch {
                step: bands.step.load(cuda)?,
                overlaps: plan.samples.is_some() && can_overlap,
                bands: bands.arguments,
                arguments: arguments(None),
            }),
        };
        let mut others = [plan.search, plan.samples].map(|step| {
            step.map(|step| {
                let room = match step.kernel {
                    KernelVariant::ValueSearch(kernel) => Some(kernel.level_capacity),
                    KernelVariant::SamplesChannel(kernel) => Some(kernel.level_capacity),
                    _ => None,
                };
                Ok::<_, CudaError>(StepLaunch {
                    step: step.load(cuda)?,
                    arguments: arguments(room),
                })
            })
        });
        let [search, samples] = others.each_mut().map(|step| step.take().transpose());
        let of_value = of_gradients.value.as_ref().filter(|_| plan.scatter);
        Ok(BackwardLaunch {
            workspace_bytes,
            general: arguments(None),
            gradients: GradientArguments::new(operands.kind.sampling, of_gradients),
            sorting,
            bands,
            search: search?,
            zeroed_bytes: of_value.map(|gradient| gradient.bytes()),
            samples: samples?,
            schedule: plan.schedule,
        })
    }

    /// Bytes of scratch memory.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// The arguments of kernels that come before or after.
    pub fn general_arguments(&self, addresses: Addresses) -> SizedArguments {
        self.general.at(addresses)
    }

    /// Queues the kernels without allocating or waiting. `projection`: the last parameter of the kernels that are told by
    /// projections where to sample.
    ///
    /// # Safety
    /// The addresses are of a call that shares its plan, on the same device, and the memory of its tensors and the scratch
    /// memory at `workspace` stay allocated until the stream has done the work. There is a projection if and only if the
    /// call has one, and it is the call's.
    pub unsafe fn launch(
        &self,
        cuda: &Cuda,
        (addresses, of_gradients): (Addresses, GradientAddresses),
        workspace: u64,
        projection: Option<*mut c_void>,
    ) -> Result<()> {
        let gradients = self.gradients.at(of_gradients);
        // Gradients of samples first: their kernel leaves behind what sorting needs to know of projections.
        if let Some(bytes) = self.zeroed_bytes {
            let entered = cuda.context().enter()?;
            // SAFETY: atomic additions are planned only for a gradient without gaps, which has that many bytes.
            let done = unsafe { zero(of_gradients.value, bytes, cuda.stream()) };
            drop(entered);
            done?;
        }
        if let Some(launch) = &self.samples {
            let arguments = launch.arguments.at(addresses);
            let schedule = self.schedule.as_ref().map(parameter);
            let mut parameters = vec![arguments.pointer(), parameter(&gradients)];
            // The gather kernel takes a schedule besides, the other does not.
            parameters.extend(schedule);
            parameters.extend(projection);
            // SAFETY: as above.
            unsafe { launch.step.launch(cuda, &mut parameters) }?;
        }
        if let Some(launch) = &self.sorting {
            let arguments = launch.arguments.at(addresses);
            for (pass, work) in launch.sorting.passes(workspace).enumerate() {
                // Later ones write where the pass before still reads.
                let overlaps = launch.overlaps && pass == 0 && self.samples.is_some();
                let mut parameters = vec![arguments.pointer(), parameter(&work)];
                parameters.extend(projection);
                // SAFETY: the kernel takes arguments and work, whose tables are as large as it expects, and waits for the
                // one before it by itself; the rest as the caller promises.
                unsafe {
                    launch
                        .sort
                        .launch_overlapping(cuda, &mut parameters, overlaps)
                }?;
                let mut parameters = [arguments.pointer(), parameter(&gradients), parameter(&work)];
                // SAFETY: as above; the kernels that sum take the gradients besides.
                unsafe {
                    launch
                        .sum
                        .launch_overlapping(cuda, &mut parameters, launch.overlaps)
                }?;
            }
        }
        if let Some(launch) = &self.bands {
            let arguments = launch.arguments.at(addresses);
            let mut parameters = vec![
                arguments.pointer(),
                parameter(&gradients),
                parameter(&launch.bands),
            ];
            parameters.extend(projection);
            // SAFETY: the kernel takes these, and waits for the one before it by itself; the rest as above.
            unsafe {
                launch
                    .step
                    .launch_overlapping(cuda, &mut parameters, launch.overlaps)
            }?;
        }
        if let Some(launch) = &self.search {
            let sorting = self.sorting.as_ref();
            let first_pass = sorting.and_then(|it| it.sorting.passes(workspace).next());
            // Without sorting levels need no bins, of which there can be any number.
            let work = first_pass.unwrap_or(Work {
                capacity: u32::MAX,
                ..Work::default()
            });
            let arguments = launch.arguments.at(addresses);
            let mut parameters = vec![arguments.pointer(), parameter(&gradients), parameter(&work)];
            parameters.extend(projection);
            // SAFETY: the kernel takes these; the rest as above.
            unsafe { launch.step.launch(cuda, &mut parameters) }?;
        }
        Ok(())
    }
}
