//! Plans without a device or tensors: for row-major, aligned tensors, as most are.

use super::backward::BackwardPlan;
use super::forward::Plan;
use super::operands::{GradientOperands, Operand, Operands};
use super::options::KernelChoice;
use super::specialised::Types;
use super::tuning::{BackwardTuning, ForwardTuning};
use crate::cuda::device_size::DeviceSize;
use crate::cuda::handle::Cuda;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::msda::projections::{
    Points, ProjectedBackward, ProjectedForward, ProjectedProblem, ProjectionGradients, Projections,
};
use crate::msda::{Backward, Forward, Gradients, Inputs, Levels, Problem, Sizes};
use crate::tensor::{View, ViewMut};

/// A call described by its sizes alone. Its plans are those that [`crate::msda::forward`] and [`crate::msda::backward`]
/// would follow for row-major tensors; no driver is needed.
///
/// ```
/// use fourtap::DType;
/// use fourtap::cuda::msda::{ProblemDesc, DeviceSize, Types};
/// use fourtap::msda::Levels;
///
/// let levels = Levels::packed(&[(80, 80), (40, 40), (20, 20)])?;
/// let described = ProblemDesc {
///     images: 1,
///     queries: 300,
///     heads: 8,
///     channels: 32,
///     points: 4,
///     levels: &levels,
///     types: Types { value: DType::F16, locations: DType::F32, weights: DType::F32 },
/// };
/// let device = DeviceSize {
///     multiprocessors: 132,
///     l2_bytes: 60 << 20,
///     shared_bytes: 227 << 10,
///     has_wgmma: true,
/// };
/// let plan = described.forward(device, Default::default())?;
/// assert!(plan.step.kernel.to_string().starts_with("msda-forward-gather-f16"));
/// # Ok::<(), fourtap::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ProblemDesc<'a> {
    /// Images (N).
    pub images: usize,
    /// Queries per image (Q).
    pub queries: usize,
    /// Heads (M).
    pub heads: usize,
    /// Channels per head (D).
    pub channels: usize,
    /// Points per level (P).
    pub points: usize,
    /// The levels.
    pub levels: &'a Levels,
    /// Element types.
    pub types: Types,
}

impl ProblemDesc<'_> {
    /// The validated problem.
    pub fn problem(&self) -> Result<Problem> {
        Problem::new(&AddressAllocator::new().inputs(self)?)
    }

    /// The plan of forward on such a device, untuned.
    pub fn forward(&self, device: DeviceSize, wanted: KernelChoice) -> Result<Plan> {
        self.planned_forward(device, wanted, &ForwardTuning::default())
    }

    /// The plan of forward with this tuning.
    pub fn tuned_forward(&self, device: DeviceSize, tuning: &ForwardTuning) -> Result<Plan> {
        self.planned_forward(device, KernelChoice::Best, tuning)
    }

    fn planned_forward(
        &self,
        device: DeviceSize,
        wanted: KernelChoice,
        tuning: &ForwardTuning,
    ) -> Result<Plan> {
        let mut places = AddressAllocator::new();
        let inputs = places.inputs(self)?;
        let out = places.writable("out", self.types.value, &self.sizes().out())?;
        let call = Forward::new(inputs, out)?;
        let operands = Operands::given(&call.problem, &call.inputs);
        let out = Operand::of_output(&call.out);
        Plan::new(&operands, &out, device, wanted, tuning)
    }

    /// The plan of backward with all three gradients on such a device, untuned.
    pub fn backward(
        &self,
        device: DeviceSize,
        wanted: KernelChoice,
        deterministic: bool,
    ) -> Result<BackwardPlan> {
        self.planned_backward(device, wanted, deterministic, &BackwardTuning::default())
    }

    /// The plan of backward with all three gradients and this tuning.
    pub fn tuned_backward(
        &self,
        device: DeviceSize,
        deterministic: bool,
        tuning: &BackwardTuning,
    ) -> Result<BackwardPlan> {
        self.planned_backward(device, KernelChoice::Best, deterministic, tuning)
    }

    fn planned_backward(
        &self,
        device: DeviceSize,
        wanted: KernelChoice,
        deterministic: bool,
        tuning: &BackwardTuning,
    ) -> Result<BackwardPlan> {
        let (sizes, types) = (self.sizes(), self.types);
        let mut places = AddressAllocator::new();
        let inputs = places.inputs(self)?;
        let grad_out = places.readable("grad_out", types.value, &sizes.out())?;
        let gradients = Gradients {
            value: Some(places.writable("grad_value", types.value, &sizes.value())?),
            sampling_locations: Some(places.writable(
                "grad_locations",
                types.locations,
                &sizes.sampling_locations(),
            )?),
            attention_weights: Some(places.writable(
                "grad_weights",
                types.weights,
                &sizes.attention_weights(),
            )?),
        };
        let call = Backward::new(inputs, grad_out, gradients)?;
        let operands = Operands::given(&call.problem, &call.inputs);
        let gradients = GradientOperands::given(&call);
        BackwardPlan::new(&operands, &gradients, device, wanted, deterministic, tuning)
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            images: self.images,
            pixels: self.levels.pixels(),
            heads: self.heads,
            channels: self.channels,
            queries: self.queries,
            levels: self.levels.len(),
            points: self.points,
        }
    }
}

/// A call [from projections](crate::msda::projections) described by its sizes alone. Offsets and logits are slices of one
/// tensor, as one linear layer puts them out.
#[derive(Clone, Copy, Debug)]
pub struct ProjectedDesc<'a> {
    /// Sizes and element types; those of locations and weights are of offsets and logits, and the same.
    pub call: ProblemDesc<'a>,
    /// Element type of `reference_points`, `[N, Q, L, 2]` or, for boxes, `[N, Q, L, 4]`.
    pub references: DType,
    /// Whether reference points are boxes.
    pub boxes: bool,
}

impl ProjectedDesc<'_> {
    /// The validated problem.
    pub fn problem(&self) -> Result<ProjectedProblem> {
        ProjectedProblem::new(&AddressAllocator::new().projections(self)?)
    }

    /// The plan of forward on such a device, untuned.
    pub fn forward(&self, device: DeviceSize, wanted: KernelChoice) -> Result<Plan> {
        self.planned_forward(device, wanted, &ForwardTuning::default())
    }

    /// The plan of forward with this tuning.
    pub fn tuned_forward(&self, device: DeviceSize, tuning: &ForwardTuning) -> Result<Plan> {
        self.planned_forward(device, KernelChoice::Best, tuning)
    }

    fn planned_forward(
        &self,
        device: DeviceSize,
        wanted: KernelChoice,
        tuning: &ForwardTuning,
    ) -> Result<Plan> {
        let mut places = AddressAllocator::new();
        let inputs = places.projections(self)?;
        let out = places.writable("out", self.call.types.value, &self.call.sizes().out())?;
        let call = ProjectedForward::new(inputs, out)?;
        let operands = Operands::projected(&call.problem, &call.inputs);
        let out = Operand::of_output(&call.out);
        Plan::new(&operands, &out, device, wanted, tuning)
    }

    /// The plan of backward with all four gradients on such a device, untuned, without what comes before and after the
    /// kernels that it shares with given locations.
    pub fn backward(
        &self,
        device: DeviceSize,
        wanted: KernelChoice,
        deterministic: bool,
    ) -> Result<BackwardPlan> {
        self.planned_backward(device, wanted, deterministic, &BackwardTuning::default())
    }

    /// The same with this tuning.
    pub fn tuned_backward(
        &self,
        device: DeviceSize,
        deterministic: bool,
        tuning: &BackwardTuning,
    ) -> Result<BackwardPlan> {
        self.planned_backward(device, KernelChoice::Best, deterministic, tuning)
    }

    fn planned_backward(
        &self,
        device: DeviceSize,
        wanted: KernelChoice,
        deterministic: bool,
        tuning: &BackwardTuning,
    ) -> Result<BackwardPlan> {
        let (sizes, types) = (self.call.sizes(), self.call.types);
        let mut places = AddressAllocator::new();
        let inputs = places.projections(self)?;
        let grad_out = places.readable("grad_out", types.value, &sizes.out())?;
        let mut like =
            |tensor, input: View<'_>| places.writable(tensor, input.dtype(), input.shape().sizes());
        let gradients = ProjectionGradients {
            value: Some(like("grad_value", inputs.value)?),
            reference_points: Some(like("grad_references", inputs.reference_points)?),
            sampling_offsets: Some(like("grad_offsets", inputs.sampling_offsets)?),
            attention_logits: Some(like("grad_logits", inputs.attention_logits)?),
        };
        let call = ProjectedBackward::new(inputs, grad_out, gradients)?;
        let operands = Operands::projected(&call.problem, &call.inputs);
        let gradients = GradientOperands::projected(&call);
        BackwardPlan::new(&operands, &gradients, device, wanted, deterministic, tuning)
    }
}

impl Cuda {
    /// The plan that [`crate::msda::projections::forward`] would follow for these tensors.
    pub fn explain_projected_forward(
        &self,
        inputs: Projections<'_>,
        out: ViewMut<'_>,
    ) -> Result<Plan> {
        let call = ProjectedForward::new(inputs, out)?;
        let operands = Operands::projected(&call.problem, &call.inputs);
        Plan::of(self, &operands, &Operand::of_output(&call.out))
    }

    /// The plan that [`crate::msda::projections::backward`] would follow for these tensors, without what comes before and
    /// after the kernels that it shares with given locations.
    pub fn explain_projected_backward(
        &self,
        inputs: Projections<'_>,
        grad_out: View<'_>,
        gradients: &ProjectionGradients<'_>,
    ) -> Result<BackwardPlan> {
        let call = ProjectedBackward::new(inputs, grad_out, gradients.alias())?;
        let operands = Operands::projected(&call.problem, &call.inputs);
        BackwardPlan::of(self, &operands, &GradientOperands::projected(&call))
    }
}

/// Hands out made-up addresses, aligned like the driver's allocations.
struct AddressAllocator {
    next: usize,
}

const ALIGNMENT: usize = 256;

impl AddressAllocator {
    fn new() -> Self {
        AddressAllocator { next: ALIGNMENT }
    }

    fn take(&mut self, tensor: &'static str, dtype: DType, shape: &[usize]) -> Result<u64> {
        let address = self.next;
        let bytes = shape
            .iter()
            .try_fold(dtype.size(), |product, &size| product.checked_mul(size));
        let end = bytes.and_then(|bytes| address.checked_add(bytes)?.checked_add(ALIGNMENT));
        let end = end.filter(|&end| isize::try_from(end).is_ok());
        let end = end.ok_or_else(|| Error::Overflow {
            tensor,
            what: format!("addresses of {shape:?} of {dtype}"),
        })?;
        self.next = end.next_multiple_of(ALIGNMENT);
        Ok(address as u64)
    }

    fn readable<'a>(
        &mut self,
        tensor: &'static str,
        dtype: DType,
        shape: &[usize],
    ) -> Result<View<'a>> {
        let address = self.take(tensor, dtype, shape)?;
        // SAFETY: no call gets this view. Planning looks at the address but never reads through it, and then drops the
        // view.
        Ok(unsafe { View::on_cuda(0, address, Layout::contiguous(dtype, shape)) })
    }

    fn writable<'a>(
        &mut self,
        tensor: &'static str,
        dtype: DType,
        shape: &[usize],
    ) -> Result<ViewMut<'a>> {
        let address = self.take(tensor, dtype, shape)?;
        // SAFETY: as above.
        Ok(unsafe { ViewMut::on_cuda(0, address, Layout::contiguous(dtype, shape)) })
    }

    fn inputs<'a>(&mut self, call: &ProblemDesc<'a>) -> Result<Inputs<'a>> {
        let (sizes, types) = (call.sizes(), call.types);
        Ok(Inputs {
            value: self.readable("value", types.value, &sizes.value())?,
            levels: call.levels.into(),
            sampling_locations: self.readable(
                "sampling_locations",
                types.locations,
                &sizes.sampling_locations(),
            )?,
            attention_weights: self.readable(
                "attention_weights",
                types.weights,
                &sizes.attention_weights(),
            )?,
        })
    }
}

impl AddressAllocator {
    fn projections<'a>(&mut self, described: &ProjectedDesc<'a>) -> Result<Projections<'a>> {
        let (call, types) = (&described.call, described.call.types);
        let [n, q, m] = [call.images, call.queries, call.heads];
        let samples = call.levels.len().saturating_mul(call.points);
        let coordinates = if described.boxes { 4 } else { 2 };
        let references = [n, q, call.levels.len(), coordinates];
        let row = m.saturating_mul(samples).saturating_mul(3);
        let address = self.take("sampling_offsets", types.locations, &[n, q, row])?;
        let logits = address + (m * samples * 2 * types.locations.size()) as u64;
        let [row, k, q_rows] = [row as isize, samples as isize, q as isize];
        let part = |dtype, address, shape: &[usize], strides: &[isize]| {
            // SAFETY: as in `readable`.
            unsafe { View::on_cuda(0, address, Layout::strided(dtype, shape, strides)) }
        };
        Ok(Projections {
            value: self.readable("value", types.value, &call.sizes().value())?,
            levels: call.levels.into(),
            reference_points: self.readable(
                "reference_points",
                described.references,
                &references,
            )?,
            sampling_offsets: part(
                types.locations,
                address,
                &[n, q, m, samples, 2],
                &[q_rows * row, row, 2 * k, 2, 1],
            ),
            attention_logits: part(
                types.weights,
                logits,
                &[n, q, m, samples],
                &[q_rows * row, row, k, 1],
            ),
            points: Points::Each(call.points),
            value_mask: None,
            mask_is_applied: false,
            interpolation: Default::default(),
            box_scale: Default::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::device_size::H200;
    use crate::cuda::recipe::SpecialisedKernel;

    fn encoder(value: DType, levels: &Levels) -> ProblemDesc<'_> {
        ProblemDesc {
            images: 4,
            queries: levels.pixels(),
            heads: 8,
            channels: 32,
            points: 4,
            levels,
            types: Types {
                value,
                locations: DType::F32,
                weights: DType::F32,
            },
        }
    }

    fn levels() -> Levels {
        Levels::packed(&[(100, 167), (50, 84), (25, 42), (13, 21)]).unwrap()
    }

    #[test]
    fn plans_are_those_measured_on_such_a_device() {
        // The kernels of runs/2026-11-18-h200-encoder and runs/2026-11-17-h200-backward/backward.jsonl.
        let levels = levels();
        let call = encoder(DType::F16, &levels);
        let forward = call.forward(H200, KernelChoice::Best).unwrap();
        assert_eq!(
            forward.to_string(),
            "msda-forward-matrix-f16-d32-l4-p4-u32-t512-keep, 132 blocks of 512 threads, \
             84672 bytes of levels in shared memory"
        );
        let backward = call.backward(H200, KernelChoice::Best, false).unwrap();
        assert_eq!(
            backward.to_string(),
            "msda-backward-samples-matrix-f16-d32-l4-p4-u32-t512, msda-backward-sort-f32-paired-w16, \
             msda-backward-value-matrix-f16; 276846336 bytes of workspace"
        );
    }

    #[test]
    fn projections_of_one_linear_layer_are_gathered() {
        let levels = levels();
        let mut call = encoder(DType::F16, &levels);
        call.types.locations = DType::F16;
        call.types.weights = DType::F16;
        for boxes in [false, true] {
            let described = ProjectedDesc {
                call,
                references: DType::F32,
                boxes,
            };
            let forward = described.forward(H200, KernelChoice::Best).unwrap();
            assert_eq!(forward.reason, None);
            let backward = described.backward(H200, KernelChoice::Best, false).unwrap();
            assert!(backward.kernels().len() > 2);
        }
    }

    #[test]
    fn every_kernel_of_a_plan_is_a_step() {
        let levels = levels();
        let plan = encoder(DType::F32, &levels)
            .backward(H200, KernelChoice::Best, true)
            .unwrap();
        let steps = plan.steps();
        let entries: Vec<_> = steps.iter().map(|step| step.kernel.entry()).collect();
        assert_eq!(entries, plan.kernels());
        assert!(
            steps
                .iter()
                .all(|step| step.blocks[0] > 0 && step.threads > 0)
        );
    }

    #[test]
    fn rows_too_far_apart_for_32_bits_are_not_for_tensor_cores() {
        let planned = |width: usize| {
            let levels = Levels::packed(&[(2, width), (1, 1), (1, 1), (1, 1)]).unwrap();
            let call = ProblemDesc {
                images: 1,
                queries: 1000,
                heads: 32,
                ..encoder(DType::F16, &levels)
            };
            let backward = call.backward(H200, KernelChoice::Best, false).unwrap();
            (
                backward.kernels()[0],
                call.forward(H200, KernelChoice::Matrix),
            )
        };
        // Pixels of 2 KiB.
        assert_eq!(planned((1 << 21) - 2).0, "msda_backward_samples_matrix");
        let (samples, forward) = planned(1 << 21);
        assert_eq!(samples, "msda_backward_samples_gather");
        let refused = forward.unwrap_err().to_string();
        assert!(refused.contains("2048 bytes each"), "{refused}");
    }

    #[test]
    fn what_cannot_gather_says_why() {
        let levels = levels();
        let plan = encoder(DType::F64, &levels)
            .forward(H200, KernelChoice::Best)
            .unwrap();
        assert_eq!(plan.reason.as_deref(), Some("value is f64"));
    }

    #[test]
    fn sizes_nobody_can_address_are_refused() {
        let levels = levels();
        let call = ProblemDesc {
            images: usize::MAX / 1024,
            ..encoder(DType::F32, &levels)
        };
        assert!(matches!(call.problem(), Err(Error::Overflow { .. })));
        let call = ProblemDesc {
            channels: 0,
            ..encoder(DType::F32, &levels)
        };
        assert!(call.forward(H200, KernelChoice::Best).is_err());
    }
}
