//! A problem as the kernels see it.
//!
//! With a single query per head no mask is needed: the visible keys are a range, and only those are passed on. The heads
//! that share keys (GQA) can then be the rows of one tile, so that the keys are read once and not once per head.

use std::ops::Range;

use crate::dense::{Alignment, Mask, Sizes};

/// Sizes and bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoldedProblem {
    /// Sequences.
    pub batch: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Query heads per key head.
    pub group: usize,
    /// Whether rows are heads rather than queries.
    pub rows_are_heads: bool,
    /// Rows per head.
    pub rows: usize,
    /// The first key read.
    pub first_key: usize,
    /// Keys read.
    pub keys: usize,
    /// Row `i` sees the keys `j` with `i + first <= j < i + past`, counted from `first_key`; all keys if `None`.
    pub bounds: Option<(i32, i32)>,
}

/// Further than any key, and small enough that adding the number of a row does not overflow.
const FAR: i128 = 1 << 30;

impl FoldedProblem {
    /// Bounds that include every key.
    pub const ALL: (i32, i32) = (-FAR as i32, FAR as i32);

    /// For sizes with fewer than 2^30 queries and keys.
    pub fn new(sizes: &Sizes, mask: &Mask) -> Self {
        if sizes.queries == 1 {
            let Range { start, end } = mask.visible(0, 1, sizes.keys);
            return FoldedProblem {
                batch: sizes.batch,
                heads: sizes.key_heads,
                group: 1,
                rows_are_heads: true,
                rows: sizes.group(),
                first_key: start,
                keys: end.saturating_sub(start),
                bounds: None,
            };
        }
        FoldedProblem::unfolded(sizes, mask)
    }

    /// The same with all keys, whatever the queries see, and their heads as they are.
    pub fn unfolded(sizes: &Sizes, mask: &Mask) -> Self {
        let &Sizes {
            batch,
            query_heads,
            queries,
            keys,
            ..
        } = sizes;
        let seen = |query: usize| mask.visible(query, queries, keys);
        // Neither end of the visible range ever moves back.
        let all = queries == 0 || seen(0).end == keys && seen(queries - 1).start == 0;
        let shift = match mask.alignment {
            Alignment::TopLeft => 0,
            Alignment::BottomRight => keys as i128 - queries as i128,
        };
        let bound = |bound: i128| bound.clamp(-FAR, FAR) as i32;
        let first = mask.left.map_or(-FAR, |left| shift - left as i128);
        let past = mask.right.map_or(FAR, |right| shift + right as i128 + 1);
        FoldedProblem {
            batch,
            heads: query_heads,
            group: sizes.group(),
            rows_are_heads: false,
            rows: queries,
            first_key: 0,
            keys,
            bounds: (!all).then(|| (bound(first), bound(past))),
        }
    }

    /// The transposed problem, whose rows are keys.
    pub fn turned(&self) -> Self {
        FoldedProblem {
            rows: self.keys,
            keys: self.rows,
            bounds: self.bounds.map(|(first, past)| (1 - past, 1 - first)),
            ..*self
        }
    }

    /// Number of heads over all sequences.
    pub fn planes(&self) -> usize {
        self.batch * self.heads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(query_heads: usize, key_heads: usize, queries: usize, keys: usize) -> Sizes {
        Sizes {
            batch: 2,
            query_heads,
            key_heads,
            queries,
            keys,
            channels: 64,
            value_channels: 64,
        }
    }

    #[test]
    fn bounds_show_the_keys_that_the_mask_shows() {
        for alignment in [Alignment::TopLeft, Alignment::BottomRight] {
            for left in [None, Some(0), Some(3), Some(usize::MAX)] {
                for right in [None, Some(0), Some(2), Some(usize::MAX)] {
                    for (queries, keys) in [(2, 2), (5, 3), (3, 9), (4, 0), (7, 7)] {
                        let mask = Mask::window(alignment, left, right);
                        let folded = FoldedProblem::new(&sizes(4, 2, queries, keys), &mask);
                        let (first, past) = folded.bounds.unwrap_or((-1 << 30, 1 << 30));
                        for i in 0..queries {
                            let seen = |j: i32| (i as i32 + first..i as i32 + past).contains(&j);
                            let range = mask.visible(i, queries, keys);
                            for j in 0..keys {
                                assert_eq!(seen(j as i32), range.contains(&j), "{mask:?} {i} {j}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_key_is_seen_by_the_queries_that_see_it() {
        for (left, right) in [(None, Some(0)), (Some(3), Some(2)), (Some(0), None)] {
            for (queries, keys) in [(1, 4), (5, 3), (3, 9), (7, 7)] {
                let mask = Mask::window(Alignment::BottomRight, left, right);
                let folded = FoldedProblem::unfolded(&sizes(4, 2, queries, keys), &mask).turned();
                assert_eq!((folded.rows, folded.keys), (keys, queries));
                let (first, past) = folded.bounds.unwrap_or(FoldedProblem::ALL);
                for (i, j) in (0..queries).flat_map(|i| (0..keys).map(move |j| (i, j))) {
                    let seen = (j as i32 + first..j as i32 + past).contains(&(i as i32));
                    assert_eq!(seen, mask.visible(i, queries, keys).contains(&j), "{i} {j}");
                }
            }
        }
    }

    #[test]
    fn a_mask_that_hides_nothing_is_none() {
        let causal = Mask::causal(Alignment::BottomRight);
        assert_eq!(
            FoldedProblem::new(&sizes(1, 1, 2, 9), &Mask::default()).bounds,
            None
        );
        assert!(
            FoldedProblem::new(&sizes(1, 1, 2, 9), &causal)
                .bounds
                .is_some()
        );
        let wide = Mask::window(Alignment::TopLeft, Some(8), Some(8));
        assert_eq!(FoldedProblem::new(&sizes(1, 1, 9, 9), &wide).bounds, None);
    }

    #[test]
    fn heads_that_share_keys_are_rows_where_each_has_one_query() {
        let window = Mask::window(Alignment::TopLeft, Some(0), Some(4));
        let folded = FoldedProblem::new(&sizes(8, 2, 1, 100), &window);
        assert_eq!((folded.heads, folded.group, folded.rows), (2, 1, 4));
        assert_eq!((folded.first_key, folded.keys, folded.bounds), (0, 5, None));
        let nothing = Mask::window(Alignment::BottomRight, Some(3), Some(0));
        let folded = FoldedProblem::new(&sizes(8, 2, 1, 100), &nothing);
        assert_eq!((folded.first_key, folded.keys), (96, 4));
    }
}
