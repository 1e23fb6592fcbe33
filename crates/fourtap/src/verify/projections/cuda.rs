//! A case on a CUDA device: copied there with guard memory around the tensors, computed and copied back.

use super::case::ProjectedCase;
use super::check::{ProjectedGradientSelection, ProjectedGradientTensors};
use crate::backend::Backend;
use crate::cuda::Cuda;
use crate::cuda::driver::Buffer;
use crate::error::Result;
use crate::msda::projections::{self, ProjectedProblem, ProjectionGradients, Projections};
use crate::msda::{CudaLevels, LevelTable};
use crate::tensor::View;
use crate::verify::cuda::{LevelsIn, table};
use crate::verify::device_tensor::{CheckResult, DeviceTensor};
use crate::verify::tensor::Tensor;

/// A case's inputs in the memory of a device.
pub struct CudaProjectedCase<'a> {
    case: &'a ProjectedCase,
    cuda: Cuda,
    value: DeviceTensor,
    references: DeviceTensor,
    offsets: DeviceTensor,
    logits: DeviceTensor,
    merged: Option<DeviceTensor>,
    mask: Option<Buffer>,
    grad_out: DeviceTensor,
    shapes: Buffer,
    starts: Buffer,
}

impl<'a> CudaProjectedCase<'a> {
    /// Copies `case` to the device.
    pub fn new(case: &'a ProjectedCase, cuda: Cuda) -> Result<Self> {
        let shapes = case.levels.iter();
        let shapes: Vec<i64> = shapes
            .flat_map(|level| [level.height as i64, level.width as i64])
            .collect();
        let starts: Vec<i64> = case.levels.iter().map(|level| level.start as i64).collect();
        let copy = |tensor: &Tensor| DeviceTensor::new(&cuda, tensor);
        let mask = case.value_mask.as_ref().map(|mask| match mask.memory() {
            // Never empty, so that there is an address.
            [] => Buffer::zeroed(cuda.context(), 16),
            bytes => Buffer::from_slice(cuda.context(), bytes),
        });
        Ok(CudaProjectedCase {
            case,
            cuda,
            value: copy(&case.value)?,
            references: copy(&case.reference_points)?,
            offsets: copy(&case.sampling_offsets)?,
            logits: copy(&case.attention_logits)?,
            merged: case.merged.as_ref().map(copy).transpose()?,
            mask: mask.transpose()?,
            grad_out: copy(&case.grad_out)?,
            shapes: table(&cuda, &shapes)?,
            starts: table(&cuda, &starts)?,
        })
    }

    /// The case on the host.
    pub fn case(&self) -> &'a ProjectedCase {
        self.case
    }

    /// The inputs of the operator.
    pub fn inputs(&self, levels: LevelsIn) -> Projections<'_> {
        let case = self.case;
        let (sampling_offsets, attention_logits) = match (&self.merged, &case.merged) {
            (Some(copy), Some(merged)) => {
                let [offsets, logits] = case.parts(merged);
                (
                    copy.part(offsets.first, offsets.layout),
                    copy.part(logits.first, logits.layout),
                )
            }
            _ => (self.offsets.view(), self.logits.view()),
        };
        let masks = case.value_mask.as_ref().zip(self.mask.as_ref());
        Projections {
            value: self.value.view(),
            levels: match levels {
                LevelsIn::Host => LevelTable::Host(&case.levels),
                // SAFETY: the buffers hold that many numbers and outlive the view.
                LevelsIn::Device => LevelTable::Cuda(unsafe {
                    CudaLevels::new(
                        self.cuda.ordinal(),
                        case.levels.len(),
                        self.shapes.as_ptr(),
                        Some(self.starts.as_ptr()),
                    )
                }),
            },
            reference_points: self.references.view(),
            sampling_offsets,
            attention_logits,
            points: case.points(),
            // SAFETY: the buffer is a copy of the mask's memory and outlives the view.
            value_mask: masks
                .map(|(mask, copy)| unsafe { mask.view_on(self.cuda.ordinal(), copy.as_ptr()) }),
            interpolation: case.interpolation,
            box_scale: case.box_scale(),
            mask_is_applied: false,
        }
    }

    /// The gradient of the output.
    pub fn grad_out(&self) -> View<'_> {
        self.grad_out.view()
    }

    /// Computes forward and copies the result back, with the memory around it.
    pub fn forward(&self, levels: LevelsIn) -> CheckResult<Tensor> {
        let inputs = self.inputs(levels);
        let sizes = *ProjectedProblem::new(&inputs)?.sizes();
        let dtype = self.case.value.dtype();
        let mut out = Tensor::poisoned(dtype, &sizes.out(), &self.case.outputs[0]);
        let mut copied = DeviceTensor::new(&self.cuda, &out).map_err(crate::Error::from)?;
        projections::forward(&Backend::Cuda(self.cuda), inputs, copied.view_mut())?;
        copied.read(&self.cuda, "out", &mut out)?;
        Ok(out)
    }

    /// Memory on the device for the selected gradients.
    pub fn gradients(&self, asked: ProjectedGradientSelection) -> Result<CudaProjectedGradients> {
        let tensors = ProjectedGradientTensors::poisoned(self.case, asked);
        let mut copies = [None, None, None, None];
        for (copy, (_, tensor)) in copies.iter_mut().zip(tensors.named()) {
            *copy = tensor
                .map(|tensor| DeviceTensor::new(&self.cuda, tensor))
                .transpose()?;
        }
        Ok(CudaProjectedGradients { tensors, copies })
    }

    /// Computes the selected gradients and copies them back, with the memory around them.
    pub fn backward(
        &self,
        levels: LevelsIn,
        asked: ProjectedGradientSelection,
    ) -> CheckResult<ProjectedGradientTensors> {
        let mut gradients = self.gradients(asked)?;
        projections::backward(
            &Backend::Cuda(self.cuda),
            self.inputs(levels),
            self.grad_out(),
            gradients.views(),
        )?;
        gradients.read(&self.cuda)
    }
}

/// The gradients of a case in device memory: NaN until a call writes them.
pub struct CudaProjectedGradients {
    tensors: ProjectedGradientTensors,
    copies: [Option<DeviceTensor>; 4],
}

impl CudaProjectedGradients {
    /// The outputs of backward.
    pub fn views(&mut self) -> ProjectionGradients<'_> {
        let [value, reference_points, sampling_offsets, attention_logits] = self
            .copies
            .each_mut()
            .map(|copy| copy.as_mut().map(DeviceTensor::view_mut));
        ProjectionGradients {
            value,
            reference_points,
            sampling_offsets,
            attention_logits,
        }
    }

    /// Copies them back once the work of this stream is done, with the memory around them.
    pub fn read(mut self, cuda: &Cuda) -> CheckResult<ProjectedGradientTensors> {
        for (copy, (name, tensor)) in self.copies.iter().zip(self.tensors.named_mut()) {
            if let (Some(copy), Some(tensor)) = (copy, tensor) {
                copy.read(cuda, name, tensor)?;
            }
        }
        Ok(self.tensors)
    }
}
