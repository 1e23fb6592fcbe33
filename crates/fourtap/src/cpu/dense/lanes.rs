//! How many rows and keys are worked on together.

/// Rows of a block.
pub const QUERIES: usize = 64;

/// Keys in a step: the weights of a step, [`KEYS`] times [`QUERIES`], stay in the nearest cache.
pub const KEYS: usize = 64;

/// A number for each row of a block, where vectors can be read without crossing a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Lane<R>(pub [R; QUERIES]);

impl<R> Lane<R> {
    /// The numbers of all lanes, one after another.
    pub fn numbers(lanes: &[Lane<R>]) -> &[R] {
        // SAFETY: a `Lane` is an array of numbers, and of a size that is a multiple of its alignment.
        unsafe { std::slice::from_raw_parts(lanes.as_ptr().cast(), lanes.len() * QUERIES) }
    }

    /// The same, to write.
    pub fn numbers_mut(lanes: &mut [Lane<R>]) -> &mut [R] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(lanes.as_mut_ptr().cast(), lanes.len() * QUERIES) }
    }
}
