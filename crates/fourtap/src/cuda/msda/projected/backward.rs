//! Backward from projections: the kernels of backward, told otherwise where to sample, and what comes before and after them.

use super::arguments::{ProjectionArguments, ReferenceArguments};
use super::mask::MaskLaunch;
use super::prepare::ProjectedAddresses;
use crate::cuda::handle::Cuda;
use crate::cuda::msda::arguments::{Addresses, GradientAddresses};
use crate::cuda::msda::backward::{BackwardLaunch, BackwardPlan};
use crate::cuda::msda::operands::{GradientOperands, Operand, Operands};
use crate::cuda::msda::specialised::{KernelVariant, ProjectedPass};
use crate::cuda::recipe::SpecialisedKernel;
use crate::cuda::step::{LoadedStep, Step, parameter};
use crate::dtype::DType;
use crate::error::Result;
use crate::msda::projections::ProjectedBackward;

const THREADS: u32 = 256;
/// Blocks of the small kernels per multiprocessor: enough to fill it; they loop over the remaining work.
const BLOCKS_EACH: u32 = 8;

/// A prepared backward launch: everything but the addresses.
pub(super) struct ProjectedBackwardLaunch {
    /// Bytes of scratch memory: of the masked copy of `value`, of rows' statistics, of gradients by places, and of the rest.
    parts: [usize; 4],
    kernels: Vec<&'static str>,
    /// Makes the copy of `value` that is read in its place.
    copy: Option<MaskLaunch>,
    /// What the softmax of each row takes, where samples are sorted or searched and no other kernel leaves it behind.
    statistics: Option<LoadedStep>,
    backward: BackwardLaunch,
    /// Gradients of reference points.
    references: Option<(LoadedStep, ReferenceArguments)>,
    /// Zeros in the gradient of padding.
    zeros: Option<MaskLaunch>,
    projection: ProjectionArguments,
}

impl ProjectedBackwardLaunch {
    /// Prepares a checked call on this device. All kernels are loaded before any is queued, so that a failure leaves
    /// nothing half done.
    pub fn new(cuda: &Cuda, call: &ProjectedBackward<'_>) -> Result<Self> {
        let operands = Operands::projected(&call.problem, &call.inputs);
        let gradients = GradientOperands::projected(call);
        let plan = BackwardPlan::of(cuda, &operands, &gradients)?;
        let kind = operands.kind;
        let pass = ProjectedPass::new(kind.types, kind.sampling);
        let computed = match kind.types.value {
            DType::F64 => size_of::<f64>(),
            _ => size_of::<f32>(),
        };
        let sizes = &operands.sizes;
        let rows = sizes.images * sizes.queries * sizes.heads;
        let samples = rows * call.problem.samples();
        let multiprocessors = cuda.size().multiprocessors.max(1);
        let small = |kernel: KernelVariant, threads_needed: usize| {
            let blocks = threads_needed.div_ceil(THREADS as usize);
            Step {
                kernel,
                blocks: [
                    blocks.clamp(1, (multiprocessors * BLOCKS_EACH) as usize) as u32,
                    1,
                ],
                threads: THREADS,
                shared_bytes: 0,
            }
            .load(cuda)
        };
        let keeps_statistics = plan.reads_statistics() && samples > 0;
        let statistics = match keeps_statistics && !plan.reads_value() {
            true => Some(small(KernelVariant::Statistics(pass), rows)?),
            false => None,
        };
        let references = match &call.gradients.reference_points {
            Some(gradient) => {
                let arguments = ReferenceArguments::new(gradient);
                let step = small(KernelVariant::References(pass), arguments.count() * 32)?;
                (arguments.count() > 0).then_some((step, arguments))
            }
            None => None,
        };
        let mask = call.inputs.value_mask.as_ref().filter(|_| sizes.pixels > 0);
        let copy = match mask {
            // Only gradients of samples read `value`.
            Some(mask) if plan.reads_value() && !call.inputs.mask_is_applied => {
                let value = Operand::of(&call.inputs.value);
                Some(MaskLaunch::new(cuda, Some(&value), &operands.value, mask)?)
            }
            _ => None,
        };
        let zeros = match (mask, &gradients.value) {
            (Some(mask), Some(gradient)) if gradient.bytes() > 0 => {
                Some(MaskLaunch::new(cuda, None, gradient, mask)?)
            }
            _ => None,
        };
        let passes = |kernel: KernelVariant, used: bool| used.then(|| kernel.entry());
        let mut kernels: Vec<_> = copy.iter().map(MaskLaunch::kernel).collect();
        kernels.extend(passes(
            KernelVariant::Statistics(pass),
            statistics.is_some(),
        ));
        kernels.extend(plan.kernels());
        kernels.extend(passes(
            KernelVariant::References(pass),
            references.is_some(),
        ));
        kernels.extend(zeros.iter().map(MaskLaunch::kernel));
        let backward = BackwardLaunch::new(cuda, &operands, &gradients, plan)?;
        let bytes = |needed: bool, bytes: usize| match needed {
            true => bytes.next_multiple_of(256),
            false => 0,
        };
        Ok(ProjectedBackwardLaunch {
            parts: [
                bytes(copy.is_some(), operands.value.bytes()),
                bytes(keeps_statistics, rows * 2 * computed),
                bytes(references.is_some(), samples * 2 * computed),
                backward.workspace_bytes(),
            ],
            kernels,
            copy,
            statistics,
            backward,
            references,
            zeros,
            projection: ProjectionArguments::new(&call.problem),
        })
    }

    /// The names of its kernels, in launch order.
    pub fn kernels(&self) -> &[&'static str] {
        &self.kernels
    }

    /// Bytes of scratch memory.
    pub fn workspace_bytes(&self) -> usize {
        self.parts.iter().sum()
    }

    /// Queues the kernels without allocating or waiting.
    ///
    /// # Safety
    /// The addresses are of a call that shares its plan, on the same device, and the memory of its tensors and the scratch
    /// memory at `workspace` stay allocated until the stream has done the work.
    pub unsafe fn launch(
        &self,
        cuda: &Cuda,
        addresses: ProjectedAddresses,
        (gradients, of_references): (GradientAddresses, u64),
        workspace: u64,
    ) -> Result<()> {
        let mut next = workspace;
        let [value_copy, statistics, places, rest] = self.parts.map(|bytes| {
            let part = next;
            next += bytes as u64;
            part
        });
        let mut of_inputs = addresses.inputs;
        if let Some(copy) = &self.copy {
            // SAFETY: the scratch memory is as large as the copy; the rest as the caller promises.
            unsafe { copy.launch(cuda, of_inputs.value, value_copy, addresses.mask) }?;
            of_inputs = Addresses {
                value: value_copy,
                ..of_inputs
            };
        }
        let mut projection = self.projection;
        projection.references = addresses.references;
        if self.parts[1] > 0 {
            projection.statistics = statistics;
        }
        if self.references.is_some() {
            projection.places = places;
        }
        let arguments = self.backward.general_arguments(of_inputs);
        if let Some(step) = &self.statistics {
            let mut parameters = [arguments.pointer(), parameter(&projection)];
            // SAFETY: the kernel takes these two, and its table is as large as it expects; the rest as the caller promises.
            unsafe { step.launch(cuda, &mut parameters) }?;
        }
        // SAFETY: as the caller promises; the kernels of a projected problem take its projection besides.
        unsafe {
            self.backward.launch(
                cuda,
                (of_inputs, gradients),
                rest,
                Some(parameter(&projection)),
            )
        }?;
        if let Some((step, known)) = &self.references {
            let mut known = *known;
            known.gradient = of_references;
            let mut parameters = [
                arguments.pointer(),
                parameter(&projection),
                parameter(&known),
            ];
            // SAFETY: as above; the kernel takes these three.
            unsafe { step.launch(cuda, &mut parameters) }?;
        }
        if let Some(zeros) = &self.zeros {
            // SAFETY: as the caller promises.
            unsafe { zeros.launch(cuda, 0, gradients.value, addresses.mask) }?;
        }
        Ok(())
    }
}
