//! Dense attention.

use fourtap::dense::{self, AttnMask, ForwardResults, Gradients, Inputs, Mask, Outputs};

use crate::call::End;
use crate::descriptor::{self, Descriptor};
use crate::options::Options;
use crate::status::{Error, Result, Status, answer};
use crate::tensor::{DType, Tensor, describe, optional_view_mut, view, view_mut};

/// Where the diagonal of causal masks and windows lies when there are not as many queries as keys.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// The last query is at the last key, as in decoding with a KV cache: FlashAttention.
    BottomRight = 0,
    /// Query 0 is at key 0: is_causal of PyTorch's scaled_dot_product_attention.
    TopLeft = 1,
}

/// The inputs of dense attention, softmax(scale * Q K^T + mask) V. All tensors have one dtype, f16, bf16, f32 or f64. These are logical
/// shapes: tensors stored as `[B, S, H, D]` are described by their strides.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DenseInputs {
    /// sizeof(fourtap_dense_inputs).
    pub struct_size: u32,
    /// A fourtap_alignment; 0 is bottom right.
    pub alignment: u32,
    /// `[B, Hq, Sq, D]`.
    pub query: *const Tensor,
    /// `[B, Hk, Sk, D]`; Hk divides Hq.
    pub key: *const Tensor,
    /// `[B, Hk, Sk, Dv]`.
    pub value: *const Tensor,
    /// Broadcasts to `[B, Hq, Sq, Sk]`: bool, true where a query sees a key, or a bias that is added to the scaled logits, of the dtype of the
    /// others or f32. NULL: none.
    pub attn_mask: *const Tensor,
    /// The scale of Q K^T; NULL: 1 / sqrt(D).
    pub scale: *const f64,
    /// How many keys before the diagonal a query sees; NULL: all.
    pub window_left: *const i64,
    /// How many keys after the diagonal a query sees; NULL: all.
    pub window_right: *const i64,
    /// Not 0: a query sees no key after the diagonal.
    pub is_causal: u32,
}

/// What dense attention writes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DenseOutputs {
    /// sizeof(fourtap_dense_outputs).
    pub struct_size: u32,
    /// `[B, Hq, Sq, Dv]`.
    pub out: *const Tensor,
    /// `[B, Hq, Sq]`, the log-sum-exp (LSE) of the logits, natural logarithm: f32, or f64 where the others are. NULL: not computed.
    pub lse: *const Tensor,
}

/// What fourtap_dense_backward() writes. A gradient that is NULL is not computed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DenseGradients {
    /// sizeof(fourtap_dense_gradients).
    pub struct_size: u32,
    /// As query.
    pub query: *const Tensor,
    /// As key.
    pub key: *const Tensor,
    /// As value.
    pub value: *const Tensor,
    /// As attn_mask, if that is a bias: summed over what it broadcasts.
    pub bias: *const Tensor,
}

// SAFETY: integers and pointers, all of which may be zero; there is one version.
unsafe impl Descriptor for DenseInputs {
    const SIZES: &'static [usize] = &[size_of::<DenseInputs>()];
}

// SAFETY: as above.
unsafe impl Descriptor for DenseOutputs {
    const SIZES: &'static [usize] = &[size_of::<DenseOutputs>()];
}

// SAFETY: as above.
unsafe impl Descriptor for DenseGradients {
    const SIZES: &'static [usize] = &[size_of::<DenseGradients>()];
}

/// Dense attention. A query that sees no key gets an output of 0 and an lse of minus infinity.
///
/// # Safety
/// As for [`fourtap_msda_forward`](crate::fourtap_msda_forward).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourtap_dense_forward(
    inputs: *const DenseInputs,
    outputs: *const DenseOutputs,
    options: *const Options,
) -> Status {
    // SAFETY: as the caller promises.
    answer(|| unsafe { forward(inputs, outputs, options, End::Launch) })
}

/// Writes to *bytes how large a workspace fourtap_dense_forward() needs with the same arguments: 0 on the CPU.
///
/// # Safety
/// As for [`fourtap_msda_forward`](crate::fourtap_msda_forward).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourtap_dense_forward_workspace_size(
    inputs: *const DenseInputs,
    outputs: *const DenseOutputs,
    options: *const Options,
    bytes: *mut usize,
) -> Status {
    // SAFETY: as the caller promises.
    answer(|| unsafe { forward(inputs, outputs, options, End::WorkspaceSize(bytes)) })
}

/// The gradients of dense attention, given what fourtap_dense_forward() wrote, out and lse, and grad_out, `[B, Hq, Sq, Dv]` of the dtype of
/// the others. On a CUDA device in f16 and bf16; f32 and f64 end in FOURTAP_STATUS_UNSUPPORTED there.
///
/// # Safety
/// As for [`fourtap_msda_forward`](crate::fourtap_msda_forward).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourtap_dense_backward(
    inputs: *const DenseInputs,
    results: *const DenseOutputs,
    grad_out: *const Tensor,
    gradients: *const DenseGradients,
    options: *const Options,
) -> Status {
    // SAFETY: as the caller promises.
    answer(|| unsafe { backward(inputs, results, grad_out, gradients, options, End::Launch) })
}

/// Writes to *bytes how large a workspace fourtap_dense_backward() needs with the same arguments: 0 on the CPU.
///
/// # Safety
/// As for [`fourtap_msda_forward`](crate::fourtap_msda_forward).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourtap_dense_backward_workspace_size(
    inputs: *const DenseInputs,
    results: *const DenseOutputs,
    grad_out: *const Tensor,
    gradients: *const DenseGradients,
    options: *const Options,
    bytes: *mut usize,
) -> Status {
    let end = End::WorkspaceSize(bytes);
    // SAFETY: as the caller promises.
    answer(|| unsafe { backward(inputs, results, grad_out, gradients, options, end) })
}

/// # Safety
/// As for [`fourtap_dense_backward`].
unsafe fn backward(
    inputs: *const DenseInputs,
    results: *const DenseOutputs,
    grad_out: *const Tensor,
    gradients: *const DenseGradients,
    options: *const Options,
    end: End,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let described = descriptor::read(inputs, "inputs")?;
        let results = descriptor::read(results, "results")?;
        let gradients = descriptor::read(gradients, "gradients")?;
        let options = Options::read(options)?;
        let (inputs, operator_options) = (described.views()?, described.options()?);
        let results = ForwardResults {
            out: view(results.out, "out")?,
            lse: view(results.lse, "lse")?,
        };
        let grad_out = view(grad_out, "grad_out")?;
        let gradients = Gradients {
            query: optional_view_mut(gradients.query, "grad_query")?,
            key: optional_view_mut(gradients.key, "grad_key")?,
            value: optional_view_mut(gradients.value, "grad_value")?,
            bias: optional_view_mut(gradients.bias, "grad_bias")?,
        };
        let call = options.prepare(inputs.query.place(), |backend| {
            dense::prepare_backward(
                backend,
                inputs,
                operator_options,
                results,
                grad_out,
                gradients,
            )
        })?;
        end.of(call, &options)
    }
}

/// # Safety
/// As for [`fourtap_dense_forward`].
unsafe fn forward(
    inputs: *const DenseInputs,
    outputs: *const DenseOutputs,
    options: *const Options,
    end: End,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let described = descriptor::read(inputs, "inputs")?;
        let outputs = descriptor::read(outputs, "outputs")?;
        let options = Options::read(options)?;
        let (inputs, operator_options) = (described.views()?, described.options()?);
        let outputs = Outputs {
            out: view_mut(outputs.out, "out")?,
            lse: optional_view_mut(outputs.lse, "lse")?,
        };
        let call = options.prepare(inputs.query.place(), |backend| {
            dense::prepare_forward(backend, inputs, operator_options, outputs)
        })?;
        end.of(call, &options)
    }
}

impl DenseInputs {
    /// # Safety
    /// As for [`fourtap_dense_forward`].
    unsafe fn views<'a>(&self) -> Result<Inputs<'a>> {
        // SAFETY: as the caller promises.
        unsafe {
            let attn_mask = match self.attn_mask.is_null() {
                true => None,
                false => {
                    let tensor = describe(self.attn_mask, "attn_mask")?;
                    Some(match tensor.dtype {
                        DType::Bool => AttnMask::Seen(tensor.bool_view()?),
                        DType::I32 | DType::I64 => {
                            return Err(tensor.wrong_dtype("bool, f16, bf16, f32 or f64"));
                        }
                        _ => AttnMask::Bias(tensor.view()?),
                    })
                }
            };
            Ok(Inputs {
                query: view(self.query, "query")?,
                key: view(self.key, "key")?,
                value: view(self.value, "value")?,
                attn_mask,
            })
        }
    }

    /// # Safety
    /// The pointers to numbers are null or lead to one.
    unsafe fn options(&self) -> Result<dense::Options> {
        let alignment = match self.alignment {
            0 => dense::Alignment::BottomRight,
            1 => dense::Alignment::TopLeft,
            other => return Err(Error::value("alignment", "a fourtap_alignment", other)),
        };
        // SAFETY: as the caller promises.
        unsafe {
            let (left, right) = (
                bound(self.window_left, "window_left")?,
                bound(self.window_right, "window_right")?,
            );
            let whole = match self.is_causal != 0 {
                true => Mask::causal(alignment),
                false => Mask::window(alignment, None, None),
            };
            Ok(dense::Options {
                scale: (!self.scale.is_null()).then(|| self.scale.read_unaligned()),
                mask: whole.with_window(left, right),
            })
        }
    }
}

/// One side of a window; none if the pointer is null.
///
/// # Safety
/// The pointer is null or leads to a number.
unsafe fn bound(pointer: *const i64, name: &'static str) -> Result<Option<usize>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let keys = unsafe { pointer.read_unaligned() };
    let keys = usize::try_from(keys).map_err(|_| Error::value(name, "0 or more", keys))?;
    Ok(Some(keys))
}
