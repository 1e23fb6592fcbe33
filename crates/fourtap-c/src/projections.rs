//! Multi-scale deformable attention from what a model's linear layers put out.

use fourtap::msda::projections::{
    self, BoxScale, Interpolation as LibraryInterpolation, Points, ProjectionGradients, Projections,
};

use crate::call::End;
use crate::descriptor::{self, Descriptor};
use crate::levels::{self, OwnedLevels};
use crate::options::Options;
use crate::status::{Error, Result, Status, answer};
use crate::tensor::{Tensor, describe, optional_view_mut, view, view_mut};

/// How a point reads the pixels around it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// Four neighbours, those outside the level counting as zero.
    Bilinear = 0,
    /// The nearest pixel, on the border if that is outside: the "discrete" method of RT-DETRv2.
    Nearest = 1,
}

/// The inputs of deformable attention from projections: reference points, offsets and logits instead of locations and weights. K is the
/// number of points of all levels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProjectionsInputs {
    /// sizeof(fourtap_projections_inputs).
    pub struct_size: u32,
    /// A fourtap_interpolation; 0 is bilinear.
    pub interpolation: u32,
    /// `[N, S, M, D]`, f16, bf16, f32 or f64.
    pub value: *const Tensor,
    /// `[L, 2]`, (height, width) of each level: i64 on the tensors' device, or i64 or i32 in host memory.
    pub spatial_shapes: *const Tensor,
    /// `[L]`, the first pixel of each level on axis S, beside spatial_shapes; NULL: each begins where the one before it ends.
    pub level_start_index: *const Tensor,
    /// `[N, Q, L, P, 2]`, points (x, y) from 0 to 1 over the image, or `[N, Q, L, P, 4]`, boxes (x, y, width, height). Axis P may be left out,
    /// and any axis may have size 1, which stands for every index. f32, or as value.
    pub reference_points: *const Tensor,
    /// `[N, Q, M, K, 2]`, level by level. f32, or as value.
    pub sampling_offsets: *const Tensor,
    /// `[N, Q, M, K]`, before the softmax over K. f32, or as value.
    pub attention_logits: *const Tensor,
    /// `[N, S]`, bool, true for pixels that count as zero; NULL: none.
    pub value_mask: *const Tensor,
    /// How many points each level has: one number for all levels, or L numbers.
    pub points_per_level: *const i64,
    /// The part of a box's width and height that an offset of 1 stands for: one number for all levels, or L numbers. NULL: 0.5 / P. Only for
    /// boxes.
    pub box_scale: *const f64,
    /// How many numbers are at points_per_level.
    pub points_per_level_count: u32,
    /// How many numbers are at box_scale.
    pub box_scale_count: u32,
    /// Not 0 if value holds zeros where value_mask is true, see fourtap_zero_pixels(): it is then read as it is, which is faster.
    pub mask_is_applied: u32,
}

/// What fourtap_projections_backward() writes. A gradient that is NULL is not computed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProjectionsGradients {
    /// sizeof(fourtap_projections_gradients).
    pub struct_size: u32,
    /// As value.
    pub value: *const Tensor,
    /// As reference_points; summed over whatever an axis of size 1 stands for.
    pub reference_points: *const Tensor,
    /// As sampling_offsets.
    pub sampling_offsets: *const Tensor,
    /// As attention_logits.
    pub attention_logits: *const Tensor,
}

// SAFETY: integers and pointers, all of which may be zero; there is one version.
unsafe impl Descriptor for ProjectionsInputs {
    const SIZES: &'static [usize] = &[size_of::<ProjectionsInputs>()];
}

// SAFETY: as above.
unsafe impl Descriptor for ProjectionsGradients {
    const SIZES: &'static [usize] = &[size_of::<ProjectionsGradients>()];
}

/// Deformable attention from projections: writes out, `[N, Q, M * D]` of the dtype of value.
///
/// # Safety
/// As for [`fourtap_msda_forward`](crate::fourtap_msda_forward).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourtap_projections_forward(
    inputs: *const ProjectionsInputs,
    out: *const Tensor,
    options: *const Options,
) -> Status {
    // SAFETY: as the caller promises.
    answer(|| unsafe { forward(inputs, out, options, End::Launch) })
}

/// Writes to *bytes how large a workspace fourtap_projections_forward() needs with the same arguments: 0 on the CPU.
///
/// # Safety
/// As for [`fourtap_msda_forward`](crate::fourtap_msda_forward).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourtap_projections_forward_workspace_size(
    inputs: *const ProjectionsInputs,
    out: *const Tensor,
    options: *const Options,
    bytes: *mut usize,
) -> Status {
    // SAFETY: as the caller promises.
    answer(|| unsafe { forward(inputs, out, options, End::WorkspaceSize(bytes)) })
}

/// The gradients of deformable attention from projections, given grad_out, `[N, Q, M * D]` of the dtype of value.
///
/// # Safety
/// As for [`fourtap_msda_forward`](crate::fourtap_msda_forward).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourtap_projections_backward(
    inputs: *const ProjectionsInputs,
    grad_out: *const Tensor,
    gradients: *const ProjectionsGradients,
    options: *const Options,
) -> Status {
    // SAFETY: as the caller promises.
    answer(|| unsafe { backward(inputs, grad_out, gradients, options, End::Launch) })
}

/// Writes to *bytes how large a workspace fourtap_projections_backward() needs with the same arguments: 0 on the CPU.
///
/// # Safety
/// As for [`fourtap_msda_forward`](crate::fourtap_msda_forward).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourtap_projections_backward_workspace_size(
    inputs: *const ProjectionsInputs,
    grad_out: *const Tensor,
    gradients: *const ProjectionsGradients,
    options: *const Options,
    bytes: *mut usize,
) -> Status {
    let end = End::WorkspaceSize(bytes);
    // SAFETY: as the caller promises.
    answer(|| unsafe { backward(inputs, grad_out, gradients, options, end) })
}

/// Writes zeros to the pixels of value, `[N, S, M, D]`, where mask, `[N, S]` of bool, is true. Needs no workspace.
///
/// # Safety
/// As for [`fourtap_msda_forward`](crate::fourtap_msda_forward).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fourtap_zero_pixels(
    value: *const Tensor,
    mask: *const Tensor,
    options: *const Options,
) -> Status {
    // SAFETY: as the caller promises.
    answer(|| unsafe {
        let options = Options::read(options)?;
        let value = view_mut(value, "value")?;
        let mask = describe(mask, "mask")?.bool_view()?;
        let call = options.prepare(value.place(), |backend| {
            projections::prepare_zero_pixels(backend, value, mask)
        })?;
        options.launch(call)
    })
}

/// # Safety
/// As for [`fourtap_projections_forward`].
unsafe fn forward(
    inputs: *const ProjectionsInputs,
    out: *const Tensor,
    options: *const Options,
    end: End,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let inputs = descriptor::read(inputs, "inputs")?;
        let options = Options::read(options)?;
        let levels = levels::read(inputs.spatial_shapes, inputs.level_start_index)?;
        let numbers = Numbers::read(&inputs)?;
        let inputs = inputs.views(&levels, &numbers)?;
        let out = view_mut(out, "out")?;
        let call = options.prepare(inputs.value.place(), |backend| {
            projections::prepare_forward(backend, inputs, out)
        })?;
        end.of(call, &options)
    }
}

/// # Safety
/// As for [`fourtap_projections_forward`].
unsafe fn backward(
    inputs: *const ProjectionsInputs,
    grad_out: *const Tensor,
    gradients: *const ProjectionsGradients,
    options: *const Options,
    end: End,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        let inputs = descriptor::read(inputs, "inputs")?;
        let gradients = descriptor::read(gradients, "gradients")?;
        let options = Options::read(options)?;
        let levels = levels::read(inputs.spatial_shapes, inputs.level_start_index)?;
        let numbers = Numbers::read(&inputs)?;
        let inputs = inputs.views(&levels, &numbers)?;
        let grad_out = view(grad_out, "grad_out")?;
        let gradients = gradients.views()?;
        let call = options.prepare(inputs.value.place(), |backend| {
            projections::prepare_backward(backend, inputs, grad_out, gradients)
        })?;
        end.of(call, &options)
    }
}

/// What is listed per level.
struct Numbers {
    points: Vec<usize>,
    box_scale: Vec<f64>,
}

impl Numbers {
    /// # Safety
    /// Both pointers are null or lead to as many numbers as the counts say.
    unsafe fn read(inputs: &ProjectionsInputs) -> Result<Numbers> {
        let (points, count) = (inputs.points_per_level, inputs.points_per_level_count);
        if points.is_null() || count == 0 {
            let found = if points.is_null() { "NULL" } else { "none" };
            return Err(Error::value(
                "points_per_level",
                "one number, or one per level",
                found,
            ));
        }
        let size = |index: usize| {
            // SAFETY: there are `count` numbers.
            let points = unsafe { points.add(index).read_unaligned() };
            usize::try_from(points).map_err(|_| {
                let argument = format!("points_per_level[{index}]");
                Error::value(argument, "0 or more", points)
            })
        };
        let (scales, scale_count) = (inputs.box_scale, inputs.box_scale_count);
        if scales.is_null() != (scale_count == 0) {
            let found = if scales.is_null() { "NULL" } else { "none" };
            let expected = "as many numbers as box_scale_count says, or NULL and 0";
            return Err(Error::value("box_scale", expected, found));
        }
        // SAFETY: there are `scale_count` numbers.
        let scale = |index: usize| unsafe { scales.add(index).read_unaligned() };
        Ok(Numbers {
            points: (0..count as usize).map(size).collect::<Result<_>>()?,
            box_scale: (0..scale_count as usize).map(scale).collect(),
        })
    }
}

impl ProjectionsInputs {
    /// # Safety
    /// As for [`fourtap_projections_forward`].
    unsafe fn views<'a>(
        &self,
        levels: &'a OwnedLevels,
        numbers: &'a Numbers,
    ) -> Result<Projections<'a>> {
        let interpolation = match self.interpolation {
            0 => LibraryInterpolation::Bilinear,
            1 => LibraryInterpolation::Nearest,
            other => {
                let expected = "a fourtap_interpolation";
                return Err(Error::value("interpolation", expected, other));
            }
        };
        // SAFETY: as the caller promises.
        unsafe {
            let mask = match self.value_mask.is_null() {
                true => None,
                false => Some(describe(self.value_mask, "value_mask")?.bool_view()?),
            };
            Ok(Projections {
                value: view(self.value, "value")?,
                levels: levels.table(),
                reference_points: view(self.reference_points, "reference_points")?,
                sampling_offsets: view(self.sampling_offsets, "sampling_offsets")?,
                attention_logits: view(self.attention_logits, "attention_logits")?,
                points: match numbers.points[..] {
                    [each] => Points::Each(each),
                    ref listed => Points::Listed(listed),
                },
                value_mask: mask,
                mask_is_applied: self.mask_is_applied != 0,
                interpolation,
                box_scale: match numbers.box_scale[..] {
                    [] => BoxScale::HalfBox,
                    [each] => BoxScale::Each(each),
                    ref listed => BoxScale::Listed(listed),
                },
            })
        }
    }
}

impl ProjectionsGradients {
    /// # Safety
    /// As for [`fourtap_projections_forward`].
    unsafe fn views<'a>(&self) -> Result<ProjectionGradients<'a>> {
        // SAFETY: as the caller promises.
        unsafe {
            Ok(ProjectionGradients {
                value: optional_view_mut(self.value, "grad_value")?,
                reference_points: optional_view_mut(self.reference_points, "grad_references")?,
                sampling_offsets: optional_view_mut(self.sampling_offsets, "grad_offsets")?,
                attention_logits: optional_view_mut(self.attention_logits, "grad_logits")?,
            })
        }
    }
}
