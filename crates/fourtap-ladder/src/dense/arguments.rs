//! What rungs of dense attention are given. Mirrored in kernels/dense.cuh.

use std::f32::consts::LOG2_E;

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
