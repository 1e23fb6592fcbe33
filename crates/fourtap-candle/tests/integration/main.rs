//! The operators as users of candle call them: one program with a module per operator.

mod deformable;
mod dense;

use candle_core::{DType, Device, Result, Tensor};

/// Numbers between 0 and 1 without a pattern.
fn numbers(shape: &[usize], seed: u32, dtype: DType) -> Tensor {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 24)
    };
    let data: Vec<f64> = (0..shape.iter().product()).map(|_| next()).collect();
    let tensor = Tensor::from_vec(data, shape, &Device::Cpu).unwrap();
    tensor.to_dtype(dtype).unwrap()
}

/// The same elements, but the first two axes exchanged in memory, and others before and after them on the last.
fn strided(tensor: &Tensor) -> Tensor {
    let last = tensor.rank() - 1;
    let padding = tensor.narrow(last, 0, 1).unwrap();
    let padded = Tensor::cat(&[&padding, tensor, &padding], last).unwrap();
    let exchanged = padded.transpose(0, 1).unwrap().contiguous().unwrap();
    let size = tensor.dim(last).unwrap();
    let narrowed = exchanged.transpose(0, 1).unwrap().narrow(last, 1, size);
    let narrowed = narrowed.unwrap();
    assert!(!narrowed.is_contiguous() && narrowed.layout().start_offset() > 0);
    narrowed
}

/// The elements of a tensor, without loss.
fn elements(tensor: &Tensor) -> Vec<f64> {
    let tensor = tensor.to_dtype(DType::F64).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// What an error says.
fn message(result: Result<Tensor>) -> String {
    result.unwrap_err().to_string()
}

#[track_caller]
fn expect_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(
            error <= tolerance,
            "element {index}: {found} is not {expected}"
        );
    }
}
