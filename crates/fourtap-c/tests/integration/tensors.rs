//! Descriptors of tensors over slices, for tests.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr::{null, null_mut};

use fourtap::{bf16, f16};
use fourtap_c::{
    DType, DenseInputs, Device, MsdaInputs, Options, ProjectionsInputs, Status, Tensor,
    fourtap_last_error_message,
};

/// A Rust type of the elements of a tensor.
pub trait Element: Copy {
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty: $dtype:ident),*) => {
        $(impl Element for $type { const DTYPE: DType = DType::$dtype; })*
    };
}

elements!(f16: F16, bf16: BF16, f32: F32, f64: F64, bool: Bool, i32: I32, i64: I64);

/// A descriptor together with the sizes it points to.
pub struct Described<'a> {
    pub tensor: Tensor,
    _shape: Box<[i64]>,
    _strides: Option<Box<[i64]>>,
    memory: PhantomData<&'a mut [u8]>,
}

/// A row-major tensor to read.
pub fn tensor<'a, T: Element>(data: &'a [T], shape: &[i64]) -> Described<'a> {
    describe(data.as_ptr().cast_mut().cast(), T::DTYPE, shape, None)
}

/// A row-major tensor to write.
pub fn tensor_mut<'a, T: Element>(data: &'a mut [T], shape: &[i64]) -> Described<'a> {
    describe(data.as_mut_ptr().cast(), T::DTYPE, shape, None)
}

/// A tensor to write with these strides.
pub fn strided_mut<'a, T: Element>(
    data: &'a mut [T],
    shape: &[i64],
    strides: &[i64],
) -> Described<'a> {
    describe(data.as_mut_ptr().cast(), T::DTYPE, shape, Some(strides))
}

fn describe<'a>(
    data: *mut c_void,
    dtype: DType,
    shape: &[i64],
    strides: Option<&[i64]>,
) -> Described<'a> {
    let shape: Box<[i64]> = shape.into();
    let strides: Option<Box<[i64]>> = strides.map(Box::from);
    Described {
        tensor: Tensor {
            struct_size: size_of::<Tensor>() as u32,
            dtype: dtype as u32,
            device: Device::Cpu as u32,
            device_index: 0,
            rank: shape.len() as u32,
            data,
            shape: shape.as_ptr(),
            strides: strides.as_ref().map_or(null(), |strides| strides.as_ptr()),
        },
        _shape: shape,
        _strides: strides,
        memory: PhantomData,
    }
}

/// Without any tensor.
pub fn no_msda_inputs() -> MsdaInputs {
    MsdaInputs {
        struct_size: size_of::<MsdaInputs>() as u32,
        value: null(),
        spatial_shapes: null(),
        level_start_index: null(),
        sampling_locations: null(),
        attention_weights: null(),
    }
}

/// Without any tensor.
pub fn no_projections_inputs() -> ProjectionsInputs {
    ProjectionsInputs {
        struct_size: size_of::<ProjectionsInputs>() as u32,
        interpolation: 0,
        value: null(),
        spatial_shapes: null(),
        level_start_index: null(),
        reference_points: null(),
        sampling_offsets: null(),
        attention_logits: null(),
        value_mask: null(),
        points_per_level: null(),
        box_scale: null(),
        points_per_level_count: 0,
        box_scale_count: 0,
        mask_is_applied: 0,
    }
}

/// Without any tensor.
pub fn no_dense_inputs() -> DenseInputs {
    DenseInputs {
        struct_size: size_of::<DenseInputs>() as u32,
        alignment: 0,
        query: null(),
        key: null(),
        value: null(),
        attn_mask: null(),
        scale: null(),
        window_left: null(),
        window_right: null(),
        is_causal: 0,
    }
}

/// Those that NULL stands for.
pub fn no_options() -> Options {
    Options {
        struct_size: size_of::<Options>() as u32,
        flags: 0,
        stream: null_mut(),
        workspace: null_mut(),
        workspace_size: 0,
    }
}

/// The message of this thread.
pub fn message() -> String {
    // SAFETY: a string of this thread, which makes no call meanwhile.
    let message = unsafe { CStr::from_ptr(fourtap_last_error_message()) };
    message.to_str().unwrap().to_string()
}

/// Panics with the message if a call failed.
#[track_caller]
pub fn expect_ok(status: Status) {
    assert_eq!(status, Status::Ok, "{}", message());
}

/// Numbers that look random, from -1 to 1.
pub fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

pub fn signed<const RANK: usize>(shape: [usize; RANK]) -> [i64; RANK] {
    shape.map(|size| size as i64)
}
