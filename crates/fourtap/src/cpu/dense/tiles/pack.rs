//! Rows of tensors, of any strides, as tiles.

use std::arch::x86_64::*;
use std::ops::Range;

use super::layout::Line;
use super::split::{self, NUMBERS, Split, Survey};
use crate::cpu::amx::{PRODUCT, SIDE};

/// Rows of a tensor.
#[derive(Clone, Copy)]
pub struct Rows<E> {
    pub first: *const E,
    /// From a row to the next, and from a channel.
    pub strides: [isize; 2],
    pub channels: usize,
}

impl<E: Split> Rows<E> {
    pub fn row(&self, index: usize) -> *const E {
        self.first.wrapping_offset(index as isize * self.strides[0])
    }

    /// 32 channels of a row from `channel` on, 0 after the last.
    ///
    /// # Safety
    /// The row is readable, the processor has AVX-512 F and BW, and `channel` is one of the row's.
    #[inline(always)]
    unsafe fn load(&self, row: usize, channel: usize) -> __m512i {
        let count = NUMBERS.min(self.channels - channel);
        // SAFETY: as the caller promises.
        unsafe {
            let from = self.row(row).offset(channel as isize * self.strides[1]);
            split::load(from, self.strides[1], count)
        }
    }

    /// Those of `rows` that are not ordinary.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn extraordinary(&self, rows: Range<usize>) -> Vec<usize> {
        let [_, channel] = self.strides;
        // SAFETY: as the caller promises.
        let is_ordinary =
            |&row: &usize| unsafe { split::is_ordinary(self.row(row), channel, self.channels) };
        rows.filter(|row| !is_ordinary(row)).collect()
    }
}

/// Packs one query: a line for each 32 channels, 16 lines apart, and further parts `part` lines on. Whether it is
/// ordinary.
///
/// # Safety
/// The query is readable, its lines are writable, and the processor has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,f16c")]
pub unsafe fn pack_query<E: Split>(
    query: Rows<E>,
    negated: bool,
    to: *mut Line,
    part: usize,
) -> bool {
    // SAFETY: as the caller promises.
    unsafe {
        let sign = _mm512_set1_epi16(if negated { i16::MIN } else { 0 });
        let mut survey = Survey::new();
        for (step, channel) in (0..query.channels).step_by(NUMBERS).enumerate() {
            let numbers = query.load(0, channel);
            survey.add::<E>(numbers);
            let parts = E::split(_mm512_xor_si512(numbers, sign));
            for (index, numbers) in parts.into_iter().enumerate().take(E::PARTS) {
                let to = to.add(index * part + step * SIDE);
                _mm512_store_si512(to.cast(), numbers);
            }
        }
        survey.is_ordinary::<E>() || query.extraordinary(0..1).is_empty()
    }
}

/// Packs keys, the rows of which become columns: pairs of tiles of 16 keys and 32 channels, those of the same keys after each
/// other, further parts `part` lines on. `rows`, which begin and end at multiples of 16, are those of the step to pack; there are
/// `count` rows, and the rest is 0. The rows that are not ordinary.
///
/// # Safety
/// The rows up to `count` are readable, the lines of all of them writable, and the processor has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,f16c")]
pub unsafe fn pack_keys<E: Split>(
    keys: Rows<E>,
    rows: Range<usize>,
    count: usize,
    to: *mut Line,
    part: usize,
) -> Vec<usize> {
    // SAFETY: as the caller promises.
    unsafe {
        let mut survey = Survey::new();
        let steps = keys.channels.div_ceil(NUMBERS);
        for first in rows.clone().step_by(SIDE) {
            for step in 0..steps {
                let mut parts = [[_mm512_setzero_si512(); SIDE]; 2];
                for row in 0..SIDE.min(count.saturating_sub(first)) {
                    let numbers = keys.load(first + row, step * NUMBERS);
                    survey.add::<E>(numbers);
                    [parts[0][row], parts[1][row]] = E::split(numbers);
                }
                for (index, rows) in parts.into_iter().enumerate().take(E::PARTS) {
                    let tile = (first / PRODUCT * steps + step) * PRODUCT + first % PRODUCT;
                    let to = to.add(index * part + tile);
                    for (line, pairs) in transposed(rows).into_iter().enumerate() {
                        _mm512_store_si512(to.add(line).cast(), pairs);
                    }
                }
            }
        }
        match survey.is_ordinary::<E>() {
            true => Vec::new(),
            false => keys.extraordinary(rows.start..rows.end.min(count)),
        }
    }
}

/// Packs values, two rows of which become one of pairs: pairs of tiles of 32 keys and 16 channels, those of the same
/// channels after each other, with room for `steps` such pairs. Everything else is as for [`pack_keys`], but that `rows` begin and end at multiples of 32, and rows that
/// are not ordinary become 0.
///
/// # Safety
/// As for [`pack_keys`].
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,f16c")]
pub unsafe fn pack_values<E: Split>(
    values: Rows<E>,
    rows: Range<usize>,
    count: usize,
    to: *mut Line,
    [part, steps]: [usize; 2],
) -> Vec<usize> {
    // SAFETY: as the caller promises.
    unsafe {
        let mut survey = Survey::new();
        for first in rows.clone().step_by(2) {
            for channel in (0..values.channels).step_by(NUMBERS) {
                let mut pair = [_mm512_setzero_si512(); 2];
                for (row, numbers) in (first..count).zip(&mut pair) {
                    *numbers = values.load(row, channel);
                    survey.add::<E>(*numbers);
                }
                store_pair::<E>(pair, first, channel, to, [part, steps]);
            }
        }
        if survey.is_ordinary::<E>() {
            return Vec::new();
        }
        let extraordinary = values.extraordinary(rows.start..rows.end.min(count));
        for &row in &extraordinary {
            let first = row / 2 * 2;
            let is_ordinary = |row: usize| row < count && !extraordinary.contains(&row);
            for channel in (0..values.channels).step_by(NUMBERS) {
                let mut pair = [_mm512_setzero_si512(); 2];
                for index in 0..2 {
                    if is_ordinary(first + index) {
                        pair[index] = values.load(first + index, channel);
                    }
                }
                store_pair::<E>(pair, first, channel, to, [part, steps]);
            }
        }
        extraordinary
    }
}

/// Stores 32 channels of two values, the first of which is of key `row` of its step.
///
/// # Safety
/// As for [`pack_values`].
#[inline(always)]
unsafe fn store_pair<E: Split>(
    pair: [__m512i; 2],
    row: usize,
    channel: usize,
    to: *mut Line,
    [part, steps]: [usize; 2],
) {
    // SAFETY: as the caller promises.
    unsafe {
        let (first, second) = (E::split(pair[0]), E::split(pair[1]));
        for index in 0..E::PARTS {
            // Four channels of the first half, then four of the second, in each quarter, so that interleaving quarters
            // gives the first 16 channels and the last.
            let order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
            let a = _mm512_permutexvar_epi64(order, first[index]);
            let b = _mm512_permutexvar_epi64(order, second[index]);
            let tile = (channel / NUMBERS * steps + row / NUMBERS) * PRODUCT;
            let to = to.add(index * part + tile + row % NUMBERS / 2);
            _mm512_store_si512(to.cast(), _mm512_unpacklo_epi16(a, b));
            _mm512_store_si512(to.add(SIDE).cast(), _mm512_unpackhi_epi16(a, b));
        }
    }
}

/// 16 rows of 16 pairs, transposed.
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline(always)]
unsafe fn transposed(rows: [__m512i; SIDE]) -> [__m512i; SIDE] {
    // SAFETY: as the caller promises.
    unsafe {
        let mut twos = rows;
        for i in 0..SIDE / 2 {
            twos[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
            twos[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
        }
        // Quarter q of fours[4 i + j] is column 4 q + j of rows 4 i to 4 i + 3.
        let mut fours = rows;
        for i in 0..SIDE / 4 {
            let [a, b] = [twos[4 * i], twos[4 * i + 1]];
            let [c, d] = [twos[4 * i + 2], twos[4 * i + 3]];
            fours[4 * i] = _mm512_unpacklo_epi64(a, c);
            fours[4 * i + 1] = _mm512_unpackhi_epi64(a, c);
            fours[4 * i + 2] = _mm512_unpacklo_epi64(b, d);
            fours[4 * i + 3] = _mm512_unpackhi_epi64(b, d);
        }
        let mut columns = rows;
        for j in 0..4 {
            let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
            let even_ab = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
            let odd_ab = _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
            let even_cd = _mm512_shuffle_i32x4::<0b10_00_10_00>(c, d);
            let odd_cd = _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d);
            columns[j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(even_ab, even_cd);
            columns[4 + j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(odd_ab, odd_cd);
            columns[8 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(even_ab, even_cd);
            columns[12 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(odd_ab, odd_cd);
        }
        columns
    }
}
