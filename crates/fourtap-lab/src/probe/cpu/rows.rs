//! Reading rows of 128 bytes, as a head of 32 channels in f32 has them, and adding them up.

use fourtap::cpu::Simd;
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;

use super::super::wrong;
use super::vector::{self, Loop, MOST_LANES, Vector};
use super::{Work, allocated};
use crate::error::Result;
use crate::record::Unit;

const CHANNELS: usize = 32;

/// Vectors added up side by side, at most.
const MOST_SUMS: usize = 16;

/// Rows are added up several at once; this many are a multiple on every path.
const STEP: usize = 16;

/// Rows of a round, if there are more: the next each time, so that every one was last touched a whole turn ago.
const MOST_ROWS_A_ROUND: usize = 1 << 15;

/// Sums of more rows than this might be rounded.
const MOST_ROWS: usize = 1 << 20;

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
    simd: Simd,
    rows: Vec<Row>,
    /// Which comes when, each once; none if one after another.
    order: Option<Vec<u32>>,
    /// Rows of a round.
    slice: usize,
    /// Rounds so far.
    rounds: usize,
    sums: [u64; CHANNELS],
}

impl Rows {
    /// As many as fit so many bytes.
    pub fn new(bytes: u64, order: Order) -> Result<Self> {
        let fitting = (bytes as usize / size_of::<Row>()).clamp(STEP, u32::MAX as usize);
        let slice = (fitting / STEP * STEP).min(MOST_ROWS_A_ROUND);
        let count = fitting / slice * slice;
        let mut rows = allocated(Row([0.0; CHANNELS]), count)?;
        for (index, row) in rows.iter_mut().enumerate() {
            for channel in 0..CHANNELS {
                row.0[channel] = number(index, channel) as f32;
            }
        }
        let order = match order {
            Order::InTurn => None,
            Order::Random => {
                let mut places = allocated(0, count)?;
                for (index, place) in places.iter_mut().enumerate() {
                    *place = index as u32;
                }
                places.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(0));
                Some(places)
            }
        };
        Ok(Rows {
            simd: Simd::best(),
            rows,
            order,
            slice,
            rounds: 0,
            sums: [0; CHANNELS],
        })
    }

    /// Rounds until each row was added up once.
    fn rounds_a_turn(&self) -> usize {
        self.rows.len() / self.slice
    }

    /// The sums of the next round, if it is done so many times.
    fn sums_of_next(&self, times: usize) -> [f32; CHANNELS] {
        let begin = self.rounds % self.rounds_a_turn() * self.slice;
        let count = self.slice;
        match &self.order {
            None => {
                let rows = &self.rows[begin..begin + count];
                // SAFETY: no place is as large as the count.
                let row = |place: usize| unsafe { rows.get_unchecked(place) };
                vector::run(self.simd, AddUp { row, count, times })
            }
            Some(order) => {
                let (rows, order) = (&self.rows, &order[begin..begin + count]);
                // SAFETY: likewise, and each number of the order is a row's.
                let row = |place: usize| unsafe {
                    rows.get_unchecked(*order.get_unchecked(place) as usize)
                };
                vector::run(self.simd, AddUp { row, count, times })
            }
        }
    }
}

impl Work for Rows {
    const UNIT: Unit = Unit::GigabytesASecond;
    const COMPARED: &str = "the sums of all 32 channels over all rows read";

    fn run(&mut self, rounds: u64) {
        let end = self.rounds + rounds as usize;
        while self.rounds < end {
            // Many rounds on few rows at once, or it is calls that are timed.
            let times = match self.rounds_a_turn() {
                1 => (end - self.rounds).min(MOST_ROWS / self.slice),
                _ => 1,
            };
            let sums = self.sums_of_next(times);
            for channel in 0..CHANNELS {
                self.sums[channel] += sums[channel] as u64;
            }
            self.rounds += times;
        }
    }

    fn verify(&mut self) -> Result<()> {
        // The sums that are compared are of whole turns.
        while !self.rounds.is_multiple_of(self.rounds_a_turn()) {
            self.run(1);
        }
        let turns = (self.rounds / self.rounds_a_turn()) as u64;
        for channel in 0..CHANNELS {
            let once: u64 = (0..self.rows.len()).map(|row| number(row, channel)).sum();
            let (expected, found) = (turns * once, self.sums[channel]);
            if expected != found {
                let sum = format!("the sum {expected} of channel {channel}");
                return Err(wrong(sum, found));
            }
        }
        Ok(())
    }

    fn amount(&self) -> u64 {
        (self.slice * size_of::<Row>()) as u64
    }
}

/// Small, so that sums in f32 are exact in whatever order.
fn number(row: usize, channel: usize) -> u64 {
    ((row as u64).wrapping_mul(0x9e37_79b9) >> (channel % 16)) & 7
}

/// Adds up so many rows, so many times.
struct AddUp<F> {
    /// The row at a place. It touches no vector, which it could not be compiled for.
    row: F,
    count: usize,
    times: usize,
}

impl<'a, F: Fn(usize) -> &'a Row> Loop for AddUp<F> {
    type Output = [f32; CHANNELS];

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> [f32; CHANNELS] {
        // Of several rows side by side, so that none waits for the one before. Processors without AVX-512 have registers
        // for half as many.
        let side_by_side = match V::LANES {
            16 => MOST_SUMS,
            _ => MOST_SUMS / 2,
        };
        let mut numbers = [0f32; MOST_SUMS * MOST_LANES];
        // SAFETY: the caller vouches for the instructions. Loads are within a row, stores within the numbers.
        unsafe {
            let mut sums = [V::splat(0.0); MOST_SUMS];
            for _ in 0..self.times {
                for first in (0..self.count).step_by(side_by_side * V::LANES / CHANNELS) {
                    for index in 0..side_by_side {
                        let number = index * V::LANES;
                        let row = (self.row)(first + number / CHANNELS);
                        let vector = row.0.as_ptr().add(number % CHANNELS);
                        sums[index] = sums[index].add(V::load(vector));
                    }
                }
            }
            for index in 0..side_by_side {
                sums[index].store(numbers[index * V::LANES..].as_mut_ptr());
            }
        }
        let mut total = [0.0; CHANNELS];
        for (index, number) in numbers.iter().enumerate() {
            total[index % CHANNELS] += number;
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_its_turn_once_and_in_no_order() {
        let mut order = Rows::new(4096 * 128, Order::Random).unwrap().order.unwrap();
        let neighbours = order.windows(2).filter(|two| two[0].abs_diff(two[1]) <= 4);
        assert!(neighbours.count() < 100);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..4096));
    }

    #[test]
    fn memory_is_read_in_slices_and_whole_turns_are_compared() {
        let slice = MOST_ROWS_A_ROUND * size_of::<Row>();
        let mut rows = Rows::new(3 * slice as u64 + 1000, Order::Random).unwrap();
        assert_eq!((rows.rounds_a_turn(), rows.amount()), (3, slice as u64));
        rows.run(4);
        rows.verify().unwrap();
        assert_eq!(rows.rounds, 6);
    }

    #[test]
    fn every_path_adds_up_every_row() {
        for simd in Simd::available() {
            for order in [Order::InTurn, Order::Random] {
                let mut rows = Rows {
                    simd,
                    ..Rows::new(64 * 128, order).unwrap()
                };
                rows.run(2);
                assert_eq!((rows.rows.len(), rows.slice), (64, 64));
                rows.verify().unwrap();
                rows.rows[40].0[31] += 1.0;
                rows.run(1);
                let error = rows.verify().unwrap_err().to_string();
                assert!(error.contains("of channel 31"), "{simd}: {error}");
            }
        }
    }
}
