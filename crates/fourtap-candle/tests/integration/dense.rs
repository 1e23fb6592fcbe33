//! Dense attention: against the same composed of candle's operators, also the gradients.

use candle_core::{D, DType, Result, Tensor, Var};
use fourtap_candle::{Alignment, Mask, Options, scaled_dot_product_attention};

use crate::{elements, expect_close, message, numbers, strided};

fn inputs(dtype: DType) -> [Tensor; 3] {
    [
        numbers(&[2, 3, 5, 8], 1, dtype),
        numbers(&[2, 3, 7, 8], 2, dtype),
        numbers(&[2, 3, 7, 6], 3, dtype),
    ]
}

/// `softmax(Q K^T / sqrt(D)) V`.
fn composed(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    let scale = 1.0 / (query.dim(D::Minus1)? as f64).sqrt();
    let weights = (query.contiguous()?.matmul(&key.t()?.contiguous()?)? * scale)?.exp()?;
    let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
    weights.matmul(&value.contiguous()?)
}

fn ours(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
    scaled_dot_product_attention(query, key, value, Options::default())
}

/// The output, and the gradients of a sum of it with different factors.
fn with_gradients(
    inputs: &[Tensor; 3],
    attention: fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) -> Vec<Vec<f64>> {
    let inputs = inputs
        .each_ref()
        .map(|tensor| Var::from_tensor(tensor).unwrap());
    let out = attention(&inputs[0], &inputs[1], &inputs[2]).unwrap();
    let factors = numbers(out.dims(), 9, out.dtype());
    let gradients = (&out * factors).unwrap().sum_all().unwrap();
    let gradients = gradients.backward().unwrap();
    let mut results = vec![elements(&out)];
    results.extend(
        inputs
            .iter()
            .map(|input| elements(gradients.get(input).unwrap())),
    );
    results
}

#[test]
fn output_and_gradients_agree_with_a_composition() {
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F64, 1e-13)] {
        let inputs = inputs(dtype);
        let expected = with_gradients(&inputs, composed);
        for (found, expected) in with_gradients(&inputs, ours).iter().zip(&expected) {
            expect_close(found, expected, tolerance);
        }
    }
}

#[test]
fn half_precision_gradients_agree_with_those_of_f64() {
    for (dtype, tolerance) in [(DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let inputs = inputs(dtype);
        let wide = inputs
            .each_ref()
            .map(|one| one.to_dtype(DType::F64).unwrap());
        let expected = with_gradients(&wide, composed);
        for (found, expected) in with_gradients(&inputs, ours).iter().zip(&expected) {
            expect_close(found, expected, tolerance);
        }
    }
}

#[test]
fn strided_tensors_give_the_bits_of_contiguous_ones() {
    let options = Options {
        scale: Some(0.5),
        mask: Mask::causal(Alignment::BottomRight),
    };
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let [query, key, value] = inputs(dtype);
        let out = scaled_dot_product_attention(&query, &key, &value, options).unwrap();
        let [query, key, value] = [query, key, value].each_ref().map(strided);
        let found = scaled_dot_product_attention(&query, &key, &value, options).unwrap();
        assert_eq!(elements(&found), elements(&out), "{dtype:?}");
    }
}

#[test]
fn one_tensor_as_query_key_and_value_gets_all_three_gradients() {
    let tokens = Var::from_tensor(&numbers(&[1, 2, 4, 8], 1, DType::F64)).unwrap();
    let gradient = |out: Result<Tensor>| {
        let gradients = out.unwrap().sqr().unwrap().sum_all().unwrap();
        elements(gradients.backward().unwrap().get(&tokens).unwrap())
    };
    let expected = gradient(composed(&tokens, &tokens, &tokens));
    expect_close(&gradient(ours(&tokens, &tokens, &tokens)), &expected, 1e-12);
}

#[test]
fn bad_calls_are_refused_in_the_words_of_the_library() {
    let [query, key, value] = inputs(DType::F32);
    let text = message(ours(&query, &key.to_dtype(DType::F16).unwrap(), &value));
    assert!(text.contains("key: expected element type f32"), "{text}");
    let text = message(ours(&query, &key, &value.narrow(2, 0, 3).unwrap()));
    assert!(text.contains("value: expected"), "{text}");
    let text = message(ours(&query.to_dtype(DType::U8).unwrap(), &key, &value));
    assert!(
        text.contains("query: expected element type f16, bf16, f32 or f64, found u8"),
        "{text}"
    );
}
