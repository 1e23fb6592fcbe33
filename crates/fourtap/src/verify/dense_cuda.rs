//! A case of dense attention on a CUDA device: copied there with guard memory around the tensors, computed and copied back.

use super::dense::{DenseCase, ExpectedDenseResults};
use super::dense_mask::MaskOnDevice;
use super::device_tensor::{CheckResult, DeviceTensor};
use super::tensor::Tensor;
use crate::backend::Backend;
use crate::cuda::Cuda;
use crate::cuda::dense::Plan;
use crate::dense::{self, AttnMask, Inputs, Outputs, Problem};
use crate::error::Result;

/// A case's inputs and outputs in the memory of a device.
pub struct DenseOnCuda<'a> {
    case: &'a DenseCase,
    cuda: Cuda,
    query: DeviceTensor,
    key: DeviceTensor,
    value: DeviceTensor,
    out: DeviceTensor,
    lse: DeviceTensor,
    attn_mask: Option<MaskOnDevice>,
    on_host: [Tensor; 2],
}

impl<'a> DenseOnCuda<'a> {
    /// Copies `case` to the device; outputs are NaN until a call writes them.
    pub fn new(case: &'a DenseCase, cuda: Cuda) -> Result<Self> {
        let problem = Problem::new(&case.inputs(), case.options)?;
        let [of_out, of_lse] = &case.outputs;
        let out = Tensor::poisoned(problem.dtype(), &problem.sizes().out(), of_out);
        let lse = Tensor::poisoned(problem.lse_dtype(), &problem.sizes().lse(), of_lse);
        Ok(DenseOnCuda {
            case,
            cuda,
            query: DeviceTensor::new(&cuda, &case.query)?,
            key: DeviceTensor::new(&cuda, &case.key)?,
            value: DeviceTensor::new(&cuda, &case.value)?,
            out: DeviceTensor::new(&cuda, &out)?,
            lse: DeviceTensor::new(&cuda, &lse)?,
            attn_mask: (case.attn_mask.as_ref())
                .map(|mask| MaskOnDevice::new(&cuda, mask))
                .transpose()?,
            on_host: [out, lse],
        })
    }

    /// The plan of a call.
    pub fn plan(&mut self) -> Result<Plan> {
        let inputs = Inputs {
            query: self.query.view(),
            key: self.key.view(),
            value: self.value.view(),
            attn_mask: attn_mask(&self.attn_mask, self.case, &self.cuda),
        };
        let (cuda, options) = (self.cuda, self.case.options);
        cuda.explain_dense(inputs, options, &self.out.view_mut().into())
    }

    /// Computes `out` and, if requested, `lse`, and copies them back with the memory around them.
    pub fn forward(mut self, with_lse: bool) -> CheckResult<[Tensor; 2]> {
        let inputs = Inputs {
            query: self.query.view(),
            key: self.key.view(),
            value: self.value.view(),
            attn_mask: attn_mask(&self.attn_mask, self.case, &self.cuda),
        };
        let outputs = Outputs {
            out: self.out.view_mut(),
            lse: with_lse.then(|| self.lse.view_mut()),
        };
        let backend = Backend::Cuda(self.cuda);
        dense::forward(&backend, inputs, self.case.options, outputs)?;
        let [mut out, mut lse] = self.on_host;
        self.out.read(&self.cuda, "out", &mut out)?;
        self.lse.read(&self.cuda, "lse", &mut lse)?;
        Ok([out, lse])
    }
}

fn attn_mask<'m>(
    copy: &'m Option<MaskOnDevice>,
    case: &DenseCase,
    cuda: &Cuda,
) -> Option<AttnMask<'m>> {
    copy.as_ref()?.view(cuda, case.attn_mask.as_ref()?)
}

/// Checks forward of `case` on a device against the oracle: every element, and the memory around them.
pub fn check_dense_on_cuda(
    case: &DenseCase,
    expected: &ExpectedDenseResults,
    cuda: &Cuda,
    with_lse: bool,
) -> CheckResult<()> {
    let [out, lse] = DenseOnCuda::new(case, *cuda)?.forward(with_lse)?;
    expected.compare(&out, with_lse.then_some(&lse))
}
