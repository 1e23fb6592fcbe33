//! Gradients of dense attention on a CUDA device: a case copied there with guard memory around the tensors, computed and copied
//! back.

use super::dense_gradients::{
    DenseBackwardCase, DenseGradientSelection, DenseGradientTensors, ExpectedDenseGradients,
};
use super::dense_mask::MaskOnDevice;
use super::device_tensor::{CheckResult, DeviceTensor};
use super::tensor::Tensor;
use crate::backend::Backend;
use crate::cuda::Cuda;
use crate::cuda::dense::BackwardPlan;
use crate::cuda::driver::Buffer;
use crate::dense::{self, ForwardResults, Gradients, Inputs};
use crate::error::Result;
use crate::tensor::View;

/// A case's tensors in the memory of a device.
pub struct DenseGradientsOnCuda<'a> {
    case: &'a DenseBackwardCase,
    cuda: Cuda,
    read: [DeviceTensor; 6],
    attn_mask: Option<MaskOnDevice>,
    written: [Option<DeviceTensor>; 4],
    on_host: DenseGradientTensors,
}

impl<'a> DenseGradientsOnCuda<'a> {
    /// Copies `case` to the device; the selected gradients are NaN until a call writes them.
    pub fn new(
        case: &'a DenseBackwardCase,
        cuda: Cuda,
        selected: DenseGradientSelection,
    ) -> Result<Self> {
        let forward = &case.forward;
        let copy = |tensor: &Tensor| DeviceTensor::new(&cuda, tensor);
        let on_host = DenseGradientTensors::poisoned(case, selected);
        let [query, key, value, bias] = on_host
            .named()
            .map(|(_, tensor)| tensor.map(copy).transpose());
        Ok(DenseGradientsOnCuda {
            case,
            cuda,
            read: [
                copy(&forward.query)?,
                copy(&forward.key)?,
                copy(&forward.value)?,
                copy(&case.out)?,
                copy(&case.lse)?,
                copy(&case.grad_out)?,
            ],
            attn_mask: (forward.attn_mask.as_ref())
                .map(|mask| MaskOnDevice::new(&cuda, mask))
                .transpose()?,
            written: [query?, key?, value?, bias?],
            on_host,
        })
    }

    /// What a call is given.
    fn views(&mut self) -> (Inputs<'_>, ForwardResults<'_>, View<'_>, Gradients<'_>) {
        let [query, key, value, out, lse, grad_out] = &self.read;
        let mask = self.case.forward.attn_mask.as_ref();
        let on_device = self.attn_mask.as_ref().zip(mask);
        let inputs = Inputs {
            query: query.view(),
            key: key.view(),
            value: value.view(),
            attn_mask: on_device.and_then(|(copy, mask)| copy.view(&self.cuda, mask)),
        };
        let results = ForwardResults {
            out: out.view(),
            lse: lse.view(),
        };
        let [query, key, value, bias] = &mut self.written;
        let gradients = Gradients {
            query: query.as_mut().map(DeviceTensor::view_mut),
            key: key.as_mut().map(DeviceTensor::view_mut),
            value: value.as_mut().map(DeviceTensor::view_mut),
            bias: bias.as_mut().map(DeviceTensor::view_mut),
        };
        (inputs, results, grad_out.view(), gradients)
    }

    /// The plan of a call.
    pub fn plan(&mut self) -> Result<BackwardPlan> {
        let (cuda, options) = (self.cuda, self.case.forward.options);
        let (inputs, results, grad_out, gradients) = self.views();
        cuda.explain_dense_backward(inputs, options, results, grad_out, &gradients)
    }

    /// Computes the selected gradients, in scratch memory that holds NaN.
    pub fn backward(&mut self) -> Result<()> {
        let (cuda, options) = (self.cuda, self.case.forward.options);
        let backend = Backend::Cuda(cuda);
        let (inputs, results, grad_out, gradients) = self.views();
        let call =
            dense::prepare_backward(&backend, inputs, options, results, grad_out, gradients)?;
        let bytes = call.workspace_bytes();
        let scratch = Buffer::from_slice(cuda.context(), &vec![0xffu8; bytes.max(16)])?;
        // SAFETY: it is the device's, as large as the call says, and nothing else uses it until the call is done.
        unsafe { call.launch_in(scratch.as_ptr(), bytes) }?;
        let _entered = cuda.context().enter()?;
        cuda.stream().synchronize()?;
        Ok(())
    }

    /// Copies them back with the memory around them.
    pub fn read(mut self) -> CheckResult<DenseGradientTensors> {
        let tensors = [
            ("grad_query", self.on_host.query.as_mut()),
            ("grad_key", self.on_host.key.as_mut()),
            ("grad_value", self.on_host.value.as_mut()),
            ("grad_bias", self.on_host.bias.as_mut()),
        ];
        for ((name, on_host), on_device) in tensors.into_iter().zip(self.written) {
            if let (Some(on_host), Some(on_device)) = (on_host, on_device) {
                on_device.read(&self.cuda, name, on_host)?;
            }
        }
        Ok(self.on_host)
    }
}

/// Checks the selected gradients of `case` on a device against the oracle: every element, and the memory around them.
pub fn check_dense_gradients_on_cuda(
    case: &DenseBackwardCase,
    expected: &ExpectedDenseGradients,
    cuda: &Cuda,
    selected: DenseGradientSelection,
) -> CheckResult<()> {
    let mut on_device = DenseGradientsOnCuda::new(case, *cuda, selected)?;
    on_device.backward()?;
    expected.compare(&on_device.read()?)
}
