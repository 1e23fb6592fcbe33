//! Multi-scale deformable attention from sampling locations and weights.

use fourtap::msda::{self, Gradients, Inputs};

use crate::call::End;
use crate::descriptor::{self, Descriptor};
use crate::levels::{self, OwnedLevels};
use crate::options::Options;
use crate::status::{Result, Status, answer};
use crate::tensor::{Tensor, optional_view_mut, view, view_mut};

/// The inputs of multi-scale deformable attention: N images of S pixels in L levels, M heads of D channels, Q queries of P points per
/// level.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MsdaInputs {
    /// sizeof(fourtap_msda_inputs).
    pub struct_size: u32,
    /// `[N, S, M, D]`, f16, bf16, f32 or f64.
    pub value: *const Tensor,
    /// `[L, 2]`, (height, width) of each level: i64 on the tensors' device, or i64 or i32 in host memory.
    pub spatial_shapes: *const Tensor,
    /// `[L]`, the first pixel of each level on axis S, beside spatial_shapes; NULL: each begins where the one before it ends.
    pub level_start_index: *const Tensor,
    /// `[N, Q, M, L, P, 2]`, (x, y): 0 is the left or top edge of the level, 1 the right or bottom. f32, or as value.
    pub sampling_locations: *const Tensor,
    /// `[N, Q, M, L, P]`, f32, or as value.
    pub attention_weights: *const Tensor,
}

/// What fourtap_msda_backward() writes. A gradient that is NULL is not computed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MsdaGradients {
    /// sizeof(fourtap_msda_gradients).
    pub struct_size: u32,
    /// As value.
    pub value: *const Tensor,
    /// As sampling_locations.
    pub sampling_locations: *const Tensor,
    /// As attention_weights.
    pub attention_weights: *const Tensor,
}

// SAFETY: integers and pointers, all of which may be zero; there is one version.
unsafe impl Descriptor for MsdaInputs {
    const SIZES: &'static [usize] = &[size_of::<MsdaInputs>()];
}

// SAFETY: as above.
unsafe impl Descriptor for MsdaGradients {
    const SIZES: &'static [usize] = &[size_of::<MsdaGradients>()];
}

/// Multi-scale deformable attention: writes out, `[N, Q, M * D]` of the dtype of value.
///
/// # Safety
/// Pointers are null or lead to what they are declared as; tensors' memory is as their descriptors say, and is not used by anybody else
/// until the work is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourtap_msda_forward(
    inputs: *const MsdaInputs,
    out: *const Tensor,
    options: *const Options,
) -> Status {
    // SAFETY: as the caller promises.
    answer(|| unsafe { forward(inputs, out, options, End::Launch) })
}

/// Writes to *bytes how large a workspace fourtap_msda_forward() needs with the same arguments: 0 on the CPU.
///
/// # Safety
/// As for [`fourtap_msda_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourtap_msda_forward_workspace_size(
    inputs: *const MsdaInputs,
    out: *const Tensor,
    options: *const Options,
    bytes: *mut usize,
) -> Status {
    // SAFETY: as the caller promises.
    answer(|| unsafe { forward(inputs, out, options, End::WorkspaceSize(bytes)) })
}

/// The gradients of multi-scale deformable attention, given grad_out, `[N, Q, M * D]` of the dtype of value.
///
/// # Safety
/// As for [`fourtap_msda_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourtap_msda_backward(
    inputs: *const MsdaInputs,
    grad_out: *const Tensor,
    gradients: *const MsdaGradients,
    options: *const Options,
) -> Status {
    // SAFETY: as the caller promises.
    answer(|| unsafe { backward(inputs, grad_out, gradients, options, End::Launch) })
}

/// Writes to *bytes how large a workspace fourtap_msda_backward() needs with the same arguments: 0 on the CPU.
///
/// # Safety
/// As for [`fourtap_msda_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourtap_msda_backward_workspace_size(
    inputs: *const MsdaInputs,
    grad_out: *const Tensor,
    gradients: *const MsdaGradients,
    options: *const Options,
    bytes: *mut usize,
) -> Status {
    let end = End::WorkspaceSize(bytes);
    // SAFETY: as the caller promises.
    answer(|| unsafe { backward(inputs, grad_out, gradients, options, end) })
}

/// # Safety
/// As for [`fourtap_msda_forward`].
unsafe fn forward(
    inputs: *const MsdaInputs,
    out: *const Tensor,
    options: *const Options,
    end: End,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let inputs = descriptor::read(inputs, "inputs")?;
        let options = Options::read(options)?;
        let levels = levels::read(inputs.spatial_shapes, inputs.level_start_index)?;
        let inputs = inputs.views(&levels)?;
        let out = view_mut(out, "out")?;
        let call = options.prepare(inputs.value.place(), |backend| {
            msda::prepare_forward(backend, inputs, out)
        })?;
        end.of(call, &options)
    }
}

/// # Safety
/// As for [`fourtap_msda_forward`].
unsafe fn backward(
    inputs: *const MsdaInputs,
    grad_out: *const Tensor,
    gradients: *const MsdaGradients,
    options: *const Options,
    end: End,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let inputs = descriptor::read(inputs, "inputs")?;
        let gradients = descriptor::read(gradients, "gradients")?;
        let options = Options::read(options)?;
        let levels = levels::read(inputs.spatial_shapes, inputs.level_start_index)?;
        let inputs = inputs.views(&levels)?;
        let grad_out = view(grad_out, "grad_out")?;
        let gradients = gradients.views()?;
        let call = options.prepare(inputs.value.place(), |backend| {
            msda::prepare_backward(backend, inputs, grad_out, gradients)
        })?;
        end.of(call, &options)
    }
}

impl MsdaInputs {
    /// # Safety
    /// As for [`fourtap_msda_forward`].
    unsafe fn views<'a>(&self, levels: &'a OwnedLevels) -> Result<Inputs<'a>> {
        // SAFETY: as the caller promises.
        unsafe {
            Ok(Inputs {
                value: view(self.value, "value")?,
                levels: levels.table(),
                sampling_locations: view(self.sampling_locations, "sampling_locations")?,
                attention_weights: view(self.attention_weights, "attention_weights")?,
            })
        }
    }
}

impl MsdaGradients {
    /// # Safety
    /// As for [`fourtap_msda_forward`].
    unsafe fn views<'a>(&self) -> Result<Gradients<'a>> {
        // SAFETY: as the caller promises.
        unsafe {
            Ok(Gradients {
                value: optional_view_mut(self.value, "grad_value")?,
                sampling_locations: optional_view_mut(self.sampling_locations, "grad_locations")?,
                attention_weights: optional_view_mut(self.attention_weights, "grad_weights")?,
            })
        }
    }
}
