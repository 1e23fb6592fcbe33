//! As `bad_calls`: descriptors that are NULL, and numbers in them that cannot be.

use std::ptr::{null, null_mut};

use fourtap_c::*;

use crate::tensors::*;

#[test]
fn null_instead_of_descriptors() {
    let expect = |status: Status, words: &str| {
        assert_eq!(
            (status, message().as_str()),
            (Status::InvalidArgument, words)
        );
    };
    let inputs = no_msda_inputs();
    let projections = no_projections_inputs();
    // SAFETY: null pointers are allowed, and refused.
    unsafe {
        let null_inputs = "inputs: expected a pointer, found NULL";
        expect(fourtap_msda_forward(null(), null(), null()), null_inputs);
        expect(
            fourtap_msda_backward(null(), null(), null(), null()),
            null_inputs,
        );
        expect(
            fourtap_projections_forward(null(), null(), null()),
            null_inputs,
        );
        expect(
            fourtap_projections_backward(null(), null(), null(), null()),
            null_inputs,
        );
        expect(fourtap_dense_forward(null(), null(), null()), null_inputs);
        let null_gradients = "gradients: expected a pointer, found NULL";
        expect(
            fourtap_msda_backward(&inputs, null(), null(), null()),
            null_gradients,
        );
        expect(
            fourtap_projections_backward(&projections, null(), null(), null()),
            null_gradients,
        );
        let null_outputs = "outputs: expected a pointer, found NULL";
        expect(
            fourtap_dense_forward(&no_dense_inputs(), null(), null()),
            null_outputs,
        );
        let null_value = "value: expected a pointer, found NULL";
        expect(fourtap_zero_pixels(null(), null(), null()), null_value);
    }
}

#[test]
fn numbers_of_projections_and_dense_attention() {
    let expect = |status: Status, words: &str| {
        assert_eq!(
            (status, message().as_str()),
            (Status::InvalidArgument, words)
        );
    };
    let levels = tensor(&[1i64, 2], &[1, 2]);
    let (points, negative, scale) = ([1i64], [-1i64], [0.5]);
    let projections = ProjectionsInputs {
        spatial_shapes: &levels.tensor,
        points_per_level: points.as_ptr(),
        points_per_level_count: 1,
        ..no_projections_inputs()
    };
    let call = |spoiled: ProjectionsInputs, words: &str| {
        // SAFETY: descriptors of arrays, or null.
        expect(
            unsafe { fourtap_projections_forward(&spoiled, null(), null()) },
            words,
        );
    };
    let words = "interpolation: expected a fourtap_interpolation, found 2";
    call(
        ProjectionsInputs {
            interpolation: 2,
            ..projections
        },
        words,
    );
    let words = "points_per_level: expected one number, or one per level, found NULL";
    call(
        ProjectionsInputs {
            points_per_level: null(),
            ..projections
        },
        words,
    );
    let words = "points_per_level: expected one number, or one per level, found none";
    call(
        ProjectionsInputs {
            points_per_level_count: 0,
            ..projections
        },
        words,
    );
    let words = "points_per_level[0]: expected 0 or more, found -1";
    call(
        ProjectionsInputs {
            points_per_level: negative.as_ptr(),
            ..projections
        },
        words,
    );
    let words =
        "box_scale: expected as many numbers as box_scale_count says, or NULL and 0, found none";
    call(
        ProjectionsInputs {
            box_scale: scale.as_ptr(),
            ..projections
        },
        words,
    );

    let mut out = [0.0f32];
    let result = tensor_mut(&mut out, &[1, 1, 1, 1]);
    let query = tensor(&[1.0f32], &[1, 1, 1, 1]);
    let dense = DenseInputs {
        query: &query.tensor,
        key: &query.tensor,
        value: &query.tensor,
        ..no_dense_inputs()
    };
    let outputs = DenseOutputs {
        struct_size: size_of::<DenseOutputs>() as u32,
        out: &result.tensor,
        lse: null(),
    };
    let call = |spoiled: DenseInputs, words: &str| {
        // SAFETY: descriptors of arrays, or null.
        expect(
            unsafe { fourtap_dense_forward(&spoiled, &outputs, null()) },
            words,
        );
    };
    let words = "alignment: expected a fourtap_alignment, found 2";
    call(
        DenseInputs {
            alignment: 2,
            ..dense
        },
        words,
    );
    let words = "window_left: expected 0 or more, found -1";
    call(
        DenseInputs {
            window_left: negative.as_ptr(),
            ..dense
        },
        words,
    );
    let words = "attn_mask: expected element type bool, f16, bf16, f32 or f64, found i64";
    call(
        DenseInputs {
            attn_mask: &levels.tensor,
            ..dense
        },
        words,
    );
    let infinite = f64::INFINITY;
    call(
        DenseInputs {
            scale: &infinite,
            ..dense
        },
        "scale: expected a finite number of f32, found inf",
    );
    // SAFETY: descriptors of arrays.
    let status =
        unsafe { fourtap_dense_forward_workspace_size(&dense, &outputs, null(), null_mut()) };
    expect(status, "bytes: expected a pointer, found NULL");
}
