//! What rungs of dense attention are given. Mirrored in kernels/dense.cuh.

use std::f32::consts::LOG2_E;

use fourtap::DType;
use fourtap::cuda::driver::{Swizzle, TensorElement, TensorMapDesc};

use super::Shape;

/// The tensors and sizes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProblemArgument {
    query: u64,
    key: u64,
    value: u64,
    out: u64,
    scratch: u64,
    planes: u32,
    queries: u32,
    keys: u32,
    scale: f32,
}

impl ProblemArgument {
    /// Of these sizes; queries, keys and values, the result and scratch are at these addresses.
    pub fn new(shape: &Shape, inputs: [u64; 3], out: u64, scratch: u64) -> Self {
        let [query, key, value] = inputs;
        ProblemArgument {
            query,
            key,
            value,
            out,
            scratch,
            planes: shape.planes,
            queries: shape.queries,
            keys: shape.keys,
            // Logits are kept in powers of two.
            scale: LOG2_E / (shape.channels as f32).sqrt(),
        }
    }
}

/// Query, key or value, at this address, and the box to load of it: the widest that is exchanged as a whole, of so many rows.
pub fn rows_map(shape: &Shape, input: usize, rows: u32, address: u64) -> TensorMapDesc {
    let (columns, swizzle) = match shape.channels % 64 {
        0 => (64, Swizzle::Bytes128),
        _ => (32, Swizzle::Bytes64),
    };
    let rows_of_head = match input {
        0 => shape.queries,
        _ => shape.keys,
    };
    let row = u64::from(shape.row_bytes());
    TensorMapDesc {
        element: match shape.dtype {
            DType::BF16 => TensorElement::BF16,
            _ => TensorElement::F16,
        },
        address,
        dimensions: vec![
            shape.channels.into(),
            rows_of_head.into(),
            shape.planes.into(),
            1,
        ],
        // The last dimension, which the copy instruction wants, has one element and so any stride.
        strides: vec![row, u64::from(rows_of_head) * row, 16],
        box_sides: vec![columns, rows, 1, 1],
        element_strides: vec![1; 4],
        swizzle,
    }
}
