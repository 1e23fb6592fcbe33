//! A case on a CUDA device: copied there with guard memory around the tensors, computed and copied back.

use super::case::Case;
use super::compare::compare;
use super::device_tensor::{CheckResult, DeviceTensor, DriverResult};
use super::gradients::{ExpectedGradients, GradientSelection, GradientTensors};
use super::rule::Pass;
use super::tensor::Tensor;
use crate::backend::Backend;
use crate::cuda::Cuda;
use crate::cuda::driver::Buffer;
use crate::error::Result;
use crate::msda::{self, CudaLevels, Gradients, Inputs, LevelTable, oracle};
use crate::tensor::View;

/// The memory that holds a case's levels when it is computed on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelsIn {
    /// Host memory.
    Host,
    /// Device memory.
    Device,
}

/// A case's inputs in the memory of a device.
pub struct CudaCase<'a> {
    case: &'a Case,
    cuda: Cuda,
    value: DeviceTensor,
    locations: DeviceTensor,
    weights: DeviceTensor,
    grad_out: DeviceTensor,
    shapes: Buffer,
    starts: Option<Buffer>,
}

impl<'a> CudaCase<'a> {
    /// Copies `case` to the device.
    pub fn new(case: &'a Case, cuda: Cuda) -> Result<Self> {
        let shapes: Vec<i64> = case
            .levels
            .iter()
            .flat_map(|level| [level.height as i64, level.width as i64])
            .collect();
        let starts: Vec<i64> = case.levels.iter().map(|level| level.start as i64).collect();
        Ok(CudaCase {
            case,
            cuda,
            value: DeviceTensor::new(&cuda, &case.value)?,
            locations: DeviceTensor::new(&cuda, &case.sampling_locations)?,
            weights: DeviceTensor::new(&cuda, &case.attention_weights)?,
            grad_out: DeviceTensor::new(&cuda, &case.grad_out)?,
            shapes: table(&cuda, &shapes)?,
            starts: Some(table(&cuda, &starts)?),
        })
    }

    /// The same with another level table in device memory, which need not be valid: `[L, 2]` shapes and, if given, `[L]`
    /// starts.
    ///
    /// # Panics
    /// If they are not for as many levels as the case's tensors.
    pub fn with_level_table(self, shapes: &[i64], starts: Option<&[i64]>) -> Result<Self> {
        assert_eq!(shapes.len(), 2 * self.levels(), "one pair per level");
        assert!(starts.is_none_or(|starts| starts.len() == self.levels()));
        Ok(CudaCase {
            shapes: table(&self.cuda, shapes)?,
            starts: starts.map(|starts| table(&self.cuda, starts)).transpose()?,
            ..self
        })
    }

    /// The case on the host.
    pub fn case(&self) -> &'a Case {
        self.case
    }

    fn levels(&self) -> usize {
        self.case.attention_weights.shape().sizes()[3]
    }

    /// The inputs of the operator.
    pub fn inputs(&self, levels: LevelsIn) -> Inputs<'_> {
        Inputs {
            value: self.value.view(),
            levels: match levels {
                LevelsIn::Host => LevelTable::Host(&self.case.levels),
                // SAFETY: the buffers hold that many numbers and outlive the view.
                LevelsIn::Device => LevelTable::Cuda(unsafe {
                    CudaLevels::new(
                        self.cuda.ordinal(),
                        self.levels(),
                        self.shapes.as_ptr(),
                        self.starts.as_ref().map(Buffer::as_ptr),
                    )
                }),
            },
            sampling_locations: self.locations.view(),
            attention_weights: self.weights.view(),
        }
    }

    /// The gradient of the output.
    pub fn grad_out(&self) -> View<'_> {
        self.grad_out.view()
    }

    /// Computes forward and copies the result back, with the memory around it.
    pub fn forward(&self, levels: LevelsIn) -> CheckResult<Tensor> {
        let inputs = self.inputs(levels);
        let sizes = *msda::Problem::new(&inputs)?.sizes();
        let dtype = self.case.value.dtype();
        let mut out = Tensor::poisoned(dtype, &sizes.out(), &self.case.outputs[0]);
        let mut copied = DeviceTensor::new(&self.cuda, &out).map_err(crate::Error::from)?;
        msda::forward(&Backend::Cuda(self.cuda), inputs, copied.view_mut())?;
        copied.read(&self.cuda, "out", &mut out)?;
        Ok(out)
    }

    /// Memory on the device for the selected gradients.
    pub fn gradients(&self, asked: GradientSelection) -> Result<CudaGradients> {
        let tensors = GradientTensors::poisoned(self.case, asked);
        let mut copies = [None, None, None];
        for (copy, (_, tensor)) in copies.iter_mut().zip(tensors.named()) {
            *copy = tensor
                .map(|tensor| DeviceTensor::new(&self.cuda, tensor))
                .transpose()?;
        }
        Ok(CudaGradients { tensors, copies })
    }

    /// Computes the selected gradients and copies them back, with the memory around them.
    pub fn backward(
        &self,
        levels: LevelsIn,
        asked: GradientSelection,
    ) -> CheckResult<GradientTensors> {
        let mut gradients = self.gradients(asked)?;
        let backend = Backend::Cuda(self.cuda);
        msda::backward(
            &backend,
            self.inputs(levels),
            self.grad_out(),
            gradients.views(),
        )?;
        gradients.read(&self.cuda)
    }
}

/// Never empty, so that there is an address even without levels.
pub(super) fn table(cuda: &Cuda, numbers: &[i64]) -> DriverResult<Buffer> {
    match numbers {
        [] => Buffer::zeroed(cuda.context(), 16),
        some => Buffer::from_slice(cuda.context(), some),
    }
}

/// The gradients of a case in device memory: NaN until a call writes them.
pub struct CudaGradients {
    tensors: GradientTensors,
    copies: [Option<DeviceTensor>; 3],
}

impl CudaGradients {
    /// The outputs of backward.
    pub fn views(&mut self) -> Gradients<'_> {
        let [value, sampling_locations, attention_weights] = self
            .copies
            .each_mut()
            .map(|copy| copy.as_mut().map(DeviceTensor::view_mut));
        Gradients {
            value,
            sampling_locations,
            attention_weights,
        }
    }

    /// Copies them back once the work of this stream is done, with the memory around them.
    pub fn read(mut self, cuda: &Cuda) -> CheckResult<GradientTensors> {
        for (copy, (name, tensor)) in self.copies.iter().zip(self.tensors.named_mut()) {
            if let (Some(copy), Some(tensor)) = (copy, tensor) {
                copy.read(cuda, name, tensor)?;
            }
        }
        Ok(self.tensors)
    }
}

/// Forward of `case` on a device, against the oracle: every element, and the memory around them.
pub fn check_forward_on_cuda(case: &Case, cuda: &Cuda, levels: LevelsIn) -> CheckResult<()> {
    let out = CudaCase::new(case, *cuda)?.forward(levels)?;
    let inputs = case.inputs();
    let (exact, naive) = (oracle::forward(&inputs)?, oracle::forward(&inputs)?);
    compare("out", Pass::Forward, &out, &exact, &naive)
}

/// All gradients of `case` on a device, against the oracle: every element, and the memory around them.
pub fn check_backward_on_cuda(case: &Case, cuda: &Cuda, levels: LevelsIn) -> CheckResult<()> {
    let found = CudaCase::new(case, *cuda)?.backward(levels, GradientSelection::ALL)?;
    ExpectedGradients::new(case)?.compare(&found)
}
