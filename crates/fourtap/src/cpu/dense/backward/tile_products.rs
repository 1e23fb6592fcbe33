//! Products of rows in tiles, where the processor has them: the two that make the weights and their gradients, which are exact
//! there. The sums of these are left to vectors: in tiles they would have to be rounded to 16 bits first.

use crate::cpu::dense::lanes::Lane;
use crate::dtype::Element;

/// Multiplies up to 64 rows of keys or values with up to 64 of queries or gradients, in sums of f32.
pub(in crate::cpu::dense) struct TileProducts<E: Element> {
    /// Size of either side, of rows of so many channels.
    pub room: fn(usize) -> usize,
    /// Packs keys or values. Whether tiles multiply them as f32 would.
    ///
    /// # Safety
    /// The rows are readable, there is room for them, and the processor has tiles; the same below.
    pub pack_left: PackSide<E>,
    /// Packs queries or gradients, likewise.
    pub pack_right: PackSide<E>,
    /// Writes the products, one [`Lane`] per row of the left, which has room for 64.
    ///
    /// # Safety
    /// Both sides were packed with so many channels.
    pub multiply: MultiplySides<E::Accumulator>,
}

type PackSide<E> = unsafe fn(TensorRows<E>, &mut [Lane<<E as Element>::Accumulator>]) -> bool;

type MultiplySides<R> = unsafe fn(Sides<'_, R>, &mut [Lane<R>]);

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
