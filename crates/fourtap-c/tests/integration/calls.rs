//! Calls through the C ABI give, bit for bit, what the library gives.

use std::ffi::CStr;
use std::ptr::null;

use fourtap::msda::projections::{self, BoxScale, Interpolation, Points, Projections};
use fourtap::msda::{self, Gradients, Inputs, Levels};
use fourtap::{Backend, BoolView, View, ViewMut};
use fourtap_c::*;

use crate::tensors::*;

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
