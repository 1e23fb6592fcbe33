//! Rows of 128 bytes, as a head of 32 channels in f32 has them, and adding them up.

use fourtap::cpu::Simd;

use super::allocated;
use super::vector::{self, Loop, Vector};
use crate::error::Result;

const CHANNELS: usize = 32;

/// Vectors added up side by side, so that none waits for the one before.
const SUMS: usize = 8;

/// Rows whose places are worked out together.
const TOGETHER: usize = 16;

/// Sums of more rows than this might be rounded.
const MOST_ROWS: u64 = 1 << 20;

/// Bytes of a row.
pub const ROW_BYTES: usize = size_of::<Row>();

/// One row, on cache lines of its own.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Row([f32; CHANNELS]);

/// In which order rows are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after another.
    InTurn,
    /// Each once, but in no order that a processor could guess; then all over again.
    Random,
}

/// Rows that one thread adds up again and again.
pub struct Rows {
    rows: Vec<Row>,
    order: Order,
    /// Added up so far.
    count: u64,
    sums: [u64; CHANNELS],
}

impl Rows {
    /// As many as fit so many bytes, down to a power of two.
    pub fn new(probe: &'static str, bytes: u64, order: Order) -> Result<Self> {
        let mut rows = allocated(probe, Row([0.0; CHANNELS]), rows_of(bytes))?;
        for (index, row) in rows.iter_mut().enumerate() {
            for channel in 0..CHANNELS {
                row.0[channel] = number(index, channel) as f32;
            }
        }
        Ok(Rows {
            rows,
            order,
            count: 0,
            sums: [0; CHANNELS],
        })
    }

    /// Adds up the next so many: a multiple of 16.
    pub fn add_up(&mut self, simd: Simd, count: u64) {
        let end = self.count + count;
        while self.count < end {
            let count = (end - self.count).min(MOST_ROWS);
            let (rows, first) = (self.rows.as_slice(), self.count);
            let sums = match self.order {
                Order::InTurn => vector::run(simd, Add::<false> { rows, first, count }),
                Order::Random => vector::run(simd, Add::<true> { rows, first, count }),
            };
            for channel in 0..CHANNELS {
                self.sums[channel] += sums[channel] as u64;
            }
            self.count += count;
        }
    }

    /// Until each was added up as often as any other.
    pub fn end_turn(&mut self, simd: Simd) {
        let end = self.count.next_multiple_of(self.rows.len() as u64);
        self.add_up(simd, end - self.count);
    }

    /// After whole turns, the first channel with another sum than it must have: expected and found.
    pub fn wrong(&self) -> Option<(String, String)> {
        let turns = self.count / self.rows.len() as u64;
        let mut once = [0u64; CHANNELS];
        for row in 0..self.rows.len() {
            for channel in 0..CHANNELS {
                once[channel] += number(row, channel);
            }
        }
        let channel = (0..CHANNELS).find(|&channel| self.sums[channel] != turns * once[channel])?;
        let expected = format!("the sum {} of channel {channel}", turns * once[channel]);
        Some((expected, self.sums[channel].to_string()))
    }
}

/// How many rows fit so many bytes: a power of two, for [`place`].
pub fn rows_of(bytes: u64) -> usize {
    let rows = (bytes as usize / ROW_BYTES).max(TOGETHER);
    1 << rows.ilog2()
}

/// Small, so that sums in f32 are exact in whatever order.
fn number(row: usize, channel: usize) -> u64 {
    ((row as u64).wrapping_mul(0x9e37_79b9) >> (channel % 16)) & 7
}

/// Adds up `count` rows, those that come `first` and later.
struct Add<'a, const RANDOM: bool> {
    rows: &'a [Row],
    first: u64,
    count: u64,
}

impl<const RANDOM: bool> Loop for Add<'_, RANDOM> {
    type Output = [f32; CHANNELS];

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> [f32; CHANNELS] {
        let mask = self.rows.len().wrapping_sub(1);
        let shift = self.rows.len().trailing_zeros() / 2;
        // Turns repeat after any power of two, so that it does not matter that these do after 2^32.
        let mut next = self.first as u32;
        let vectors = CHANNELS / V::LANES;
        let mut total = [0f32; CHANNELS];
        // SAFETY: the caller vouches for the instructions. Loads are within a row, stores within `lanes`.
        unsafe {
            let mut sums = [V::splat(0.0); SUMS];
            for _ in 0..self.count as usize / TOGETHER {
                let mut places = [0u32; TOGETHER];
                for index in 0..TOGETHER {
                    let turn = next.wrapping_add(index as u32);
                    places[index] = match RANDOM {
                        true => place(turn, mask as u32, shift),
                        false => turn,
                    };
                }
                next = next.wrapping_add(TOGETHER as u32);
                for index in 0..TOGETHER {
                    let row = self.rows[places[index] as usize & mask].0.as_ptr();
                    for vector in 0..vectors {
                        let sum = &mut sums[(index * vectors + vector) % SUMS];
                        *sum = sum.add(V::load(row.add(vector * V::LANES)));
                    }
                }
            }
            for index in 0..SUMS {
                let mut lanes = [0f32; CHANNELS];
                let first = index % vectors * V::LANES;
                sums[index].store(lanes.as_mut_ptr().add(first));
                for channel in 0..CHANNELS {
                    total[channel] += lanes[channel];
                }
            }
        }
        total
    }
}

/// The place of the row that comes at this `turn`: each of `mask + 1` once, then all over again. Every step of it can be
/// undone, so no two turns share a place.
#[inline(always)]
fn place(turn: u32, mask: u32, shift: u32) -> u32 {
    let mut place = turn.wrapping_mul(0x9e37_79b1) & mask;
    place ^= place >> shift;
    place = place.wrapping_mul(0x85eb_ca6b) & mask;
    place ^ (place >> shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_its_turn_once() {
        for bits in 4..12 {
            let mask = (1u32 << bits) - 1;
            let mut places: Vec<u32> = (0..=mask).map(|turn| place(turn, mask, bits / 2)).collect();
            let neighbours = places.windows(2).filter(|two| two[0].abs_diff(two[1]) <= 1);
            let neighbours = neighbours.count();
            assert!(neighbours <= 1 << (bits - 2), "{bits} bits: {neighbours}");
            places.sort_unstable();
            assert!(places.into_iter().eq(0..=mask), "{bits} bits");
        }
    }

    #[test]
    fn every_path_adds_up_every_row() {
        for simd in Simd::available() {
            for order in [Order::InTurn, Order::Random] {
                let mut rows = Rows::new("gather-128-l1", 64 * 128, order).unwrap();
                rows.add_up(simd, 2 * 64);
                assert_eq!(rows.wrong(), None, "{simd}, {order:?}");
                rows.add_up(simd, 16);
                assert!(rows.wrong().is_some(), "{simd}, {order:?}: no whole turn");
                rows.end_turn(simd);
                assert_eq!(rows.wrong(), None, "{simd}, {order:?}");
                rows.rows[40].0[31] += 1.0;
                rows.add_up(simd, 64);
                let (expected, _) = rows.wrong().unwrap();
                assert!(expected.ends_with("of channel 31"), "{simd}: {expected}");
            }
        }
    }
}
