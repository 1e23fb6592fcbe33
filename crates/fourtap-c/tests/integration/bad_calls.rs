//! Calls that are wrong end in a status and a message that names what is wrong; nothing is written.

use std::ptr::{null, null_mut, without_provenance_mut};

use fourtap_c::*;

use crate::tensors::*;

const OK: [f32; 2] = [10.0, 20.0];
const LOCATION: [f32; 2] = [0.5, 0.5];
const WEIGHT: [f32; 1] = [1.0];
const LEVELS: [i64; 2] = [1, 2];
const STARTS: [i64; 1] = [0];

/// A call of deformable attention with everything that can be made wrong in it.
struct Call<'a> {
    inputs: MsdaInputs,
    value: &'a mut Tensor,
    levels: &'a mut Tensor,
    starts: &'a mut Tensor,
    out: &'a mut Tensor,
    options: Options,
}

/// Makes one call, wrong in the way of `spoil`: it must be refused with this status and message, and leave `out` alone.
#[track_caller]
fn refused(status: Status, words: &str, spoil: impl FnOnce(&mut Call)) {
    let mut out = [7.0f32];
    let mut value = tensor(&OK, &[1, 2, 1, 1]);
    let mut levels = tensor(&LEVELS, &[1, 2]);
    let mut starts = tensor(&STARTS, &[1]);
    let locations = tensor(&LOCATION, &[1, 1, 1, 1, 1, 2]);
    let weights = tensor(&WEIGHT, &[1, 1, 1, 1, 1]);
    let mut result = tensor_mut(&mut out, &[1, 1, 1]);
    let mut call = Call {
        inputs: MsdaInputs {
            value: &value.tensor,
            spatial_shapes: &levels.tensor,
            level_start_index: &starts.tensor,
            sampling_locations: &locations.tensor,
            attention_weights: &weights.tensor,
            ..no_msda_inputs()
        },
        value: &mut value.tensor,
        levels: &mut levels.tensor,
        starts: &mut starts.tensor,
        out: &mut result.tensor,
        options: no_options(),
    };
    spoil(&mut call);
    let (inputs, options) = (call.inputs, call.options);
    // SAFETY: descriptors of arrays that live until the end, or of nothing that is read before the call is refused.
    let found = unsafe { fourtap_msda_forward(&inputs, &result.tensor, &options) };
    assert_eq!((found, message().as_str()), (status, words));
    assert_eq!(out, [7.0]);
}

#[test]
fn descriptors() {
    use Status::InvalidArgument as Invalid;
    let size = size_of::<MsdaInputs>();
    refused(
        Invalid,
        &format!("inputs: expected struct_size {size}, found 8"),
        |call| {
            call.inputs.struct_size = 8;
        },
    );
    refused(
        Invalid,
        "value: expected struct_size 48, found 56",
        |call| {
            call.value.struct_size = 56;
        },
    );
    refused(
        Invalid,
        "options: expected struct_size 32, found 0",
        |call| {
            call.options.struct_size = 0;
        },
    );
    refused(Invalid, "value: expected a pointer, found NULL", |call| {
        call.inputs.value = null();
    });
    refused(
        Invalid,
        "spatial_shapes: expected a pointer, found NULL",
        |call| {
            call.inputs.spatial_shapes = null();
        },
    );
    refused(
        Invalid,
        "value.dtype: expected a fourtap_dtype, found 0",
        |call| {
            call.value.dtype = 0;
        },
    );
    refused(
        Invalid,
        "value.device: expected a fourtap_device, found 9",
        |call| {
            call.value.device = 9;
        },
    );
    refused(
        Invalid,
        "value.device_index: expected 0 or more, found -1",
        |call| {
            call.value.device = Device::Cuda as u32;
            call.value.device_index = -1;
        },
    );
    refused(
        Invalid,
        "options.flags: expected 0 or FOURTAP_DETERMINISTIC, found 6",
        |call| {
            call.options.flags = 6;
        },
    );
    refused(
        Invalid,
        "options.workspace: expected 9 bytes, found NULL",
        |call| {
            call.options.workspace_size = 9;
        },
    );
}

#[test]
fn shapes_and_strides() {
    use Status::InvalidArgument as Invalid;
    refused(
        Invalid,
        "value.rank: expected at most 6, found 4294967295",
        |call| {
            call.value.rank = u32::MAX;
        },
    );
    refused(
        Invalid,
        "value.shape: expected 4 sizes, found NULL",
        |call| {
            call.value.shape = null();
        },
    );
    let negative = [1, -2, 1, 1];
    let words = "value.shape[1]: expected a size from 0 to 9223372036854775807, found -2";
    refused(Invalid, words, |call| call.value.shape = negative.as_ptr());
    // So many channels that their bytes overflow.
    let (huge, apart) = ([1, 2, 1, i64::MAX], [0, i64::MAX, 0, 1]);
    let as_wide = [1, 1, i64::MAX];
    let words = "value: expected at most 9223372036854775807 bytes, found a product of \
                 [1, 2, 1, 9223372036854775807] that overflows";
    refused(Invalid, words, |call| {
        call.value.shape = huge.as_ptr();
        call.value.strides = apart.as_ptr();
        call.out.shape = as_wide.as_ptr();
    });
    let same = [0i64; 3];
    let wide = [1i64, 1, 2];
    refused(
        Invalid,
        "out: expected shape [1, 1, 1], found [1, 1, 2]",
        |call| {
            call.out.shape = wide.as_ptr();
            call.out.strides = same.as_ptr();
        },
    );
    refused(
        Invalid,
        "value: expected memory for shape [1, 2, 1, 1], found a null pointer",
        |call| {
            call.value.data = null_mut();
        },
    );
    refused(
        Invalid,
        "value: expected an address that is a multiple of 4, found 0x1001",
        |call| {
            call.value.data = without_provenance_mut(0x1001);
        },
    );
    refused(
        Invalid,
        "value: expected element type f16, bf16, f32 or f64, found i64",
        |call| {
            call.value.dtype = DType::I64 as u32;
        },
    );
    refused(
        Invalid,
        "out: expected memory of its own, found it sharing bytes with value",
        |call| {
            call.out.data = call.value.data;
        },
    );
}

#[test]
fn levels() {
    use Status::InvalidArgument as Invalid;
    refused(
        Invalid,
        "spatial_shapes: expected element type i64 or i32, found f64",
        |call| {
            call.levels.dtype = DType::F64 as u32;
        },
    );
    let triple = [1i64, 3];
    refused(
        Invalid,
        "spatial_shapes: expected shape [L, 2], found [1, 3]",
        |call| {
            call.levels.shape = triple.as_ptr();
        },
    );
    let two = [2i64];
    refused(
        Invalid,
        "level_start_index: expected shape [1], found [2]",
        |call| {
            call.starts.shape = two.as_ptr();
        },
    );
    refused(
        Invalid,
        "level_start_index: expected memory for shape [1], found a null pointer",
        |call| {
            call.starts.data = null_mut();
        },
    );
    refused(
        Invalid,
        "level_start_index: expected host memory, where spatial_shapes is, found memory of cuda:0",
        |call| {
            call.starts.device = Device::Cuda as u32;
        },
    );
    let apart = [2i64, 2];
    refused(
        Invalid,
        "spatial_shapes: expected row-major elements without gaps, found other strides",
        |call| {
            call.levels.strides = apart.as_ptr();
        },
    );
    let negative = [-1i64, 2];
    refused(
        Invalid,
        "spatial_shapes[0]: expected height and width from 0 to 2147483647, found (-1, 2)",
        |call| {
            call.levels.data = negative.as_ptr().cast_mut().cast();
        },
    );
    let late = [1i64];
    let words = "level_start_index[0]: expected a start from 0 to 0, so that 2 pixels fit, found 1";
    refused(Invalid, words, |call| {
        call.starts.data = late.as_ptr().cast_mut().cast()
    });
    let endless = [i64::MAX, 2];
    refused(
        Invalid,
        "spatial_shapes: expected at most 9223372036854775807 bytes, found shape [9223372036854775807, 2] that overflows",
        |call| {
            call.levels.shape = endless.as_ptr();
            call.inputs.level_start_index = null();
        },
    );
}

/// On a machine without CUDA, tensors there get the driver's status; invalid calls are reported first.
#[test]
fn devices() {
    let words =
        "sampling_locations: expected memory of cuda:9999 (where value is), found host memory";
    refused(Status::InvalidArgument, words, |call| {
        call.value.device = Device::Cuda as u32;
        call.value.device_index = 9999;
        call.value.data = without_provenance_mut(4096);
    });
    let data = without_provenance_mut(4096);
    let on_device = |shape: *const i64, rank| Tensor {
        struct_size: size_of::<Tensor>() as u32,
        dtype: DType::F32 as u32,
        device: Device::Cuda as u32,
        device_index: 9999,
        rank,
        data,
        shape,
        strides: null(),
    };
    let shape = [1i64, 1, 1, 1];
    let tensor = on_device(shape.as_ptr(), 4);
    let apart = Tensor {
        data: without_provenance_mut(8192),
        ..tensor
    };
    let inputs = DenseInputs {
        query: &tensor,
        key: &tensor,
        value: &tensor,
        ..no_dense_inputs()
    };
    let outputs = DenseOutputs {
        struct_size: size_of::<DenseOutputs>() as u32,
        out: &apart,
        lse: null(),
    };
    // SAFETY: there is no such device, so that nothing is read.
    let status = unsafe { fourtap_dense_forward(&inputs, &outputs, null()) };
    assert_eq!(status, Status::Cuda, "{}", message());
}
