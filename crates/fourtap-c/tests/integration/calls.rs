//! Calls through the C ABI give, bit for bit, what the library gives.

use std::ffi::CStr;
use std::ptr::null;

use fourtap::msda::projections::{self, BoxScale, Interpolation, Points, Projections};
use fourtap::msda::{self, Gradients, Inputs, Levels};
use fourtap::{Backend, BoolView, View, ViewMut, dense, f16};
use fourtap_c::*;

use crate::tensors::*;

/// Numbers that look random, from -1 to 1.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// From 0 to 1, and a little outside.
fn places(seed: u64, count: usize) -> Vec<f32> {
    let place = |number: f32| 0.5 + 0.6 * number;
    numbers(seed, count).into_iter().map(place).collect()
}

/// Two images of a 4x5 and a 2x3 level, seven queries of two heads of four channels, three points per level.
const N: usize = 2;
const S: usize = 26;
const M: usize = 2;
const D: usize = 4;
const Q: usize = 7;
const L: usize = 2;
const P: usize = 3;
const LEVELS: [i64; 4] = [4, 5, 2, 3];

fn signed<const RANK: usize>(shape: [usize; RANK]) -> [i64; RANK] {
    shape.map(|size| size as i64)
}

#[test]
fn versions_are_those_of_the_crate() {
    assert_eq!(fourtap_abi_version(), ABI_VERSION);
    // SAFETY: a constant.
    let version = unsafe { CStr::from_ptr(fourtap_version()) };
    assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
}

#[test]
fn msda_forward_and_backward() {
    let value = numbers(1, N * S * M * D);
    let locations = places(2, N * Q * M * L * P * 2);
    let weights = numbers(3, N * Q * M * L * P);
    let grad_out = numbers(4, N * Q * M * D);
    let levels = Levels::from_i64(&LEVELS, None).unwrap();
    let inputs = Inputs {
        value: View::new(&value, &[N, S, M, D]),
        levels: (&levels).into(),
        sampling_locations: View::new(&locations, &[N, Q, M, L, P, 2]),
        attention_weights: View::new(&weights, &[N, Q, M, L, P]),
    };
    let mut expected = vec![f32::NAN; N * Q * M * D];
    msda::forward(
        &Backend::Auto,
        inputs,
        ViewMut::new(&mut expected, &[N, Q, M * D]),
    )
    .unwrap();
    let mut expected_gradients = [
        vec![f32::NAN; value.len()],
        vec![f32::NAN; locations.len()],
        vec![f32::NAN; weights.len()],
    ];
    let [of_value, of_locations, of_weights] = &mut expected_gradients;
    let gradients = Gradients {
        value: Some(ViewMut::new(of_value, &[N, S, M, D])),
        sampling_locations: Some(ViewMut::new(of_locations, &[N, Q, M, L, P, 2])),
        attention_weights: Some(ViewMut::new(of_weights, &[N, Q, M, L, P])),
    };
    let of_out = View::new(&grad_out, &[N, Q, M * D]);
    msda::backward(&Backend::Auto, inputs, of_out, gradients).unwrap();

    let value_shape = signed([N, S, M, D]);
    let locations_shape = signed([N, Q, M, L, P, 2]);
    let weights_shape = signed([N, Q, M, L, P]);
    let out_shape = signed([N, Q, M * D]);
    let value_tensor = tensor(&value, &value_shape);
    let locations_tensor = tensor(&locations, &locations_shape);
    let weights_tensor = tensor(&weights, &weights_shape);
    let narrow_levels = LEVELS.map(|size| size as i32);
    let starts = [0i64, 20];
    let shapes = [tensor(&LEVELS, &[2, 2]), tensor(&narrow_levels, &[2, 2])];
    let starts = tensor(&starts, &[2]);
    for (shapes, starts) in [(&shapes[0], &raw const starts.tensor), (&shapes[1], null())] {
        let inputs = MsdaInputs {
            value: &value_tensor.tensor,
            spatial_shapes: &shapes.tensor,
            level_start_index: starts,
            sampling_locations: &locations_tensor.tensor,
            attention_weights: &weights_tensor.tensor,
            ..no_msda_inputs()
        };
        let mut out = vec![f32::NAN; expected.len()];
        let out_tensor = tensor_mut(&mut out, &out_shape);
        let mut bytes = usize::MAX;
        // SAFETY: descriptors of slices that live until the end.
        unsafe {
            let status = fourtap_msda_forward_workspace_size(
                &inputs,
                &out_tensor.tensor,
                null(),
                &mut bytes,
            );
            expect_ok(status);
            assert_eq!(bytes, 0);
            expect_ok(fourtap_msda_forward(
                &inputs,
                &out_tensor.tensor,
                &no_options(),
            ));
        }
        assert_eq!(out, expected);

        let mut found = [
            vec![f32::NAN; value.len()],
            vec![f32::NAN; locations.len()],
            vec![f32::NAN; weights.len()],
        ];
        let [of_value, of_locations, of_weights] = &mut found;
        let of_value = tensor_mut(of_value, &value_shape);
        let of_locations = tensor_mut(of_locations, &locations_shape);
        let of_weights = tensor_mut(of_weights, &weights_shape);
        let of_out = tensor(&grad_out, &out_shape);
        let gradients = MsdaGradients {
            struct_size: size_of::<MsdaGradients>() as u32,
            value: &of_value.tensor,
            sampling_locations: &of_locations.tensor,
            attention_weights: &of_weights.tensor,
        };
        // SAFETY: as above.
        unsafe {
            let status = fourtap_msda_backward_workspace_size(
                &inputs,
                &of_out.tensor,
                &gradients,
                null(),
                &mut bytes,
            );
            expect_ok(status);
            assert_eq!(bytes, 0);
            expect_ok(fourtap_msda_backward(
                &inputs,
                &of_out.tensor,
                &gradients,
                null(),
            ));
        }
        assert_eq!(found, expected_gradients);
    }
}

#[test]
fn projections_forward_and_backward() {
    // Three points on the first level, one on the second; boxes, one for all queries of an image.
    let (points, k) = ([3, 1], 4);
    let box_scale = [0.25, 0.5];
    let value = numbers(5, N * S * M * D);
    let references = places(6, N * L * 4);
    let offsets = numbers(7, N * Q * M * k * 2);
    let logits = numbers(8, N * Q * M * k);
    let grad_out = numbers(9, N * Q * M * D);
    let mask: Vec<bool> = (0..N * S).map(|pixel| pixel % 5 == 0).collect();
    let levels = Levels::from_i64(&LEVELS, None).unwrap();
    let inputs = Projections {
        value: View::new(&value, &[N, S, M, D]),
        levels: (&levels).into(),
        reference_points: View::new(&references, &[N, 1, L, 4]),
        sampling_offsets: View::new(&offsets, &[N, Q, M, k, 2]),
        attention_logits: View::new(&logits, &[N, Q, M, k]),
        points: Points::Listed(&points),
        value_mask: Some(BoolView::new(&mask, &[N, S])),
        mask_is_applied: false,
        interpolation: Interpolation::Bilinear,
        box_scale: BoxScale::Listed(&box_scale),
    };
    let mut expected = vec![f32::NAN; N * Q * M * D];
    projections::forward(
        &Backend::Auto,
        inputs,
        ViewMut::new(&mut expected, &[N, Q, M * D]),
    )
    .unwrap();
    let mut expected_references = vec![f32::NAN; references.len()];
    let mut expected_logits = vec![f32::NAN; logits.len()];
    let gradients = projections::ProjectionGradients {
        reference_points: Some(ViewMut::new(&mut expected_references, &[N, 1, L, 4])),
        attention_logits: Some(ViewMut::new(&mut expected_logits, &[N, Q, M, k])),
        ..Default::default()
    };
    let of_out = View::new(&grad_out, &[N, Q, M * D]);
    projections::backward(&Backend::Auto, inputs, of_out, gradients).unwrap();

    let value_tensor = tensor(&value, &signed([N, S, M, D]));
    let levels_tensor = tensor(&LEVELS, &[2, 2]);
    let references_tensor = tensor(&references, &signed([N, 1, L, 4]));
    let offsets_tensor = tensor(&offsets, &signed([N, Q, M, k, 2]));
    let logits_tensor = tensor(&logits, &signed([N, Q, M, k]));
    let mask_tensor = tensor(&mask, &signed([N, S]));
    let points = signed(points);
    let described = ProjectionsInputs {
        value: &value_tensor.tensor,
        spatial_shapes: &levels_tensor.tensor,
        reference_points: &references_tensor.tensor,
        sampling_offsets: &offsets_tensor.tensor,
        attention_logits: &logits_tensor.tensor,
        value_mask: &mask_tensor.tensor,
        points_per_level: points.as_ptr(),
        points_per_level_count: 2,
        box_scale: box_scale.as_ptr(),
        box_scale_count: 2,
        ..no_projections_inputs()
    };
    let out_shape = signed([N, Q, M * D]);
    let mut out = vec![f32::NAN; expected.len()];
    let out_tensor = tensor_mut(&mut out, &out_shape);
    let mut bytes = usize::MAX;
    // SAFETY: descriptors of slices that live until the end.
    unsafe {
        let out = &out_tensor.tensor;
        let status =
            fourtap_projections_forward_workspace_size(&described, out, null(), &mut bytes);
        expect_ok(status);
        expect_ok(fourtap_projections_forward(&described, out, null()));
    }
    assert_eq!((out, bytes), (expected.clone(), 0));

    let mut of_references = vec![f32::NAN; references.len()];
    let mut of_logits = vec![f32::NAN; logits.len()];
    let references_gradient = tensor_mut(&mut of_references, &signed([N, 1, L, 4]));
    let logits_gradient = tensor_mut(&mut of_logits, &signed([N, Q, M, k]));
    let gradients = ProjectionsGradients {
        struct_size: size_of::<ProjectionsGradients>() as u32,
        value: null(),
        reference_points: &references_gradient.tensor,
        sampling_offsets: null(),
        attention_logits: &logits_gradient.tensor,
    };
    let of_out = tensor(&grad_out, &out_shape);
    // SAFETY: as above.
    unsafe {
        let status = fourtap_projections_backward_workspace_size(
            &described,
            &of_out.tensor,
            &gradients,
            null(),
            &mut bytes,
        );
        expect_ok(status);
        expect_ok(fourtap_projections_backward(
            &described,
            &of_out.tensor,
            &gradients,
            null(),
        ));
    }
    assert_eq!(
        (of_references, of_logits, bytes),
        (expected_references, expected_logits, 0)
    );

    // With zeros written before, the mask need not be read again.
    let mut zeroed = value.clone();
    let zeroed_tensor = tensor_mut(&mut zeroed, &signed([N, S, M, D]));
    let described = ProjectionsInputs {
        value: &zeroed_tensor.tensor,
        mask_is_applied: 1,
        ..described
    };
    let mut out = vec![f32::NAN; expected.len()];
    let out_tensor = tensor_mut(&mut out, &out_shape);
    // SAFETY: as above.
    unsafe {
        expect_ok(fourtap_zero_pixels(
            &zeroed_tensor.tensor,
            &mask_tensor.tensor,
            null(),
        ));
        expect_ok(fourtap_projections_forward(
            &described,
            &out_tensor.tensor,
            null(),
        ));
    }
    assert_eq!(out, expected);
}

#[test]
fn dense_forward_with_masks_and_strides() {
    let (b, hq, hk, sq, sk, d) = (2, 4, 2, 5, 9, 8);
    let halves = |seed, count| -> Vec<f16> {
        let numbers = numbers(seed, count);
        numbers.into_iter().map(f16::from_f32).collect()
    };
    let (query, key) = (halves(10, b * hq * sq * d), halves(11, b * hk * sk * d));
    let value = halves(12, key.len());
    let seen: Vec<bool> = (0..sq * sk).map(|index| index % 4 != 1).collect();
    let inputs = dense::Inputs {
        query: View::new(&query, &[b, hq, sq, d]),
        key: View::new(&key, &[b, hk, sk, d]),
        value: View::new(&value, &[b, hk, sk, d]),
        attn_mask: Some(dense::AttnMask::Seen(BoolView::new(&seen, &[sq, sk]))),
    };
    let options = dense::Options {
        scale: Some(0.5),
        mask: dense::Mask::causal(dense::Alignment::TopLeft).with_window(Some(3), None),
    };
    let mut expected = vec![f16::NAN; query.len()];
    let mut expected_lse = vec![f32::NAN; b * hq * sq];
    let outputs = dense::Outputs {
        // Stored as [B, S, H, D].
        out: ViewMut::new(&mut expected, &[b, sq, hq, d]).transposed(1, 2),
        lse: Some(ViewMut::new(&mut expected_lse, &[b, hq, sq])),
    };
    dense::forward(&Backend::Auto, inputs, options, outputs).unwrap();

    let query_tensor = tensor(&query, &signed([b, hq, sq, d]));
    let key_tensor = tensor(&key, &signed([b, hk, sk, d]));
    let value_tensor = tensor(&value, &signed([b, hk, sk, d]));
    let mask_tensor = tensor(&seen, &signed([sq, sk]));
    let (scale, left) = (0.5, 3);
    let inputs = DenseInputs {
        alignment: Alignment::TopLeft as u32,
        query: &query_tensor.tensor,
        key: &key_tensor.tensor,
        value: &value_tensor.tensor,
        attn_mask: &mask_tensor.tensor,
        scale: &scale,
        window_left: &left,
        is_causal: 1,
        ..no_dense_inputs()
    };
    let mut out = vec![f16::NAN; query.len()];
    let mut lse = vec![f32::NAN; expected_lse.len()];
    let strides = signed([sq * hq * d, d, hq * d, 1]);
    let out_tensor = strided_mut(&mut out, &signed([b, hq, sq, d]), &strides);
    let lse_tensor = tensor_mut(&mut lse, &signed([b, hq, sq]));
    let outputs = DenseOutputs {
        struct_size: size_of::<DenseOutputs>() as u32,
        out: &out_tensor.tensor,
        lse: &lse_tensor.tensor,
    };
    let mut bytes = usize::MAX;
    // SAFETY: descriptors of slices that live until the end.
    unsafe {
        let status = fourtap_dense_forward_workspace_size(&inputs, &outputs, null(), &mut bytes);
        expect_ok(status);
        expect_ok(fourtap_dense_forward(&inputs, &outputs, null()));
    }
    assert_eq!((out, lse, bytes), (expected, expected_lse, 0));
}

#[test]
fn dense_backward_gives_the_gradients_asked_for() {
    let (b, hq, hk, sq, sk, d) = (2, 4, 2, 5, 9, 8);
    let (query, key) = (numbers(20, b * hq * sq * d), numbers(21, b * hk * sk * d));
    let (value, bias) = (numbers(22, key.len()), numbers(23, hq * sk));
    let (of_query, of_key, of_bias) = ([b, hq, sq, d], [b, hk, sk, d], [hq, 1, sk]);
    let grad_out = numbers(24, query.len());
    let inputs = dense::Inputs {
        query: View::new(&query, &of_query),
        key: View::new(&key, &of_key),
        value: View::new(&value, &of_key),
        attn_mask: Some(dense::AttnMask::Bias(View::new(&bias, &of_bias))),
    };
    let options = dense::Options::default();
    let (mut out, mut lse) = (vec![f32::NAN; query.len()], vec![f32::NAN; b * hq * sq]);
    let outputs = dense::Outputs {
        out: ViewMut::new(&mut out, &of_query),
        lse: Some(ViewMut::new(&mut lse, &[b, hq, sq])),
    };
    dense::forward(&Backend::Auto, inputs, options, outputs).unwrap();
    let lengths = [query.len(), value.len(), bias.len()];
    let mut expected = lengths.map(|length| vec![f32::NAN; length]);
    let [by_query, by_value, by_bias] = &mut expected;
    dense::backward(
        &Backend::Auto,
        inputs,
        options,
        dense::ForwardResults {
            out: View::new(&out, &of_query),
            lse: View::new(&lse, &[b, hq, sq]),
        },
        View::new(&grad_out, &of_query),
        dense::Gradients {
            query: Some(ViewMut::new(by_query, &of_query)),
            key: None,
            value: Some(ViewMut::new(by_value, &of_key)),
            bias: Some(ViewMut::new(by_bias, &of_bias)),
        },
    )
    .unwrap();

    let query_tensor = tensor(&query, &signed(of_query));
    let key_tensor = tensor(&key, &signed(of_key));
    let value_tensor = tensor(&value, &signed(of_key));
    let bias_tensor = tensor(&bias, &signed(of_bias));
    let inputs = DenseInputs {
        query: &query_tensor.tensor,
        key: &key_tensor.tensor,
        value: &value_tensor.tensor,
        attn_mask: &bias_tensor.tensor,
        ..no_dense_inputs()
    };
    let (out_tensor, lse_tensor) = (
        tensor(&out, &signed(of_query)),
        tensor(&lse, &signed([b, hq, sq])),
    );
    let results = DenseOutputs {
        struct_size: size_of::<DenseOutputs>() as u32,
        out: &out_tensor.tensor,
        lse: &lse_tensor.tensor,
    };
    let grad_out = tensor(&grad_out, &signed(of_query));
    let mut found = lengths.map(|length| vec![f32::NAN; length]);
    let [by_query, by_value, by_bias] = &mut found;
    let by_query = tensor_mut(by_query, &signed(of_query));
    let by_value = tensor_mut(by_value, &signed(of_key));
    let by_bias = tensor_mut(by_bias, &signed(of_bias));
    let gradients = DenseGradients {
        struct_size: size_of::<DenseGradients>() as u32,
        query: &by_query.tensor,
        key: null(),
        value: &by_value.tensor,
        bias: &by_bias.tensor,
    };
    let grad_out = &raw const grad_out.tensor;
    let mut bytes = usize::MAX;
    // SAFETY: descriptors of slices that live until the end.
    unsafe {
        expect_ok(fourtap_dense_backward_workspace_size(
            &inputs,
            &results,
            grad_out,
            &gradients,
            null(),
            &mut bytes,
        ));
        expect_ok(fourtap_dense_backward(
            &inputs,
            &results,
            grad_out,
            &gradients,
            null(),
        ));
        let without_lse = DenseOutputs {
            lse: null(),
            ..results
        };
        let status = fourtap_dense_backward(&inputs, &without_lse, grad_out, &gradients, null());
        assert_ne!(status, Status::Ok);
        assert!(message().starts_with("lse: expected"), "{}", message());
    }
    assert_eq!((found, bytes), (expected, 0));
}

/// Many threads at once, each with results and a message of its own.
#[test]
fn threads_do_not_disturb_each_other() {
    let thread = |number: usize| {
        for round in 0..50 {
            let pair = [10.0 + number as f32, 20.0 + round as f32];
            let (location, weight) = ([0.5f32, 0.5], [1.0f32]);
            let mut out = [f32::NAN];
            let value = tensor(&pair, &[1, 2, 1, 1]);
            let levels = tensor(&[1i64, 2], &[1, 2]);
            let location = tensor(&location, &[1, 1, 1, 1, 1, 2]);
            let weight = tensor(&weight, &[1, 1, 1, 1, 1]);
            let inputs = MsdaInputs {
                value: &value.tensor,
                spatial_shapes: &levels.tensor,
                sampling_locations: &location.tensor,
                attention_weights: &weight.tensor,
                ..no_msda_inputs()
            };
            let result = tensor_mut(&mut out, &[1, 1, 1]);
            let wrong = Tensor {
                rank: 7 + number as u32,
                ..result.tensor
            };
            // SAFETY: descriptors of arrays that live until the end; a tensor of too many axes is not read.
            unsafe {
                expect_ok(fourtap_msda_forward(&inputs, &result.tensor, null()));
                let status = fourtap_msda_forward(&inputs, &wrong, null());
                assert_eq!(status, Status::InvalidArgument);
            }
            assert_eq!(
                message(),
                format!("out.rank: expected at most 6, found {}", 7 + number)
            );
            assert_eq!(out, [(pair[0] + pair[1]) / 2.0]);
        }
    };
    std::thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || thread(number));
        }
    });
}
