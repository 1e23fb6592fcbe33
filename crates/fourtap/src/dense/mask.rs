//! Which keys a query sees.

use std::ops::Range;

/// Where the diagonal of the query-key matrix lies when there are not as many queries as keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Alignment {
    /// Query 0 is at key 0: `is_causal` of PyTorch's `scaled_dot_product_attention`.
    TopLeft,
    /// The last query is at the last key, as in decoding with a KV cache: FlashAttention.
    #[default]
    BottomRight,
}

/// A band around the diagonal: query `i` stands at key `c = i` ([`Alignment::TopLeft`]) or `c = i + Sk - Sq`
/// ([`Alignment::BottomRight`]) and sees the keys `j` with `c - left <= j <= c + right`. A side that is `None` has no
/// bound; the default has none on either side, so every query sees every key.
///
/// ```
/// use fourtap::dense::{Alignment, Mask};
/// let causal = Mask::causal(Alignment::TopLeft);
/// assert_eq!(causal.visible(1, 2, 5), 0..2); // query 1 of 2, 5 keys
/// assert_eq!(Mask::causal(Alignment::BottomRight).visible(1, 2, 5), 0..5);
/// assert_eq!(causal.with_window(Some(1), Some(7)).visible(3, 5, 5), 2..4);
/// assert_eq!(Mask::default().visible(0, 2, 5), 0..5);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mask {
    /// Where the diagonal lies.
    pub alignment: Alignment,
    /// Keys seen before the diagonal.
    pub left: Option<usize>,
    /// Keys seen after the diagonal; 0 is a causal mask.
    pub right: Option<usize>,
}

impl Mask {
    /// No key after the diagonal.
    pub fn causal(alignment: Alignment) -> Self {
        Mask {
            alignment,
            left: None,
            right: Some(0),
        }
    }

    /// At most `left` keys before and `right` keys after the diagonal. FlashAttention's windows are those aligned
    /// [`Alignment::BottomRight`], which is the default.
    pub fn window(alignment: Alignment, left: Option<usize>, right: Option<usize>) -> Self {
        Mask {
            alignment,
            left,
            right,
        }
    }

    /// The intersection of this mask and a window around the same diagonal.
    pub fn with_window(self, left: Option<usize>, right: Option<usize>) -> Self {
        let nearer = |a: Option<usize>, b: Option<usize>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (bound, None) | (None, bound) => bound,
        };
        Mask {
            left: nearer(self.left, left),
            right: nearer(self.right, right),
            ..self
        }
    }

    /// The keys, of `keys`, that query `query` of `queries` sees. Start and end never decrease from one query to the next.
    pub fn visible(&self, query: usize, queries: usize, keys: usize) -> Range<usize> {
        // Sums of three sizes, or of bounds of any size, fit an i128.
        let diagonal = match self.alignment {
            Alignment::TopLeft => query as i128,
            Alignment::BottomRight => query as i128 + keys as i128 - queries as i128,
        };
        let inside = |key: i128| key.clamp(0, keys as i128) as usize;
        let start = self.left.map_or(0, |left| inside(diagonal - left as i128));
        let end = self
            .right
            .map_or(keys, |right| inside(diagonal + right as i128 + 1));
        start..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_any_size_do_not_overflow() {
        let far = Mask::window(Alignment::BottomRight, Some(usize::MAX), Some(usize::MAX));
        assert_eq!(far.visible(0, usize::MAX, 7), 0..7);
        let none = Mask::window(Alignment::TopLeft, Some(0), Some(0));
        assert_eq!(none.visible(9, 10, 7), 7..7);
    }

    #[test]
    fn ranges_are_those_of_the_definition_and_move_one_way() {
        for alignment in [Alignment::TopLeft, Alignment::BottomRight] {
            for left in [None, Some(0), Some(1), Some(4)] {
                for right in [None, Some(0), Some(2)] {
                    for (queries, keys) in [(1, 1), (5, 3), (3, 5), (4, 0), (6, 6)] {
                        let mask = Mask::window(alignment, left, right);
                        let mut before = 0..0;
                        for i in 0..queries {
                            let shift = match alignment {
                                Alignment::TopLeft => 0,
                                Alignment::BottomRight => keys as isize - queries as isize,
                            };
                            let c = i as isize + shift;
                            let sees = |j: isize| {
                                left.is_none_or(|left| c - left as isize <= j)
                                    && right.is_none_or(|right| j <= c + right as isize)
                            };
                            let range = mask.visible(i, queries, keys);
                            for j in 0..keys {
                                assert_eq!(
                                    range.contains(&j),
                                    sees(j as isize),
                                    "{mask:?} {i} {j}"
                                );
                            }
                            assert!(before.start <= range.start && before.end <= range.end);
                            assert!(range.start <= range.end);
                            before = range;
                        }
                    }
                }
            }
        }
    }
}
