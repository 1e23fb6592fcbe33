//! Calls on a device give what calls on the CPU give, with a stream, device pointers and a workspace of the caller's.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, OwnedStream};
use fourtap_c::*;

use crate::tensors::*;

/// Two images, so many queries that gradients are sorted, which takes a workspace.
const VALUE: [i64; 4] = [2, 26, 4, 32];
const LEVELS: [i64; 4] = [4, 5, 2, 3];
const LOCATIONS: [i64; 6] = [2, 3000, 4, 2, 4, 2];
const WEIGHTS: [i64; 5] = [2, 3000, 4, 2, 4];
const OUT: [i64; 3] = [2, 3000, 128];

fn elements(shape: &[i64]) -> usize {
    shape.iter().product::<i64>() as usize
}

/// Multiples of 1/64 from -1 to 1: sums of them are the same in any order.
fn numbers(seed: usize, shape: &[i64]) -> Vec<f32> {
    let number = |index: usize| ((index * 37 + seed * 11) % 129) as f32 / 64.0 - 1.0;
    (0..elements(shape)).map(number).collect()
}

fn on_device(described: &Described, buffer: &Buffer) -> Tensor {
    Tensor {
        device: Device::Cuda as u32,
        data: buffer.as_ptr() as usize as *mut c_void,
        ..described.tensor
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn msda_backward_with_stream_and_workspace() {
    let context = Cuda::new(0).unwrap().context();
    let stream = OwnedStream::new(context, true).unwrap();
    let value = numbers(1, &VALUE);
    let locations: Vec<f32> = numbers(2, &LOCATIONS)
        .iter()
        .map(|x| 0.5 + 0.5 * x)
        .collect();
    let (weights, grad_out) = (numbers(3, &WEIGHTS), numbers(4, &OUT));
    let mut expected = [vec![f32::NAN; value.len()], vec![f32::NAN; weights.len()]];

    let host = [
        tensor(&value, &VALUE),
        tensor(&locations, &LOCATIONS),
        tensor(&weights, &WEIGHTS),
        tensor(&grad_out, &OUT),
    ];
    let levels = tensor(&LEVELS, &[2, 2]);
    let inputs = MsdaInputs {
        value: &host[0].tensor,
        spatial_shapes: &levels.tensor,
        sampling_locations: &host[1].tensor,
        attention_weights: &host[2].tensor,
        ..no_msda_inputs()
    };
    let [of_value, of_weights] = &mut expected;
    let gradients_on_host = [
        tensor_mut(of_value, &VALUE),
        tensor_mut(of_weights, &WEIGHTS),
    ];
    let gradients = MsdaGradients {
        struct_size: size_of::<MsdaGradients>() as u32,
        value: &gradients_on_host[0].tensor,
        sampling_locations: null(),
        attention_weights: &gradients_on_host[1].tensor,
    };
    // SAFETY: descriptors of slices that live until the end.
    unsafe {
        expect_ok(fourtap_msda_backward(
            &inputs,
            &host[3].tensor,
            &gradients,
            null(),
        ))
    };

    let copy = |numbers: &[f32]| Buffer::from_slice(context, numbers).unwrap();
    let buffers = [&value, &locations, &weights, &grad_out].map(|numbers| copy(numbers));
    let level_buffer = Buffer::from_slice(context, &LEVELS).unwrap();
    let empty = |shape: &[i64]| Buffer::alloc(context, elements(shape) * 4).unwrap();
    let results = [empty(&VALUE), empty(&WEIGHTS)];
    let tensors: Vec<_> = host
        .iter()
        .zip(&buffers)
        .map(|(host, buffer)| on_device(host, buffer))
        .collect();
    let level_tensor = on_device(&levels, &level_buffer);
    let result_tensors = [0, 1].map(|index| on_device(&gradients_on_host[index], &results[index]));
    let inputs = MsdaInputs {
        value: &tensors[0],
        // On the device as well as in host memory.
        spatial_shapes: &level_tensor,
        sampling_locations: &tensors[1],
        attention_weights: &tensors[2],
        ..inputs
    };
    let gradients = MsdaGradients {
        value: &result_tensors[0],
        attention_weights: &result_tensors[1],
        ..gradients
    };
    let mut options = Options {
        flags: DETERMINISTIC,
        stream: stream.stream().as_raw(),
        ..no_options()
    };
    let mut bytes = 0;
    // SAFETY: buffers of the device that live until the stream is done.
    unsafe {
        let status = fourtap_msda_backward_workspace_size(
            &inputs,
            &tensors[3],
            &gradients,
            &options,
            &mut bytes,
        );
        expect_ok(status);
    }
    assert!(bytes > 0);
    let workspace = Buffer::alloc(context, bytes).unwrap();
    for (address, size) in [
        (null_mut(), 0),
        (workspace.as_ptr() as usize as *mut c_void, bytes),
    ] {
        options.workspace = address;
        options.workspace_size = size;
        // SAFETY: as above.
        unsafe {
            expect_ok(fourtap_msda_backward(
                &inputs,
                &tensors[3],
                &gradients,
                &options,
            ))
        };
        stream.stream().synchronize().unwrap();
        for (result, expected) in results.iter().zip(&expected) {
            let found = result.to_vec::<f32>().unwrap();
            let far = found
                .iter()
                .zip(expected)
                .filter(|(a, b)| (**a - **b).abs() > 1e-3 * b.abs().max(1.0));
            assert_eq!(far.count(), 0);
        }
    }
    options.workspace_size = bytes - 1;
    // SAFETY: as above.
    let status = unsafe { fourtap_msda_backward(&inputs, &tensors[3], &gradients, &options) };
    assert_eq!(status, Status::InvalidArgument, "{}", message());
    assert!(
        message().starts_with("workspace_size: expected"),
        "{}",
        message()
    );
}

#[test]
#[ignore = "needs a CUDA device"]
fn forward_of_every_operator() {
    let context = Cuda::new(0).unwrap().context();
    let copy = |numbers: &[f32]| Buffer::from_slice(context, numbers).unwrap();
    // The examples of the documentation.
    let (pair, zeros, location, out) = (
        copy(&[10.0, 20.0]),
        copy(&[0.0, 0.0]),
        copy(&[0.5, 0.5]),
        copy(&[f32::NAN; 2]),
    );
    let ones = copy(&[1.0]);
    let offsets = copy(&[-0.5, 0.0, 0.5, 0.0]);
    let shape = |data: &Buffer, shape: &[i64]| {
        let described = tensor(&[] as &[f32], shape);
        (on_device(&described, data), described)
    };
    let value = shape(&pair, &[1, 2, 1, 1]);
    let levels = tensor(&[1i64, 2], &[1, 2]);
    let locations = shape(&location, &[1, 1, 1, 1, 1, 2]);
    let weights = shape(&ones, &[1, 1, 1, 1, 1]);
    let result = shape(&out, &[1, 1, 1]);
    let inputs = MsdaInputs {
        value: &value.0,
        spatial_shapes: &levels.tensor,
        sampling_locations: &locations.0,
        attention_weights: &weights.0,
        ..no_msda_inputs()
    };
    // SAFETY: buffers of the device that live until the end; the default stream is waited for by the copies.
    unsafe { expect_ok(fourtap_msda_forward(&inputs, &result.0, null())) };
    assert_eq!(out.to_vec::<f32>().unwrap()[0], 15.0);

    let references = shape(&location, &[1, 1, 1, 2]);
    let offsets = shape(&offsets, &[1, 1, 1, 2, 2]);
    let logits = shape(&zeros, &[1, 1, 1, 2]);
    let points = [2i64];
    let inputs = ProjectionsInputs {
        value: &value.0,
        spatial_shapes: &levels.tensor,
        reference_points: &references.0,
        sampling_offsets: &offsets.0,
        attention_logits: &logits.0,
        points_per_level: points.as_ptr(),
        points_per_level_count: 1,
        ..no_projections_inputs()
    };
    // SAFETY: as above.
    unsafe { expect_ok(fourtap_projections_forward(&inputs, &result.0, null())) };
    assert_eq!(out.to_vec::<f32>().unwrap()[0], 15.0);

    let query = shape(&zeros, &[1, 1, 2, 1]);
    let value = shape(&pair, &[1, 1, 2, 1]);
    let result = shape(&out, &[1, 1, 2, 1]);
    let inputs = DenseInputs {
        query: &query.0,
        key: &value.0,
        value: &value.0,
        is_causal: 1,
        ..no_dense_inputs()
    };
    let outputs = DenseOutputs {
        struct_size: size_of::<DenseOutputs>() as u32,
        out: &result.0,
        lse: null(),
    };
    // SAFETY: as above.
    unsafe { expect_ok(fourtap_dense_forward(&inputs, &outputs, null())) };
    assert_eq!(out.to_vec::<f32>().unwrap(), [10.0, 15.0]);
}
