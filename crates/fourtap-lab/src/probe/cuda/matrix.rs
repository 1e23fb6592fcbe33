//! How fast tensor cores multiply matrices of f16 and sum in f32.

use fourtap::cuda::driver::Buffer;
use fourtap::f16;

use super::device::{ProbeDevice, Subject};
use super::pattern::mixed;
use crate::cuda::{Argument, Grid, Source};
use crate::error::Result;
use crate::record::{ProbeRecord, Unit};

/// How the tensor cores are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By a warp, out of registers.
    Mma,
    /// By four warps, out of shared memory.
    Wgmma,
}

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
    rounds: u32,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 2] = [Kind::Mma, Kind::Wgmma];

    /// What it is about.
    pub fn subject(self) -> Subject {
        match self {
            Kind::Mma => Subject::ceiling(
                "tensor-mma-f16",
                "mma.sync m16n8k16: f16 from registers, summed in f32",
            ),
            Kind::Wgmma => Subject::ceiling(
                "tensor-wgmma-f16",
                "wgmma m64n256k16: f16 from shared memory, summed in f32",
            ),
        }
    }

    /// Its kernel.
    pub fn source(self) -> Source {
        match self {
            Kind::Mma => {
                let text = include_str!("../../../kernels/probe/mma.cu");
                Source::new("probe_mma", text, &[])
            }
            Kind::Wgmma => {
                let text = include_str!("../../../kernels/probe/wgmma.cu");
                Source::new("probe_wgmma", text, &[])
            }
        }
    }

    /// Sums of so many rounds are whole numbers that f32 holds exactly.
    fn shape(self) -> Shape {
        match self {
            Kind::Mma => Shape {
                rows: 16,
                columns: 64,
                inner: 16,
                products: 1,
                threads: 256,
                together: 32,
                rounds: 1024,
            },
            Kind::Wgmma => Shape {
                rows: 64,
                columns: 256,
                inner: 64,
                products: 4,
                threads: 128,
                together: 128,
                rounds: 64,
            },
        }
    }

    fn missing(self, gpu: &ProbeDevice<'_>) -> Option<String> {
        let (major, minor) = gpu.facts().compute_capability;
        (self == Kind::Wgmma && (major, minor) != (9, 0)).then(|| {
            format!("only compute capability 9.0 has wgmma; this device has {major}.{minor}")
        })
    }

    /// How fast that is, after it was seen to be right.
    pub fn measure(self, gpu: &ProbeDevice<'_>, subject: &Subject) -> Result<ProbeRecord> {
        if let Some(reason) = self.missing(gpu) {
            return Ok(subject.unavailable(gpu, &reason));
        }
        let shape = self.shape();
        let context = gpu.cuda().context();
        let kernel = self.source().load(gpu.cuda())?;
        let grid = Grid {
            threads: shape.threads,
            ..Grid::default()
        };
        let grid = kernel.filling(gpu.cuda(), grid)?;
        let (left, right) = (shape.left(), shape.right());
        let sums = shape.sums(&left, &right);
        let left = Buffer::from_slice(context, &as_f16(&left))?;
        let right = Buffer::from_slice(context, &as_f16(&right))?;
        let groups = grid.blocks * shape.threads / shape.together;
        let bytes = groups as usize * sums.len() * size_of::<f32>();
        let mut products = Buffer::alloc(context, bytes)?;
        // Every bit set is NaN: so that it is seen if what is timed does not compute.
        gpu.stopwatch
            .once(|cuda| Ok(products.fill(u8::MAX, cuda.stream())?))?;
        let timed = gpu.stopwatch.hot(gpu.budget, |cuda| {
            let arguments = [
                Argument::Address(left.as_ptr()),
                Argument::Address(right.as_ptr()),
                Argument::Word(shape.rounds),
                Argument::Address(products.as_ptr()),
            ];
            // SAFETY: the kernel takes two addresses, a number and an address. The factors are of its sizes, and there
            // is room for a product of every group of threads; all buffers live until the work has been waited for.
            unsafe { kernel.queue(cuda, grid, &arguments) }
        })?;
        let found = products.to_vec::<f32>()?;
        for (at, &found) in found.iter().enumerate() {
            let group = at / sums.len();
            let expected = sums[shape.rotated(at % sums.len(), group)];
            if expected != found {
                let place = at % sums.len();
                return Err(
                    subject.wrong(format!("{expected} as sum {place} of group {group}"), found)
                );
            }
        }
        let products = u64::from(groups) * u64::from(shape.rounds * shape.products);
        let one = 2 * u64::from(shape.rows) * u64::from(shape.columns * shape.inner);
        let compared = "every sum of every block";
        let amount = products * one;
        let record = subject.measured(gpu, Unit::GigaflopASecond, amount, timed, compared);
        Ok(record.with("values", "whole numbers from -4 to 4"))
    }
}

impl Shape {
    /// By row, then by inner number.
    fn left(&self) -> Vec<i32> {
        small_numbers(self.rows * self.inner, 0)
    }

    /// By column, then by inner number: a column's numbers lie together.
    fn right(&self) -> Vec<i32> {
        small_numbers(self.columns * self.inner, 1 << 20)
    }

    /// By row, then by column, of the product, as often as it is added.
    fn sums(&self, left: &[i32], right: &[i32]) -> Vec<f32> {
        let inner = self.inner as usize;
        let times = (self.rounds * self.products) as i32;
        let mut sums = Vec::new();
        for row in left.chunks_exact(inner) {
            for column in right.chunks_exact(inner) {
                let product: i32 = row.iter().zip(column).map(|(a, b)| a * b).sum();
                sums.push((product * times) as f32);
            }
        }
        sums
    }

    /// Where the sum at place `at` of a group's product is in the one that is not rotated.
    fn rotated(&self, at: usize, group: usize) -> usize {
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

fn as_f16(numbers: &[i32]) -> Vec<f16> {
    numbers
        .iter()
        .map(|&number| f16::from_f32(number as f32))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_whole_numbers_that_f32_holds() {
        for kind in Kind::ALL {
            let shape = kind.shape();
            // On their way too: no partial sum is larger than all products together.
            let most = 16 * shape.inner * shape.products * shape.rounds;
            assert!(most < 1 << 24, "{kind:?}: {most}");
        }
    }

    #[test]
    fn a_wrong_place_or_a_missing_round_is_seen() {
        for kind in Kind::ALL {
            let shape = kind.shape();
            let sums = shape.sums(&shape.left(), &shape.right());
            assert_eq!(sums.len() as u32, shape.rows * shape.columns);
            // Neighbours in both directions differ nearly everywhere.
            let columns = shape.columns as usize;
            for distance in [1, columns] {
                let pairs = sums.iter().zip(&sums[distance..]);
                let same = pairs.filter(|(a, b)| a == b).count();
                assert!(same < sums.len() / 10, "{kind:?}: {same}");
            }
            assert_eq!(shape.rotated(columns - 1, 1), 0);
        }
    }
}
