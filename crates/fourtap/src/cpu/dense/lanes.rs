//! How many rows and keys are worked on together.

/// Rows of a block.
pub const QUERIES: usize = 64;

/// Keys in a step: the weights of a step, [`KEYS`] times [`QUERIES`], stay in the nearest cache.
pub const KEYS: usize = 64;

/// A number for each row of a block, where vectors can be read without crossing a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Lane<R>(pub [R; QUERIES]);
