//! Deformable attention: against the library's own call, and gradients against finite differences.

use candle_core::{DType, Device, Tensor, Var};
use fourtap::msda::{self, Inputs};
use fourtap::{Backend, View, ViewMut};
use fourtap_candle::{Levels, ms_deform_attn};

use crate::{elements, expect_close, message, numbers, strided};

const SHAPES: [(usize, usize); 2] = [(4, 5), (2, 3)];

fn levels() -> Levels {
    Levels::packed(&SHAPES).unwrap()
}

/// `value`, `sampling_locations` and `attention_weights`.
fn inputs(dtype: DType, others: DType) -> [Tensor; 3] {
    let (n, s, m, d, q, l, p) = (2, levels().pixels(), 2, 3, 4, SHAPES.len(), 2);
    [
        numbers(&[n, s, m, d], 1, dtype),
        numbers(&[n, q, m, l, p, 2], 2, others),
        numbers(&[n, q, m, l, p], 3, others),
    ]
}

fn forward([value, locations, weights]: &[Tensor; 3]) -> Tensor {
    ms_deform_attn(value, &levels(), locations, weights).unwrap()
}

/// The output, and the gradients of a sum of it with different factors.
fn with_gradients(inputs: &[Tensor; 3]) -> Vec<Vec<f64>> {
    let inputs = inputs
        .each_ref()
        .map(|tensor| Var::from_tensor(tensor).unwrap());
    let [value, locations, weights] = inputs.each_ref().map(|variable| variable.as_tensor());
    let out = ms_deform_attn(value, &levels(), locations, weights).unwrap();
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
fn equals_the_call_of_the_library() {
    let [value, locations, weights] = inputs(DType::F32, DType::F32);
    let data = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let [of_value, of_locations, of_weights] = [&value, &locations, &weights].map(data);
    let levels = levels();
    let inputs = Inputs {
        value: View::new(&of_value, value.dims()),
        levels: (&levels).into(),
        sampling_locations: View::new(&of_locations, locations.dims()),
        attention_weights: View::new(&of_weights, weights.dims()),
    };
    let out = forward(&[value.clone(), locations.clone(), weights.clone()]);
    let mut expected = vec![f32::NAN; out.elem_count()];
    let expected_out = ViewMut::new(&mut expected, out.dims());
    msda::forward(&Backend::default(), inputs, expected_out).unwrap();
    assert_eq!(data(&out), expected);
}

#[test]
fn strided_tensors_give_the_bits_of_contiguous_ones() {
    let types = [DType::F16, DType::BF16, DType::F32, DType::F64];
    for (dtype, others) in types
        .into_iter()
        .flat_map(|dtype| [(dtype, dtype), (dtype, DType::F32)])
    {
        let contiguous = inputs(dtype, others);
        let out = forward(&contiguous);
        assert_eq!((out.dtype(), out.dims()), (dtype, &[2, 4, 6][..]));
        let found = forward(&contiguous.each_ref().map(strided));
        assert_eq!(elements(&found), elements(&out), "{dtype:?}");
    }
}

#[test]
fn gradients_of_strided_tensors_are_those_of_contiguous_ones() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let contiguous = inputs(dtype, dtype);
        let expected = with_gradients(&contiguous);
        // Memory in another order, seen through transposition: gradients flow back through that.
        let variables = contiguous.each_ref().map(|tensor| {
            let stored = tensor.transpose(0, 1).unwrap().contiguous().unwrap();
            Var::from_tensor(&stored).unwrap()
        });
        let transposed = variables.each_ref().map(|one| one.transpose(0, 1).unwrap());
        let out = forward(&transposed);
        let factors = numbers(out.dims(), 9, dtype);
        let gradients = (&out * factors).unwrap().sum_all().unwrap();
        let gradients = gradients.backward().unwrap();
        for (variable, expected) in variables.iter().zip(&expected[1..]) {
            let gradient = gradients.get(variable).unwrap().transpose(0, 1).unwrap();
            assert_eq!(elements(&gradient), *expected, "{dtype:?}");
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let inputs = inputs(DType::F64, DType::F64);
    let results = with_gradients(&inputs);
    let factors = elements(&numbers(&[2, 4, 6], 9, DType::F64));
    let loss = |inputs: &[Tensor; 3]| -> f64 {
        let out = elements(&forward(inputs));
        out.iter()
            .zip(&factors)
            .map(|(out, factor)| out * factor)
            .sum()
    };
    let step = 1e-6;
    for (which, gradient) in results[1..].iter().enumerate() {
        let data = elements(&inputs[which]);
        let shape = inputs[which].dims().to_vec();
        let differences: Vec<f64> = (0..data.len())
            .map(|index| {
                let moved = |by: f64| {
                    let mut data = data.clone();
                    data[index] += by;
                    let mut moved = inputs.clone();
                    moved[which] = Tensor::from_vec(data, shape.as_slice(), &Device::Cpu).unwrap();
                    loss(&moved)
                };
                (moved(step) - moved(-step)) / (2.0 * step)
            })
            .collect();
        expect_close(gradient, &differences, 1e-7);
    }
}

#[test]
fn only_tensors_that_gradients_flow_to_get_one() {
    let [value, locations, weights] = inputs(DType::F32, DType::F32);
    let weights = Var::from_tensor(&weights).unwrap();
    let out = ms_deform_attn(&value, &levels(), &locations, &weights).unwrap();
    let gradients = out.sum_all().unwrap().backward().unwrap();
    assert!(gradients.get(&weights).is_some());
    assert!(gradients.get(&value).is_none() && gradients.get(&locations).is_none());
}

#[test]
fn an_empty_batch_has_an_empty_result() {
    let [value, locations, weights] = inputs(DType::F32, DType::F32);
    let none = [value, locations, weights].map(|tensor| tensor.narrow(0, 0, 0).unwrap());
    assert_eq!(forward(&none).dims(), [0, 4, 6]);
}

#[test]
fn bad_calls_are_refused_in_the_words_of_the_library() {
    let [value, locations, weights] = inputs(DType::F32, DType::F32);
    let call = |value: &Tensor, locations: &Tensor, weights: &Tensor| {
        message(ms_deform_attn(value, &levels(), locations, weights))
    };
    let flat = value.flatten_all().unwrap();
    let text = call(&flat, &locations, &weights);
    assert!(text.contains("value: expected rank 4"), "{text}");
    let integers = weights.to_dtype(DType::I64).unwrap();
    let text = call(&value, &locations, &integers);
    let expected = "attention_weights: expected element type f16, bf16, f32 or f64, found i64";
    assert!(text.contains(expected), "{text}");
    let fewer = weights.narrow(1, 0, 2).unwrap();
    let text = call(&value, &locations, &fewer);
    assert!(text.contains("attention_weights: expected"), "{text}");
    let doubles = locations.to_dtype(DType::F64).unwrap();
    let text = call(&value, &doubles, &weights);
    assert!(text.contains("sampling_locations: expected"), "{text}");
}
