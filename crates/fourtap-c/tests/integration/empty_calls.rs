//! Calls that have nothing to write succeed whatever their other sizes are. Memory for these would end the process.

use std::ptr::null;

use fourtap_c::*;

use crate::tensors::*;

/// Channels, points or keys: no memory has as many.
const HUGE: i64 = 1 << 50;

/// Without elements.
fn empty(shape: &[i64]) -> Described<'static> {
    assert!(shape.contains(&0), "{shape:?}");
    tensor::<f32>(&[], shape)
}

#[test]
fn deformable_attention_without_images_or_queries() {
    let levels = tensor(&[1i64, 2], &[1, 2]);
    for (images, queries, channels, points) in [(0, 3, HUGE, 4), (0, 3, 8, HUGE), (2, 0, 8, HUGE)] {
        let numbers = vec![1.0f32; (images * 2 * 8) as usize];
        let mut zeros = vec![f32::NAN; numbers.len()];
        let of_value = [images, 2, 1, channels];
        let value = tensor(&numbers, &of_value);
        let by_value = tensor_mut(&mut zeros, &of_value);
        let locations = empty(&[images, queries, 1, 1, points, 2]);
        let weights = empty(&[images, queries, 1, 1, points]);
        let out = empty(&[images, queries, channels]);
        let inputs = MsdaInputs {
            value: &value.tensor,
            spatial_shapes: &levels.tensor,
            sampling_locations: &locations.tensor,
            attention_weights: &weights.tensor,
            ..no_msda_inputs()
        };
        let gradients = MsdaGradients {
            struct_size: size_of::<MsdaGradients>() as u32,
            value: &by_value.tensor,
            sampling_locations: &locations.tensor,
            attention_weights: &weights.tensor,
        };
        // SAFETY: descriptors of slices that live until the end.
        unsafe {
            expect_ok(fourtap_msda_forward(&inputs, &out.tensor, null()));
            expect_ok(fourtap_msda_backward(
                &inputs,
                &out.tensor,
                &gradients,
                null(),
            ));
        }
        assert!(zeros.iter().all(|&number| number == 0.0));
    }
}

#[test]
fn projections_without_images() {
    let levels = tensor(&[1i64, 2], &[1, 2]);
    for (channels, points) in [(HUGE, 4), (8, HUGE)] {
        let value = empty(&[0, 2, 1, channels]);
        let references = empty(&[0, 3, 1, 2]);
        let offsets = empty(&[0, 3, 1, points, 2]);
        let logits = empty(&[0, 3, 1, points]);
        let out = empty(&[0, 3, channels]);
        let inputs = ProjectionsInputs {
            value: &value.tensor,
            spatial_shapes: &levels.tensor,
            reference_points: &references.tensor,
            sampling_offsets: &offsets.tensor,
            attention_logits: &logits.tensor,
            points_per_level: &points,
            points_per_level_count: 1,
            ..no_projections_inputs()
        };
        let gradients = ProjectionsGradients {
            struct_size: size_of::<ProjectionsGradients>() as u32,
            value: &value.tensor,
            reference_points: &references.tensor,
            sampling_offsets: &offsets.tensor,
            attention_logits: &logits.tensor,
        };
        // SAFETY: descriptors of what has no elements.
        unsafe {
            expect_ok(fourtap_projections_forward(&inputs, &out.tensor, null()));
            expect_ok(fourtap_projections_backward(
                &inputs,
                &out.tensor,
                &gradients,
                null(),
            ));
        }
    }
}

#[test]
fn dense_attention_without_sequences() {
    let bias = tensor(&[0.0f32], &[1, 1]);
    for (queries, keys, channels) in [
        (1 << 31, 1 << 57, 1),
        (1 << 57, 1 << 57, 1),
        (2, 2, 1 << 58),
    ] {
        let of_query = empty(&[0, 1, queries, channels]);
        let of_key = empty(&[0, 1, keys, channels]);
        let lse = empty(&[0, 1, queries]);
        let inputs = DenseInputs {
            query: &of_query.tensor,
            key: &of_key.tensor,
            value: &of_key.tensor,
            attn_mask: &bias.tensor,
            ..no_dense_inputs()
        };
        let outputs = DenseOutputs {
            struct_size: size_of::<DenseOutputs>() as u32,
            out: &of_query.tensor,
            lse: &lse.tensor,
        };
        let gradients = DenseGradients {
            struct_size: size_of::<DenseGradients>() as u32,
            query: &of_query.tensor,
            key: &of_key.tensor,
            value: &of_key.tensor,
            bias: null(),
        };
        // SAFETY: descriptors of what has no elements, and of a number.
        unsafe {
            expect_ok(fourtap_dense_forward(&inputs, &outputs, null()));
            let of_out = &raw const of_query.tensor;
            expect_ok(fourtap_dense_backward(
                &inputs,
                &outputs,
                of_out,
                &gradients,
                null(),
            ));
        }
    }
}
