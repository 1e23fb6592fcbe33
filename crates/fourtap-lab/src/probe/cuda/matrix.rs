//! How fast tensor cores multiply matrices of f16 and sum in f32.

use fourtap::f16;

use super::experiment::{Experiment, Input, Needs, Room, Work};
use super::pattern::mixed;
use crate::cuda::{Grid, Source};
use crate::record::Unit;

/// The product that is added repeatedly.
#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: u32,
    columns: u32,
    inner: u32,
    /// Times the product is added in a round.
    products: u32,
    /// Threads per block, and threads that compute a product together.
    threads: u32,
    together: u32,
    /// So many that sums are whole numbers that f32 holds exactly.
    rounds: u32,
}

const MMA: Shape = Shape {
    rows: 16,
    columns: 64,
    inner: 16,
    products: 1,
    threads: 256,
    together: 32,
    rounds: 1024,
};

const WGMMA: Shape = Shape {
    rows: 64,
    columns: 256,
    inner: 64,
    products: 4,
    threads: 128,
    together: 128,
    rounds: 64,
};

/// By a warp, out of registers.
pub fn mma() -> Experiment {
    let text = include_str!("../../../kernels/probe/mma.cu");
    let what = "mma.sync m16n8k16: f16 from registers, summed in f32";
    MMA.experiment(what, Source::new("probe_mma", text, &[]))
}

/// By four warps, out of shared memory.
pub fn wgmma() -> Experiment {
    let text = include_str!("../../../kernels/probe/wgmma.cu");
    let what = "wgmma m64n256k16: f16 from shared memory, summed in f32";
    let kernel = Source::new("probe_wgmma", text, &[]);
    WGMMA.experiment(what, kernel).on(Needs::Wgmma)
}

impl Shape {
    fn experiment(self, what: &str, kernel: Source) -> Experiment {
        let block = Grid::of_threads(self.threads);
        let work = move |room| self.work(room);
        Experiment::new(what, kernel, block, Unit::GigaflopASecond, work)
    }

    fn work(self, room: Room) -> Work {
        let (left, right) = (self.left(), self.right());
        let product = self.product(&left, &right);
        let groups = room.blocks * self.threads / self.together;
        let one = 2 * u64::from(self.rows) * u64::from(self.columns * self.inner);
        Work {
            blocks: room.blocks,
            inputs: vec![
                Input::Words(pairs_of_f16(&left)),
                Input::Words(pairs_of_f16(&right)),
                Input::Rounds,
                Input::Output,
            ],
            words: groups as usize * product.len(),
            checked_rounds: self.rounds,
            timed_rounds: self.rounds,
            expected: Box::new(move |word, rounds| {
                let place = self.rotated(word % product.len(), word / product.len());
                let times = (rounds * self.products) as i32;
                ((product[place] * times) as f32).to_bits()
            }),
            amount: u64::from(groups) * u64::from(self.rounds * self.products) * one,
        }
    }

    /// By row, then by inner number.
    fn left(self) -> Vec<i32> {
        small_numbers(self.rows * self.inner, 0)
    }

    /// By column, then by inner number: a column's numbers lie together.
    fn right(self) -> Vec<i32> {
        small_numbers(self.columns * self.inner, 1 << 20)
    }

    /// By row, then by column.
    fn product(self, left: &[i32], right: &[i32]) -> Vec<i32> {
        let inner = self.inner as usize;
        let rows = left.chunks_exact(inner);
        let sum = |row: &[i32], column: &[i32]| row.iter().zip(column).map(|(a, b)| a * b).sum();
        rows.flat_map(|row| {
            right
                .chunks_exact(inner)
                .map(move |column| sum(row, column))
        })
        .collect()
    }

    /// Where the sum at place `at` of a group's product is in the one that is not rotated.
    fn rotated(self, at: usize, group: usize) -> usize {
        let columns = self.columns as usize;
        at / columns * columns + (at % columns + group) % columns
    }
}

/// From -4 to 4.
fn small_numbers(count: u32, seed: u32) -> Vec<i32> {
    (0..count)
        .map(|at| (mixed(at + seed) % 9) as i32 - 4)
        .collect()
}

fn pairs_of_f16(numbers: &[i32]) -> Vec<u32> {
    let bits = |number: i32| u32::from(f16::from_f32(number as f32).to_bits());
    let pairs = numbers.chunks_exact(2);
    pairs
        .map(|pair| bits(pair[0]) | bits(pair[1]) << 16)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_whole_numbers_that_f32_holds() {
        for shape in [MMA, WGMMA] {
            // On their way too: no partial sum is larger than all products together.
            let most = 16 * shape.inner * shape.products * shape.rounds;
            assert!(most < 1 << 24, "{shape:?}: {most}");
        }
    }

    #[test]
    fn a_wrong_place_is_seen() {
        for shape in [MMA, WGMMA] {
            let sums = shape.product(&shape.left(), &shape.right());
            // Neighbours in both directions differ nearly everywhere.
            let columns = shape.columns as usize;
            for distance in [1, columns] {
                let pairs = sums.iter().zip(&sums[distance..]);
                let same = pairs.filter(|(a, b)| a == b).count();
                assert!(same < sums.len() / 10, "{shape:?}: {same}");
            }
            assert_eq!(shape.rotated(columns - 1, 1), 0);
        }
    }
}
