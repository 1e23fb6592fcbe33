//! Where the samples of a call come from.

use super::geometry::{Block, Cells, Grid};
use super::plan::Slots;
use crate::dtype::Element;

/// A source of samples: given locations and weights, or samples that were placed from projections.
pub(super) trait Sampling<E: Element>: Sync {
    /// Where the samples of a block lie: worked out once per call.
    type Places: Sync;

    /// Where the first `count` samples of `slots` fall, and their attention weights. What it says of others means nothing,
    /// but can be computed with.
    ///
    /// # Safety
    /// `row` (image, query, head) is inside the problem, and so are the queries of those samples.
    unsafe fn find(
        &self,
        row: [usize; 3],
        slots: &Slots<E::Accumulator, Self::Places>,
        count: usize,
    ) -> (Cells<E::Accumulator>, Block<E::Accumulator>);

    /// How many pixels a sample moves by with its x and y.
    fn scale(grid: &Grid<E::Accumulator>) -> [Block<E::Accumulator>; 2];

    /// Prefetches `count` samples of a row, which may lie outside the problem.
    fn prefetch(&self, row: [usize; 3], slots: &Slots<E::Accumulator, Self::Places>, count: usize);
}
