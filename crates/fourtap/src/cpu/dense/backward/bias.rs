//! The gradient of a bias: the gradients of the logits, summed over the axes that it is broadcast on.
//!
//! An owner is a part of the bias that is summed apart from the others: one index of its axes B and Hq and, if it has an axis Sq, one block of
//! rows. What is added to it comes from units, blocks of rows of single heads, always in the same order. Where there are few
//! owners, the units of each are split into parts, as many as the problem says, never the number of threads.

use std::ops::Range;
use std::sync::Mutex;

use super::block::{Block, Step};
use super::kernels::AddLanes;
use super::key_tile::KeyTile;
use super::plan::Plan;
use crate::cpu::Cpu;
use crate::cpu::dense::lanes::{KEYS, Lane, QUERIES};
use crate::cpu::dense::rows::HeadRows;
use crate::cpu::simd::{VectorReal, Vectorized};
use crate::cpu::workspace::{lock, workspaces};
use crate::dense::BiasGradientDesc;
use crate::dtype::{DType, Element, Real, bf16, f16};
use crate::error::Result;

/// Sums that are kept at once at most, where the units of an owner are split.
const MOST_PARTS: usize = 16;

/// The gradient of a bias.
#[derive(Clone, Copy)]
pub(super) struct BiasGradient {
    pub first: *mut u8,
    pub desc: BiasGradientDesc,
}

// SAFETY: each element is written by one thread only, and not read.
unsafe impl Send for BiasGradient {}
// SAFETY: as above.
unsafe impl Sync for BiasGradient {}

/// How the gradient of a bias is summed.
pub(super) struct BiasSums<'a, E: Vectorized> {
    pub cpu: Cpu,
    pub plan: &'a Plan<'a, E>,
    pub to: BiasGradient,
}

/// A block of queries of one head.
struct Unit {
    sequence: usize,
    head: usize,
    block: usize,
}

impl<E: Vectorized> BiasSums<'_, E> {
    /// Blocks of queries of a head.
    fn blocks(&self) -> usize {
        self.plan.sizes.queries.div_ceil(QUERIES)
    }

    /// Of an axis of the problem, the indices that belong to an index of the bias.
    fn summed(&self, axis: usize, index: usize, whole: usize) -> Range<usize> {
        match self.to.desc.sizes[axis] {
            1 => 0..whole,
            _ => index..index + 1,
        }
    }

    /// How many blocks of rows have sums of their own.
    fn row_blocks(&self) -> usize {
        match self.to.desc.sizes[2] {
            1 => 1,
            _ => self.blocks(),
        }
    }

    fn owners(&self) -> usize {
        let [sequences, heads, rows, keys] = self.to.desc.sizes;
        match rows * keys {
            0 => 0,
            _ => sequences * heads * self.row_blocks(),
        }
    }

    /// The units of every owner; all have the same number.
    fn units(&self) -> usize {
        let sizes = &self.plan.sizes;
        let sequences = self.summed(0, 0, sizes.batch).len();
        let heads = self.summed(1, 0, sizes.query_heads).len();
        let blocks = match self.to.desc.sizes[2] {
            1 => self.blocks(),
            _ => 1,
        };
        sequences * heads * blocks
    }

    /// The indices of an owner on the axes B and Hq of the bias, and its block of rows.
    fn place(&self, owner: usize) -> [usize; 3] {
        let (heads, blocks) = (self.to.desc.sizes[1], self.row_blocks());
        [
            owner / blocks / heads,
            owner / blocks % heads,
            owner % blocks,
        ]
    }

    fn unit(&self, owner: usize, index: usize) -> Unit {
        let [sequence, head, block] = self.place(owner);
        let sizes = &self.plan.sizes;
        let blocks = match self.to.desc.sizes[2] {
            1 => 0..self.blocks(),
            _ => block..block + 1,
        };
        let heads = self.summed(1, head, sizes.query_heads);
        let first = self.summed(0, sequence, sizes.batch).start;
        let (rest, block) = (index / blocks.len(), blocks.start + index % blocks.len());
        Unit {
            sequence: first + rest / heads.len(),
            head: heads.start + rest % heads.len(),
            block,
        }
    }

    /// Size of the sums of an owner, one per key, or one for all.
    fn room(&self) -> usize {
        self.to.desc.sizes[3]
    }

    fn workspace(&self) -> usize {
        Step::<E::Accumulator>::room(true)
            + KeyTile::<E::Accumulator>::room(self.plan)
            + Block::<E::Accumulator>::room(self.plan)
    }

    /// Computes the gradient. `run` runs so many tasks, each with so many items of workspace.
    pub fn run<F>(&self, run: F) -> Result<()>
    where
        F: Fn(usize, usize, &(dyn Fn(usize, &mut Vec<Lane<E::Accumulator>>) + Sync)) -> Result<()>,
    {
        let (owners, units, room) = (self.owners(), self.units(), self.room());
        let zero = Lane([E::Accumulator::ZERO; QUERIES]);
        let parts = (MOST_PARTS / owners.max(1)).clamp(1, units.max(1));
        if parts == 1 {
            return run(owners, self.workspace() + room, &|owner, memory| {
                memory.resize(self.workspace() + room, zero);
                let (sums, memory) = memory.split_at_mut(room);
                sums.fill(zero);
                self.add(owner, 0..units, sums, memory);
                self.store(owner, sums);
            });
        }
        let sums = workspaces(owners * parts, room)?;
        let sums: Vec<_> = sums.into_iter().map(Mutex::new).collect();
        run(owners * parts, self.workspace(), &|task, memory| {
            memory.resize(self.workspace(), zero);
            let (owner, part) = (task / parts, task % parts);
            let mut sums = lock(&sums[task]);
            sums.resize(room, zero);
            let units = part * units / parts..(part + 1) * units / parts;
            self.add(owner, units, &mut sums, memory);
        })?;
        for (owner, parts) in sums.chunks(parts).enumerate() {
            let [first, others @ ..] = parts else {
                continue;
            };
            let mut first = lock(first);
            for part in others {
                for (sum, part) in first.iter_mut().zip(lock(part).iter()) {
                    for (sum, &part) in sum.0.iter_mut().zip(&part.0) {
                        *sum += part;
                    }
                }
            }
            self.store(owner, &first);
        }
        Ok(())
    }

    /// Adds units of an owner to its sums.
    fn add(
        &self,
        owner: usize,
        units: Range<usize>,
        sums: &mut [Lane<E::Accumulator>],
        memory: &mut [Lane<E::Accumulator>],
    ) {
        let (plan, sizes) = (self.plan, &self.plan.sizes);
        let (step, rest) = memory.split_at_mut(Step::<E::Accumulator>::room(true));
        let mut step = Step::new(step);
        let (tile_room, block) = rest.split_at_mut(KeyTile::<E::Accumulator>::room(plan));
        for index in units {
            let unit = self.unit(owner, index);
            let of = HeadRows {
                sequence: unit.sequence,
                first_head: unit.head,
                heads: 1,
            };
            let start = unit.block * QUERIES;
            let rows = start..(start + QUERIES).min(sizes.queries);
            // SAFETY: the rows lie in the problem.
            let mut block = unsafe { Block::new(&self.cpu, plan, of, rows, &mut *block) };
            let head = [unit.sequence, unit.head / sizes.group()];
            let Range { start, end } = block.seen.some;
            for start in (start / KEYS * KEYS..end).step_by(KEYS) {
                let keys = start..(start + KEYS).min(sizes.keys);
                // SAFETY: the keys lie in the problem.
                let (tile, weighed) = unsafe {
                    let tile = KeyTile::load(&self.cpu, plan, head, keys, tile_room);
                    let weighed = block.weigh(&self.cpu, plan, &tile, &mut step, [true, false]);
                    (tile.keys, weighed)
                };
                let Some(weighed) = weighed else { continue };
                self.cpu.run(AddLanes {
                    from: &step.logit_grads[weighed.keys.clone()],
                    to: match self.to.desc.sizes[3] {
                        1 => &mut *sums,
                        _ => &mut sums[tile][weighed.keys],
                    },
                    lanes: block.seen.rows.len(),
                });
            }
        }
    }

    /// Writes the elements of an owner.
    fn store(&self, owner: usize, sums: &[Lane<E::Accumulator>]) {
        let [sequence, head, block] = self.place(owner);
        let start = block * QUERIES;
        for (key, Lane(sums)) in sums.iter().enumerate() {
            if self.to.desc.sizes[2] == 1 {
                let sum = sums
                    .iter()
                    .fold(E::Accumulator::ZERO, |sum, &lane| sum + lane);
                self.to.write([sequence, head, 0, key], sum);
                continue;
            }
            let rows = start..(start + QUERIES).min(self.plan.sizes.queries);
            for (row, &sum) in rows.zip(sums) {
                self.to.write([sequence, head, row, key], sum);
            }
        }
    }
}

impl BiasGradient {
    /// Rounds a number to an element inside the shape.
    fn write<R: VectorReal>(&self, index: [usize; 4], number: R) {
        let steps = index.iter().zip(&self.desc.strides);
        let offset: isize = steps.map(|(&index, &stride)| index as isize * stride).sum();
        let number = number.to_f64();
        // SAFETY: the call was checked: an element of this type lies there, and one owner writes it.
        unsafe {
            match self.desc.dtype {
                DType::F16 => *self.first.cast::<f16>().offset(offset) = Element::from_f64(number),
                DType::BF16 => {
                    *self.first.cast::<bf16>().offset(offset) = Element::from_f64(number)
                }
                DType::F32 => *self.first.cast::<f32>().offset(offset) = Element::from_f64(number),
                DType::F64 => *self.first.cast::<f64>().offset(offset) = number,
            }
        }
    }
}
