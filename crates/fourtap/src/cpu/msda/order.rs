//! The order queries are computed in: near ones together, so that what one has read is still in cache for the next.
//!
//! Outputs do not depend on it. Queries that are the pixels of an image in raster order read a window as wide as the
//! image between one row and the next, which no near cache holds; walked in small tiles they read a small square.

use std::ops::Range;

use rayon::prelude::*;

use super::geometry::Block;
use super::plan::{Plan, Slots};
use crate::dtype::Element;

/// Some (image, query) rows: those at `rows` of `order`, or `rows` themselves.
pub(super) struct Share<'a> {
    pub rows: Range<usize>,
    pub order: Option<&'a [u32]>,
}

impl Share<'_> {
    /// Each row, and the one after it.
    #[inline(always)]
    pub fn rows(&self) -> impl Iterator<Item = [usize; 2]> {
        let row = |place: usize| self.order.map_or(place, |order| order[place] as usize);
        let last = self.rows.end.saturating_sub(1);
        self.rows.clone().map(move |place| [row(place), row((place + 1).min(last))])
    }
}

/// Side of a tile, in pixels of the largest level.
const TILE: usize = 8;

/// The most tiles along an axis, which bounds the table of counts.
const MOST_TILES: usize = 256;

/// `value` of one image, in bytes, up to which any order does: it fits the near cache whole.
const CACHED_BYTES: usize = 1 << 20;

/// The (image, query) rows, those of near queries together; `None` where the order they have will do.
pub(super) fn near_queries_together<E: Element>(
    plan: &Plan<E>,
    slots: &[Slots<E::Accumulator>],
) -> Option<Vec<u32>> {
    let sizes = plan.sizes;
    let image_bytes = sizes.pixels * sizes.heads * sizes.channels * size_of::<E>();
    let rows = u32::try_from(sizes.images * sizes.queries).ok()?;
    if image_bytes <= CACHED_BYTES || sizes.queries < 2 || sizes.samples() == 0 {
        return None;
    }
    let level = plan.problem().levels().iter().max_by_key(|level| level.pixels())?;
    let tiles = [level.width, level.height].map(|size| size.div_ceil(TILE).clamp(1, MOST_TILES));
    let mut order = vec![0; rows as usize];
    order.par_chunks_mut(sizes.queries).enumerate().for_each(|(image, order)| {
        let keys: Vec<u16> = (0..sizes.queries)
            .into_par_iter()
            .with_min_len(1024)
            .map(|query| tile(plan, &slots[0], [image, query], tiles))
            .collect();
        // A counting sort: equal keys keep the order they had.
        let mut starts = vec![0u32; tiles[0] * tiles[1] + 1];
        for &key in &keys {
            starts[key as usize + 1] += 1;
        }
        for tile in 1..starts.len() {
            starts[tile] += starts[tile - 1];
        }
        for (query, &key) in keys.iter().enumerate() {
            let place = &mut starts[key as usize];
            order[*place as usize] = (image * sizes.queries + query) as u32;
            *place += 1;
        }
    });
    Some(order)
}

/// The tile in which the first head's first samples lie on average; NaN counts as 0.
fn tile<E: Element>(
    plan: &Plan<E>,
    slots: &Slots<E::Accumulator>,
    [image, query]: [usize; 2],
    tiles: [usize; 2],
) -> u16 {
    // SAFETY: the row lies in the problem, which has a head because it has samples.
    let [x, y, _] = unsafe { plan.read([image, query, 0], slots, slots.count) };
    let place = |locations: &Block<E::Accumulator>, tiles: usize| {
        let sum: f64 = locations[..slots.count].iter().map(|location| location.to_f64()).sum();
        ((sum / slots.count as f64 * tiles as f64) as usize).min(tiles - 1)
    };
    (place(&y, tiles[1]) * tiles[0] + place(&x, tiles[0])) as u16
}
