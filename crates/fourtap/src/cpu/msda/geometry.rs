//! From sampling locations to pixels: a block of samples at a time, in loops compilers vectorise.

use crate::dtype::Real;

/// Samples computed together.
pub(super) const BLOCK: usize = 16;

/// One number per sample.
pub(super) type Block<T> = [T; BLOCK];

/// Sizes and starts of the levels of a block of samples.
#[derive(Clone)]
pub(super) struct Grid<R> {
    pub width: Block<i32>,
    pub height: Block<i32>,
    /// First pixel of the level.
    pub start: Block<i64>,
    /// Width and height as floating-point factors.
    pub scale: [Block<R>; 2],
}

impl<R: Real> Grid<R> {
    pub fn empty() -> Self {
        Grid {
            width: [0; BLOCK],
            height: [0; BLOCK],
            start: [0; BLOCK],
            scale: [[R::ZERO; BLOCK]; 2],
        }
    }
}

/// Where a block of samples falls.
pub(super) struct Cells<R> {
    /// Column and row of the upper left neighbour; -1 is just outside.
    pub corner: [Block<i32>; 2],
    /// Bit i: neighbour i (upper left, upper right, lower left, lower right) lies in the level. 0 if the sample
    /// takes no part.
    pub inside: Block<i32>,
    /// How far past the upper left neighbour, from 0 to 1.
    pub past: [Block<R>; 2],
}

/// From locations between 0 and 1 to places in pixels.
#[inline(always)]
pub(super) fn pixels<R: Real>(grid: &Grid<R>, x: &Block<R>, y: &Block<R>) -> [Block<R>; 2] {
    let mut pixels = [[R::ZERO; BLOCK]; 2];
    for i in 0..BLOCK {
        pixels[0][i] = x[i].fused(grid.scale[0][i], R::ZERO - R::HALF);
        pixels[1][i] = y[i].fused(grid.scale[1][i], R::ZERO - R::HALF);
    }
    pixels
}

/// Finds the cells of samples at these places in pixels.
///
/// The loop uses no 64-bit number: with one, compilers make vectors of half the width.
#[inline(always)]
pub(super) fn locate<R: Real>(grid: &Grid<R>, x: &Block<R>, y: &Block<R>) -> Cells<R> {
    let mut cells = Cells {
        corner: [[0; BLOCK]; 2],
        inside: [0; BLOCK],
        past: [[R::ZERO; BLOCK]; 2],
    };
    for i in 0..BLOCK {
        let (px, py) = (x[i], y[i]);
        // In floating point and before any conversion, so that NaN and infinity fail it.
        let takes_part = (px > R::ZERO - R::ONE)
            & (px < grid.scale[0][i])
            & (py > R::ZERO - R::ONE)
            & (py < grid.scale[1][i]);
        let px = if takes_part { px } else { R::ZERO };
        let py = if takes_part { py } else { R::ZERO };
        // SAFETY: both are above -1 and below a size that fits an i32; the largest f32 below 2^31 does too.
        let (x0, y0) = unsafe { (floor(px), floor(py)) };
        let (width, height) = (grid.width[i], grid.height[i]);
        // Unsigned, so that -1 is out of range as well.
        let left = (x0 as u32) < width as u32;
        let right = (x0.wrapping_add(1) as u32) < width as u32;
        let top = (y0 as u32) < height as u32;
        let bottom = (y0.wrapping_add(1) as u32) < height as u32;
        let inside = (top & left) as i32
            | ((top & right) as i32) << 1
            | ((bottom & left) as i32) << 2
            | ((bottom & right) as i32) << 3;
        cells.inside[i] = if takes_part { inside } else { 0 };
        cells.corner[0][i] = x0;
        cells.corner[1][i] = y0;
        cells.past[0][i] = px - R::from_i32(x0);
        cells.past[1][i] = py - R::from_i32(y0);
    }
    cells
}

/// Finds the pixels that samples at these numbers are cut off to, moved to the border of the level if they are outside.
/// Each is the only neighbour inside; NaN has none.
#[inline(always)]
pub(super) fn locate_nearest<R: Real>(grid: &Grid<R>, x: &Block<R>, y: &Block<R>) -> Cells<R> {
    let mut cells = Cells {
        corner: [[0; BLOCK]; 2],
        inside: [0; BLOCK],
        past: [[R::ZERO; BLOCK]; 2],
    };
    for i in 0..BLOCK {
        let (width, height) = (grid.width[i], grid.height[i]);
        // As all but NaN are.
        let is_number = (x[i] >= R::NEG_INFINITY) & (y[i] >= R::NEG_INFINITY);
        cells.inside[i] = (is_number & (width > 0) & (height > 0)) as i32;
        cells.corner[0][i] = cut_off(x[i], grid.scale[0][i], width);
        cells.corner[1][i] = cut_off(y[i], grid.scale[1][i], height);
    }
    cells
}

/// The integer part of a number, at least 0 and at most `size - 1`; `scale` is the size as a number.
#[inline(always)]
fn cut_off<R: Real>(number: R, scale: R, size: i32) -> i32 {
    let below = number < scale;
    let number = if below & (number > R::ZERO) {
        number
    } else {
        R::ZERO
    };
    // SAFETY: at least 0 and below a size that fits an i32; the largest f32 below 2^31 does too.
    let whole = unsafe { number.truncate() };
    let last = size - 1;
    // A size may be rounded up to its scale, so that a number below the scale is not below the size.
    if below & (whole < last) { whole } else { last }
}

/// Rounds down without `floor`, which is a library call on some processors.
///
/// # Safety
/// The result fits an i32.
#[inline(always)]
unsafe fn floor<R: Real>(number: R) -> i32 {
    // SAFETY: truncation is at most one above the floor.
    let truncated = unsafe { number.truncate() };
    truncated - (R::from_i32(truncated) > number) as i32
}

impl<R: Real> Cells<R> {
    /// The upper left neighbours on axis S. Only meaningful where some neighbour is inside.
    #[inline(always)]
    pub fn pixels(&self, grid: &Grid<R>) -> Block<i64> {
        let mut pixels = [0; BLOCK];
        for i in 0..BLOCK {
            let [x, y] = [self.corner[0][i] as i64, self.corner[1][i] as i64];
            pixels[i] = grid.start[i] + y * grid.width[i] as i64 + x;
        }
        pixels
    }

    /// Each neighbour's bilinear weight times the attention weight; 0 for a neighbour outside the level.
    #[inline(always)]
    pub fn shares(&self, weight: &Block<R>) -> [Block<R>; 4] {
        let mut shares = [[R::ZERO; BLOCK]; 4];
        for i in 0..BLOCK {
            let [x, y] = [self.past[0][i], self.past[1][i]];
            let (upper, lower) = ((R::ONE - y) * weight[i], y * weight[i]);
            let all = [
                upper * (R::ONE - x),
                upper * x,
                lower * (R::ONE - x),
                lower * x,
            ];
            for corner in 0..4 {
                let inside = self.inside[i] >> corner & 1 != 0;
                shares[corner][i] = if inside { all[corner] } else { R::ZERO };
            }
        }
        shares
    }
}
