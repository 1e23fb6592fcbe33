//! Dense attention through the C ABI, bit for bit as the library gives it.

use std::ptr::null;

use fourtap::{Backend, BoolView, View, ViewMut, dense, f16};
use fourtap_c::*;

use crate::tensors::*;

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
