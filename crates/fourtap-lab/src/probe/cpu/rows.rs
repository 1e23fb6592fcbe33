//! Rows of 128 bytes, as a head of 32 channels in f32 has them, and adding them up.

use fourtap::cpu::Simd;
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;

use super::allocated;
use super::vector::{self, Loop, Vector};
use crate::error::Result;

const CHANNELS: usize = 32;

/// Vectors added up side by side, at most.
const MOST_SUMS: usize = 16;

/// Rows are added up several at once; this many are a multiple on every path.
const STEP: usize = 16;

/// Sums of more rows than this might be rounded.
const MOST_ROWS: usize = 1 << 20;

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

/// Rows that one thread sums repeatedly.
pub struct Rows {
    rows: Vec<Row>,
    /// Which comes when, each once; none if one after another.
    order: Option<Vec<u32>>,
    /// Which turn is next.
    next: usize,
    /// How often all had their turn.
    turns: u64,
    sums: [u64; CHANNELS],
}

impl Rows {
    /// As many as fit so many bytes.
    pub fn new(probe: &'static str, bytes: u64, order: Order) -> Result<Self> {
        let count = rows_of(bytes);
        let mut rows = allocated(probe, Row([0.0; CHANNELS]), count)?;
        for (index, row) in rows.iter_mut().enumerate() {
            for channel in 0..CHANNELS {
                row.0[channel] = number(index, channel) as f32;
            }
        }
        let order = match order {
            Order::InTurn => None,
            Order::Random => {
                let mut places = allocated(probe, 0, count)?;
                for (index, place) in places.iter_mut().enumerate() {
                    *place = index as u32;
                }
                places.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(0));
                Some(places)
            }
        };
        Ok(Rows {
            rows,
            order,
            next: 0,
            turns: 0,
            sums: [0; CHANNELS],
        })
    }

    /// Adds up the next so many: a multiple of [`STEP`].
    pub fn add_up(&mut self, simd: Simd, count: u64) {
        let mut left = count;
        while left > 0 {
            let len = self.rows.len();
            let whole = usize::try_from(left / len as u64).unwrap_or(usize::MAX);
            let (count, turns) = match self.next {
                // Many turns of few rows at once, or it is calls that are timed.
                0 if whole > 0 => (len, whole.min((MOST_ROWS / len).max(1))),
                next => {
                    let most = (len - next).min(MOST_ROWS);
                    let count = usize::try_from(left).map_or(most, |left| left.min(most));
                    (count, 1)
                }
            };
            let sums = self.sums_of_next(simd, count, turns);
            let added = turns * count;
            for channel in 0..CHANNELS {
                self.sums[channel] += sums[channel] as u64;
            }
            left -= added as u64;
            self.turns += ((self.next + added) / len) as u64;
            self.next = (self.next + added) % len;
        }
    }

    fn sums_of_next(&self, simd: Simd, count: usize, turns: usize) -> [f32; CHANNELS] {
        let place = self.next..self.next + count;
        match &self.order {
            None => {
                let rows = &self.rows[place];
                vector::run(simd, AddInTurn { rows, turns })
            }
            Some(order) => {
                let (rows, order) = (self.rows.as_slice(), &order[place]);
                vector::run(simd, AddInOrder { rows, order, turns })
            }
        }
    }

    /// Until each was added up as often as any other.
    pub fn end_turn(&mut self, simd: Simd) {
        if self.next > 0 {
            self.add_up(simd, (self.rows.len() - self.next) as u64);
        }
    }

    /// After whole turns, the first channel with another sum than it must have: expected and found.
    pub fn wrong(&self) -> Option<(String, String)> {
        let mut once = [0u64; CHANNELS];
        for row in 0..self.rows.len() {
            for channel in 0..CHANNELS {
                once[channel] += number(row, channel);
            }
        }
        let channel =
            (0..CHANNELS).find(|&channel| self.sums[channel] != self.turns * once[channel])?;
        let expected = self.turns * once[channel];
        let expected = format!("the sum {expected} of channel {channel}");
        Some((expected, self.sums[channel].to_string()))
    }
}

/// How many rows fit so many bytes, in whole steps.
pub fn rows_of(bytes: u64) -> usize {
    (bytes as usize / ROW_BYTES / STEP).clamp(1, u32::MAX as usize / STEP) * STEP
}

/// Small, so that sums in f32 are exact in whatever order.
fn number(row: usize, channel: usize) -> u64 {
    ((row as u64).wrapping_mul(0x9e37_79b9) >> (channel % 16)) & 7
}

/// Adds up rows, so many times.
struct AddInTurn<'a> {
    rows: &'a [Row],
    turns: usize,
}

impl Loop for AddInTurn<'_> {
    type Output = [f32; CHANNELS];

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> [f32; CHANNELS] {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            let mut sums = Sums::<V>::new();
            for _ in 0..self.turns {
                for rows in self.rows.chunks_exact(Sums::<V>::ROWS) {
                    sums.add(|row| &rows[row]);
                }
            }
            sums.total()
        }
    }
}

/// Adds up those rows that `order` names, so many times.
struct AddInOrder<'a> {
    rows: &'a [Row],
    order: &'a [u32],
    turns: usize,
}

impl Loop for AddInOrder<'_> {
    type Output = [f32; CHANNELS];

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> [f32; CHANNELS] {
        // SAFETY: the caller vouches for the instructions. Every place is one of a row, as `Rows::new` made them.
        unsafe {
            let mut sums = Sums::<V>::new();
            for _ in 0..self.turns {
                for places in self.order.chunks_exact(Sums::<V>::ROWS) {
                    sums.add(|row| self.rows.get_unchecked(places[row] as usize));
                }
            }
            sums.total()
        }
    }
}

/// Sums of all channels, of several rows side by side so that none waits for the one before.
struct Sums<V>([V; MOST_SUMS]);

impl<V: Vector> Sums<V> {
    /// Vectors of a row.
    const VECTORS: usize = CHANNELS / V::LANES;
    /// Vectors in use: processors without AVX-512 have registers for half of them.
    const USED: usize = if V::LANES == 16 {
        MOST_SUMS
    } else {
        MOST_SUMS / 2
    };
    /// Rows added up at once.
    const ROWS: usize = Self::USED / Self::VECTORS;

    /// # Safety
    /// As for [`Vector`]; likewise below.
    #[inline(always)]
    unsafe fn new() -> Self {
        // SAFETY: the caller vouches for the instructions.
        Sums([unsafe { V::splat(0.0) }; MOST_SUMS])
    }

    /// Adds [`Sums::ROWS`] rows. The closure touches no vector, which it could not be compiled for.
    ///
    /// # Safety
    /// See [`Sums::new`].
    #[inline(always)]
    unsafe fn add<'a>(&mut self, row: impl Fn(usize) -> &'a Row) {
        for index in 0..Self::USED {
            let channels = &row(index / Self::VECTORS).0;
            // SAFETY: the caller vouches for the instructions; the vector is one of the row's.
            unsafe {
                let vector = channels.as_ptr().add(index % Self::VECTORS * V::LANES);
                self.0[index] = self.0[index].add(V::load(vector));
            }
        }
    }

    /// # Safety
    /// See [`Sums::new`].
    #[inline(always)]
    unsafe fn total(self) -> [f32; CHANNELS] {
        let mut total = [0f32; CHANNELS];
        for index in 0..Self::USED {
            let mut channels = [0f32; CHANNELS];
            // SAFETY: the caller vouches for the instructions; the vector is one of a row's.
            unsafe {
                let vector = channels.as_mut_ptr().add(index % Self::VECTORS * V::LANES);
                self.0[index].store(vector);
            }
            for channel in 0..CHANNELS {
                total[channel] += channels[channel];
            }
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_its_turn_once_and_in_no_order() {
        let rows = Rows::new("gather-128-l1", 4096 * 128, Order::Random).unwrap();
        let mut order = rows.order.unwrap();
        let neighbours = order.windows(2).filter(|two| two[0].abs_diff(two[1]) <= 4);
        assert!(neighbours.count() < 100);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..4096));
    }

    #[test]
    fn every_path_adds_up_every_row() {
        for simd in Simd::available() {
            for order in [Order::InTurn, Order::Random] {
                let mut rows = Rows::new("gather-128-l1", 64 * 128, order).unwrap();
                rows.add_up(simd, 2 * 64);
                assert_eq!((rows.rows.len(), rows.turns), (64, 2));
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
