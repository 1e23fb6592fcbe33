//! Products in tiles, where the processor has them.

use std::ops::Range;

use crate::cpu::dense::lanes::Lane;
use crate::cpu::dense::product::MatrixMut;
use crate::dtype::Element;

/// The products of a block and a tile of keys in 16-bit tiles, with sums of f32.
pub(in crate::cpu::dense) struct TileProducts<E: Element> {
    /// Size of rows of so many channels, however they are packed.
    pub room: fn(usize) -> usize,
    /// Packs keys or values to be multiplied with queries or gradients. Whether tiles multiply them as f32 would.
    ///
    /// # Safety
    /// The rows are readable, there is room for them, and the processor has tiles; the same below.
    pub pack_left: Pack<E>,
    /// Packs queries or gradients for that.
    pub pack_right: Pack<E>,
    /// Packs queries or gradients to be summed by key.
    pub pack_pairs: Pack<E>,
    /// Packs keys to be summed by query.
    pub pack_transposed: Pack<E>,
    /// Writes the products of both sides, one [`Lane`] for each of 64 rows of the left.
    ///
    /// # Safety
    /// Both sides were packed with so many channels; the same below.
    pub multiply: Multiply<E::Accumulator>,
    /// Adds to 64 rows, one per key, as wide as whole pairs of tiles.
    pub add_by_key: Add<E::Accumulator>,
    /// Adds to as many rows as whole pairs of tiles have, one per channel.
    pub add_by_query: Add<E::Accumulator>,
}

/// Rows and columns are added in multiples of this.
pub(super) const ADDED_TOGETHER: usize = 32;

type Pack<E> = unsafe fn(TensorRows<E>, &mut [Lane<<E as Element>::Accumulator>]) -> bool;

type Multiply<R> = unsafe fn(Sides<'_, R>, &mut [Lane<R>]);

type Add<R> = unsafe fn(Summands<'_, R>, MatrixMut<'_, R>);

/// Rows of a tensor.
#[derive(Clone, Copy)]
pub(in crate::cpu::dense) struct TensorRows<E> {
    pub first: *const E,
    /// From a row to the next, and from a channel.
    pub strides: [isize; 2],
    /// At most 64.
    pub count: usize,
    pub channels: usize,
}

/// Both sides of a product.
#[derive(Clone, Copy)]
pub(in crate::cpu::dense) struct Sides<'a, R> {
    pub left: &'a [Lane<R>],
    pub right: &'a [Lane<R>],
    pub channels: usize,
}

/// Weights or gradients of logits, and what they are multiplied with.
#[derive(Clone)]
pub(in crate::cpu::dense) struct Summands<'a, R> {
    /// One per key of a tile, some of which count.
    pub numbers: &'a [Lane<R>],
    pub keys: Range<usize>,
    /// How many lanes are in use.
    pub lanes: usize,
    pub with: &'a [Lane<R>],
    pub channels: usize,
}
