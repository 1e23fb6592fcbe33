//! The sizes of a tensor's axes.

use std::fmt;

/// The largest number of axes of any tensor in this crate.
pub const MAX_RANK: usize = 6;

/// The sizes of a tensor's axes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    rank: usize,
    sizes: [usize; MAX_RANK],
}

impl Shape {
    /// A shape with these sizes. Axes past [`MAX_RANK`] are counted, not kept: no operator accepts them.
    pub fn new(sizes: &[usize]) -> Self {
        let mut kept = [0; MAX_RANK];
        let n = sizes.len().min(MAX_RANK);
        kept[..n].copy_from_slice(&sizes[..n]);
        Shape {
            rank: sizes.len(),
            sizes: kept,
        }
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The sizes.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes[..self.rank.min(MAX_RANK)]
    }

    /// Exchanges two axes, both of which exist.
    pub(crate) fn swap(&mut self, first: usize, second: usize) {
        self.sizes.swap(first, second);
    }

    /// Product of the sizes, or `None` if it overflows or there are more than [`MAX_RANK`].
    pub fn elements(&self) -> Option<usize> {
        if self.rank > MAX_RANK {
            return None;
        }
        if self.sizes().contains(&0) {
            return Some(0);
        }
        self.sizes()
            .iter()
            .try_fold(1usize, |product, &size| product.checked_mul(size))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, size) in self.sizes().iter().enumerate() {
            write!(f, "{}{size}", if axis == 0 { "" } else { ", " })?;
        }
        f.write_str(if self.rank > MAX_RANK { ", ...]" } else { "]" })
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
