//! The products of backward in tiles. Keys are in rows and queries in columns, as its vectors want them, and weights and gradients of
//! logits are sums of two bf16 each: products are cheap here, and the result is nearly that of f32.

use std::arch::x86_64::*;
use std::ops::Range;

use super::layout::Line;
use super::pack::{Rows, pack_keys, pack_query, pack_values};
use super::split::{NUMBERS, Split, in_two, load};
use crate::cpu::amx::{PRODUCT, Product, SIDE, Step, Tiles};
use crate::cpu::dense::backward::{Sides, Summands, TensorRows, TileProducts};
use crate::cpu::dense::lanes::{KEYS, Lane, QUERIES};
use crate::cpu::dense::product::MatrixMut;
use crate::dtype::bf16;

/// Rows of either side.
const ROWS: usize = 64;

const _: () = assert!(ROWS == KEYS && ROWS == QUERIES);

/// The products of this type.
pub fn products<E: Split>() -> TileProducts<E> {
    TileProducts {
        room: |channels| E::PARTS * part(channels) * size_of::<Line>() / size_of::<Lane<f32>>(),
        pack_left: pack_left::<E>,
        pack_right: pack_right::<E>,
        pack_pairs: pack_pairs::<E>,
        pack_transposed: pack_transposed::<E>,
        multiply: multiply::<E>,
        add_by_key: add_by_key::<E>,
        add_by_query: add_by_query::<E>,
    }
}

/// Lines of one part of a side, however it is packed.
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

/// Pairs of rows, the right side of [`add_by_key`].
///
/// # Safety
/// As [`TileProducts`] says.
unsafe fn pack_pairs<E: Split>(rows: TensorRows<E>, to: &mut [Lane<f32>]) -> bool {
    let (count, to) = (rows.count, to.as_mut_ptr().cast::<Line>());
    let room = [part(rows.channels), STEPS];
    // SAFETY: as the caller promises.
    unsafe { pack_values(rows.from(0), 0..ROWS, count, to, room) }.is_empty()
}

/// Columns as rows, the left side of [`add_by_query`]: two lines for each channel.
///
/// # Safety
/// As [`TileProducts`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,f16c")]
unsafe fn pack_transposed<E: Split>(rows: TensorRows<E>, to: &mut [Lane<f32>]) -> bool {
    let part = part(rows.channels) * size_of::<Line>() / size_of::<bf16>();
    let to = to.as_mut_ptr().cast::<u16>();
    for row in 0..ROWS {
        for channel in (0..rows.channels).step_by(NUMBERS) {
            let count = NUMBERS.min(rows.channels - channel);
            // SAFETY: as the caller promises; rows after the last are 0, and each channel has room for all rows.
            unsafe {
                let numbers = match row < rows.count {
                    true => {
                        let first = rows.from(row).first;
                        let first = first.offset(channel as isize * rows.strides[1]);
                        load(first, rows.strides[1], count)
                    }
                    false => _mm512_setzero_si512(),
                };
                for (index, part_of) in E::split(numbers).into_iter().enumerate().take(E::PARTS) {
                    let mut numbers = [0u16; NUMBERS];
                    _mm512_storeu_si512(numbers.as_mut_ptr().cast(), part_of);
                    let to = to.add(index * part + channel * ROWS + row);
                    for (channel, &number) in numbers[..count].iter().enumerate() {
                        *to.add(channel * ROWS) = number;
                    }
                }
            }
        }
    }
    true
}

/// Groups of 32 rows.
const STEPS: usize = ROWS / NUMBERS;

/// Parts of a weight or the gradient of a logit.
const PARTS: usize = 2;

/// Lines of one part of them.
const SUMMANDS: usize = ROWS * STEPS;

/// One part after the other.
type PackedSummands = [Line; PARTS * SUMMANDS];

/// The summands of a key and 32 lanes from `lane` on, 0 where they do not count.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn summands_at(summands: &Summands<'_, f32>, key: usize, lane: usize) -> [__m512; 2] {
    let Range { start, end } = summands.keys;
    let lanes = match (start..end).contains(&key) {
        true => u64::MAX >> (QUERIES - summands.lanes.clamp(1, QUERIES)) >> lane,
        false => 0,
    };
    let from = summands.numbers[key].0[lane..].as_ptr();
    // SAFETY: 32 lanes from `lane` on lie in it.
    unsafe {
        [
            _mm512_maskz_loadu_ps(lanes as u16, from),
            _mm512_maskz_loadu_ps((lanes >> SIDE) as u16, from.add(SIDE)),
        ]
    }
}

/// The summands as a left side: two lines for each key.
///
/// # Safety
/// The processor has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn pack_by_key(summands: &Summands<'_, f32>, to: &mut PackedSummands) {
    for key in 0..ROWS {
        for step in 0..STEPS {
            // SAFETY: as the caller promises; a line is as long as a vector.
            unsafe {
                let [first, second] = summands_at(summands, key, step * NUMBERS);
                for (part, numbers) in in_two(first, second).into_iter().enumerate() {
                    let to = &mut to[part * SUMMANDS + key * STEPS + step];
                    _mm512_store_si512((&raw mut *to).cast(), numbers);
                }
            }
        }
    }
}

/// The summands as a right side: pairs of keys, in pairs of tiles of 32 keys and 16 lanes, those of the same lanes after each other.
///
/// # Safety
/// The processor has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn pack_by_query(summands: &Summands<'_, f32>, to: &mut PackedSummands) {
    for key in (0..ROWS).step_by(2) {
        for columns in 0..STEPS {
            // SAFETY: as the caller promises; a line is as long as a vector.
            unsafe {
                let lane = columns * NUMBERS;
                let even = summands_at(summands, key, lane);
                let odd = summands_at(summands, key + 1, lane);
                for tile in 0..2 {
                    // Sixteen lanes of the one key, then of the other; pairs of both are wanted.
                    let order = _mm512_set_epi16(
                        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                        21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0,
                    );
                    let line = (columns * STEPS + key / NUMBERS) * PRODUCT
                        + tile * SIDE
                        + key % NUMBERS / 2;
                    for (part, numbers) in in_two(even[tile], odd[tile]).into_iter().enumerate() {
                        let pairs = _mm512_permutexvar_epi16(order, numbers);
                        let to = &mut to[part * SUMMANDS + line];
                        _mm512_store_si512((&raw mut *to).cast(), pairs);
                    }
                }
            }
        }
    }
}

/// Which parts of both sides are multiplied. What is left out, the product of both second ones, is less than rounding a result of
/// 16 bits by far.
fn parts_of<E: Split>() -> impl Iterator<Item = [usize; 2]> {
    let with = |one: usize| (0..E::PARTS).map(move |other| [one, other]);
    (0..PARTS)
        .flat_map(with)
        .filter(|[one, other]| one + other < 2)
}

/// # Safety
/// As [`TileProducts`] says.
unsafe fn add_by_key<E: Split>(summands: Summands<'_, f32>, out: MatrixMut<'_, f32>) {
    let mut packed: PackedSummands = [Line::ZERO; PARTS * SUMMANDS];
    // SAFETY: the processor has tiles, and all that comes with them.
    unsafe { pack_by_key(&summands, &mut packed) };
    let (line, part) = (size_of::<Line>(), part(summands.channels));
    let steps: Vec<Step> = (0..STEPS)
        .flat_map(|step| parts_of::<E>().map(move |parts| (step, parts)))
        .map(|(step, [one, other])| Step {
            left: line * (one * SUMMANDS + step),
            right: line * (other * part + step * PRODUCT),
        })
        .collect();
    let tiles = Tiles::of_this_thread();
    for row in (0..ROWS).step_by(PRODUCT) {
        for (group, column) in (0..summands.channels).step_by(PRODUCT).enumerate() {
            let right = summands.with.as_ptr().cast::<Line>();
            let product = Product {
                left: packed[row * STEPS..].as_ptr().cast(),
                left_row: STEPS * line,
                left_tile: SIDE * STEPS * line,
                right: right.wrapping_add(group * STEPS * PRODUCT).cast(),
                out: out.numbers[row * out.stride + column..][..PRODUCT].as_mut_ptr(),
                out_row: out.stride * size_of::<f32>(),
                steps: &steps,
            };
            // SAFETY: both sides have the tiles of these steps, and `out` 32 rows and columns from the first on.
            unsafe { product.compute::<true>(&tiles) };
        }
    }
}

/// # Safety
/// As [`TileProducts`] says.
unsafe fn add_by_query<E: Split>(summands: Summands<'_, f32>, out: MatrixMut<'_, f32>) {
    let mut packed: PackedSummands = [Line::ZERO; PARTS * SUMMANDS];
    // SAFETY: the processor has tiles, and all that comes with them.
    unsafe { pack_by_query(&summands, &mut packed) };
    let (line, part) = (size_of::<Line>(), part(summands.channels));
    let steps: Vec<Step> = (0..STEPS)
        .flat_map(|step| parts_of::<E>().map(move |parts| (step, parts)))
        .map(|(step, [one, other])| Step {
            left: line * (other * part + step),
            right: line * (one * SUMMANDS + step * PRODUCT),
        })
        .collect();
    let tiles = Tiles::of_this_thread();
    for row in (0..summands.channels).step_by(PRODUCT) {
        for column in (0..summands.lanes).step_by(PRODUCT) {
            let left = summands.with.as_ptr().cast::<Line>();
            let product = Product {
                left: left.wrapping_add(row * STEPS).cast(),
                left_row: STEPS * line,
                left_tile: SIDE * STEPS * line,
                right: packed[column * STEPS..].as_ptr().cast(),
                out: out.numbers[row * out.stride + column..][..PRODUCT].as_mut_ptr(),
                out_row: out.stride * size_of::<f32>(),
                steps: &steps,
            };
            // SAFETY: both sides have the tiles of these steps, and `out` 32 rows and columns from the first on.
            unsafe { product.compute::<true>(&tiles) };
        }
    }
}
