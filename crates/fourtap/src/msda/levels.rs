//! The pyramid of feature maps that `value` concatenates on axis S.

use crate::error::{Error, Result};

/// One feature map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Index, on axis S of `value`, of its first pixel.
    pub start: usize,
}

impl Level {
    /// Number of pixels.
    pub fn pixels(&self) -> usize {
        self.height * self.width
    }
}

/// `spatial_shapes` and `level_start_index`, checked to tile axis S: every pixel belongs to exactly one level.
///
/// ```
/// use fourtap::msda::Levels;
/// let levels = Levels::packed(&[(100, 167), (50, 84)])?;
/// assert_eq!(levels.pixels(), 100 * 167 + 50 * 84);
/// assert_eq!(levels[1].start, 16_700);
/// # Ok::<(), fourtap::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Levels {
    levels: Vec<Level>,
    pixels: usize,
}

/// The levels of a call, in host or device memory.
#[derive(Clone, Copy, Debug)]
pub enum LevelTable<'a> {
    /// In host memory, checked.
    Host(&'a Levels),
    /// In device memory, where only the kernel reads them.
    Cuda(CudaLevels),
}

impl<'a> From<&'a Levels> for LevelTable<'a> {
    fn from(levels: &'a Levels) -> Self {
        LevelTable::Host(levels)
    }
}

impl From<CudaLevels> for LevelTable<'_> {
    fn from(levels: CudaLevels) -> Self {
        LevelTable::Cuda(levels)
    }
}

impl LevelTable<'_> {
    /// Number of levels.
    pub fn len(&self) -> usize {
        match self {
            LevelTable::Host(levels) => levels.len(),
            LevelTable::Cuda(levels) => levels.count,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// `spatial_shapes` and `level_start_index` in the memory of a CUDA device, int64 as frameworks hold them.
///
/// Only the kernel reads them. They are never copied back, so a call neither waits for the device nor breaks graph
/// capture. They cannot be checked before the launch; a level that does not lie inside S is treated as empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaLevels {
    pub(crate) ordinal: usize,
    pub(crate) count: usize,
    pub(crate) shapes: u64,
    pub(crate) starts: Option<u64>,
}

impl CudaLevels {
    /// `count` levels on device `ordinal`: `[count, 2]` (height, width) at `shapes`, and `[count]` first pixels at
    /// `starts`; without `starts`, each level begins where the one before it ends.
    ///
    /// # Safety
    /// Both addresses point to that many aligned int64 that the device can read, and that are not freed or written until
    /// the work of the call that gets them is done.
    pub unsafe fn new(ordinal: usize, count: usize, shapes: u64, starts: Option<u64>) -> Self {
        CudaLevels {
            ordinal,
            count,
            shapes,
            starts,
        }
    }
}

impl Levels {
    /// Levels of these (height, width), concatenated without gaps.
    pub fn packed(shapes: &[(usize, usize)]) -> Result<Self> {
        Levels::build(shapes.iter().map(saturated), None)
    }

    /// Levels of these (height, width), level `l` beginning at pixel `starts[l]`.
    pub fn with_starts(shapes: &[(usize, usize)], starts: &[usize]) -> Result<Self> {
        let starts: Vec<_> = starts.iter().map(|&start| saturate(start)).collect();
        Levels::build(shapes.iter().map(saturated), Some(&starts))
    }

    /// Levels as frameworks hold them: `spatial_shapes` `[L, 2]` and, if given, `level_start_index` `[L]`.
    pub fn from_i64(spatial_shapes: &[i64], level_start_index: Option<&[i64]>) -> Result<Self> {
        let (pairs, rest) = spatial_shapes.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(Error::LevelPairs {
                found: spatial_shapes.len(),
            });
        }
        let shapes = pairs.iter().map(|&[height, width]| (height, width));
        Levels::build(shapes, level_start_index)
    }

    /// Pixels of all levels together: the size of axis S.
    pub fn pixels(&self) -> usize {
        self.pixels
    }

    fn build(
        shapes: impl ExactSizeIterator<Item = (i64, i64)>,
        starts: Option<&[i64]>,
    ) -> Result<Self> {
        let mut levels = Vec::with_capacity(shapes.len());
        let mut pixels = 0usize;
        for (level, (height, width)) in shapes.enumerate() {
            // An axis fits an i32 so that pixel coordinates do: beyond that, f32 coordinates miss pixels anyway.
            let (Ok(h), Ok(w)) = (i32::try_from(height), i32::try_from(width)) else {
                return Err(Error::LevelSize {
                    level,
                    height,
                    width,
                });
            };
            if h < 0 || w < 0 {
                return Err(Error::LevelSize {
                    level,
                    height,
                    width,
                });
            }
            let one = Level {
                height: h as usize,
                width: w as usize,
                start: pixels,
            };
            pixels = one
                .height
                .checked_mul(one.width)
                .and_then(|own| pixels.checked_add(own))
                .filter(|&sum| isize::try_from(sum).is_ok())
                .ok_or_else(|| Error::Overflow {
                    tensor: "spatial_shapes",
                    what: format!("a sum of height times width, at level {level},"),
                })?;
            levels.push(one);
        }
        if let Some(starts) = starts {
            place(&mut levels, starts, pixels)?;
        }
        Ok(Levels { levels, pixels })
    }
}

/// Moves each level to its start. With every level inside the sum of all and no two overlapping, they tile it.
fn place(levels: &mut [Level], starts: &[i64], pixels: usize) -> Result<()> {
    if starts.len() != levels.len() {
        return Err(Error::LevelStartCount {
            expected: levels.len(),
            found: starts.len(),
        });
    }
    for (level, (one, &found)) in levels.iter_mut().zip(starts).enumerate() {
        let (own, highest) = (one.pixels(), pixels - one.pixels());
        one.start = usize::try_from(found)
            .ok()
            .filter(|&start| start <= highest)
            .ok_or(Error::LevelStart {
                level,
                highest,
                pixels: own,
                found,
            })?;
    }
    let mut order: Vec<usize> = (0..levels.len())
        .filter(|&level| levels[level].pixels() > 0)
        .collect();
    order.sort_by_key(|&level| (levels[level].start, level));
    for pair in order.windows(2) {
        let (other, level) = (pair[0], pair[1]);
        let (expected, found) = (
            levels[other].start + levels[other].pixels(),
            levels[level].start,
        );
        if found < expected {
            return Err(Error::LevelOverlap {
                level,
                other,
                expected,
                found,
            });
        }
    }
    Ok(())
}

fn saturated(&(height, width): &(usize, usize)) -> (i64, i64) {
    (saturate(height), saturate(width))
}

fn saturate(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

impl std::ops::Deref for Levels {
    type Target = [Level];
    fn deref(&self) -> &[Level] {
        &self.levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_levels_in_any_order() {
        let levels = Levels::with_starts(&[(2, 3), (1, 1), (0, 9)], &[1, 0, 5]).unwrap();
        assert_eq!(
            (levels[0].start, levels[1].start, levels.pixels()),
            (1, 0, 7)
        );
    }

    #[test]
    fn refuses_levels_that_share_pixels() {
        let error = Levels::with_starts(&[(2, 3), (1, 2)], &[0, 5]).unwrap_err();
        assert_eq!(
            error,
            Error::LevelOverlap {
                level: 1,
                other: 0,
                expected: 6,
                found: 5
            }
        );
    }
}
