//! The products of backward that tiles compute: keys in rows and queries in columns, as its vectors want them.

use super::layout::Line;
use super::pack::{Rows, pack_keys, pack_query};
use super::split::{NUMBERS, Split};
use crate::cpu::amx::{PRODUCT, Product, SIDE, Step, Tiles};
use crate::cpu::dense::backward::{Sides, TensorRows, TileProducts};
use crate::cpu::dense::lanes::{KEYS, Lane, QUERIES};

/// Rows of either side.
const ROWS: usize = 64;

const _: () = assert!(ROWS == KEYS && ROWS == QUERIES);

/// The products of this type.
pub fn products<E: Split>() -> TileProducts<E> {
    TileProducts {
        room: |channels| E::PARTS * part(channels) * size_of::<Line>() / size_of::<Lane<f32>>(),
        pack_left: pack_left::<E>,
        pack_right: pack_right::<E>,
        multiply: multiply::<E>,
    }
}

/// Lines of one part of a side.
fn part(channels: usize) -> usize {
    ROWS * channels.div_ceil(NUMBERS)
}

impl<E: Split> TensorRows<E> {
    fn from(self, row: usize) -> Rows<E> {
        Rows {
            first: self.first.wrapping_offset(row as isize * self.strides[0]),
            strides: self.strides,
            channels: self.channels,
        }
    }
}

/// # Safety
/// As [`TileProducts`] says.
unsafe fn pack_left<E: Split>(rows: TensorRows<E>, to: &mut [Lane<f32>]) -> bool {
    let to = to.as_mut_ptr().cast::<Line>();
    let steps = rows.channels.div_ceil(NUMBERS);
    let mut are_ordinary = true;
    for row in 0..rows.count {
        let line = row / SIDE * SIDE * steps + row % SIDE;
        // SAFETY: as the caller promises; the lines of a row lie in its part.
        are_ordinary &=
            unsafe { pack_query(rows.from(row), false, to.add(line), part(rows.channels)) };
    }
    are_ordinary
}

/// # Safety
/// As [`TileProducts`] says.
unsafe fn pack_right<E: Split>(rows: TensorRows<E>, to: &mut [Lane<f32>]) -> bool {
    let (count, to) = (rows.count, to.as_mut_ptr().cast::<Line>());
    // SAFETY: as the caller promises.
    unsafe { pack_keys(rows.from(0), 0..ROWS, count, to, part(rows.channels)) }.is_empty()
}

/// # Safety
/// As [`TileProducts`] says.
unsafe fn multiply<E: Split>(sides: Sides<'_, f32>, out: &mut [Lane<f32>]) {
    let (steps, part) = (sides.channels.div_ceil(NUMBERS), part(sides.channels));
    let line = size_of::<Line>();
    let mut products = Vec::with_capacity(E::PARTS * E::PARTS * steps);
    for step in 0..steps {
        for left in 0..E::PARTS {
            for right in 0..E::PARTS {
                products.push(Step {
                    left: line * (left * part + step * SIDE),
                    right: line * (right * part + step * PRODUCT),
                });
            }
        }
    }
    let tiles = Tiles::of_this_thread();
    assert!(out.len() == ROWS, "room for all rows");
    for row in (0..ROWS).step_by(PRODUCT) {
        for column in (0..QUERIES).step_by(PRODUCT) {
            let first = |side: &[Lane<f32>], row: usize| {
                let line = side.as_ptr().cast::<Line>().wrapping_add(row * steps);
                line.cast::<u8>()
            };
            let product = Product {
                left: first(sides.left, row),
                left_row: line,
                left_tile: SIDE * steps * line,
                right: first(sides.right, column),
                out: out[row].0[column..].as_mut_ptr(),
                out_row: size_of::<Lane<f32>>(),
                steps: &products,
            };
            // SAFETY: both sides have the tiles of these steps, and the results 32 columns from the first on.
            unsafe { product.compute::<false>(&tiles) };
        }
    }
}
