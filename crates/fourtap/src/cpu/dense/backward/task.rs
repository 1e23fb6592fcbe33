//! One task: some rows and some keys of one key head, each pair of a block of rows and a tile of keys once.

use std::ops::Range;

use super::block::{Block, Step, Weighed};
use super::kernels::StoreRows;
use super::key_tile::KeyTile;
use super::plan::Plan;
use super::tile_products::{ADDED_TOGETHER, Summands};
use crate::cpu::Cpu;
use crate::cpu::dense::lanes::{KEYS, Lane, QUERIES};
use crate::cpu::dense::product::{ADDED, Matrix, MatrixMut, Product};
use crate::cpu::dense::rows::Collect;
use crate::cpu::raw::Raw;
use crate::cpu::simd::Vectorized;
use crate::dtype::Real;
use crate::error::Result;

/// Some rows and some keys of one key head. All begin at multiples of the sizes of a block and a tile: every pair of them is the same
/// in any task, and every sum is over tiles, or blocks, in ascending order, so the result does not depend on how they are
/// split into tasks.
pub(super) struct Task<'a, E: Vectorized> {
    pub cpu: Cpu,
    pub plan: &'a Plan<'a, E>,
    pub sequence: usize,
    /// Of keys and values.
    pub head: usize,
    /// Queries of all heads of the group.
    pub rows: Range<usize>,
    pub keys: Range<usize>,
    /// Blocks that use each tile of keys and values while it is near.
    pub blocks: usize,
    pub which: Which,
}

/// Which gradients a task computes, of those requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Those of queries, from all keys.
    Queries,
    /// Those of keys and values, from all rows.
    Keys,
    /// All three, from all rows and keys.
    All,
}

/// Sums of the gradients of keys or of values, one row per key.
struct KeySums<'a, R> {
    lanes: &'a mut [Lane<R>],
    channels: usize,
    /// The key of the first row.
    first: usize,
}

impl<R: Real> KeySums<'_, R> {
    /// Size of the memory for so many keys.
    fn room(keys: usize, channels: usize) -> usize {
        keys.div_ceil(QUERIES) * Self::stride(channels)
    }

    /// A multiple of what tiles add together, and so of vectors.
    fn stride(channels: usize) -> usize {
        channels.next_multiple_of(ADDED_TOGETHER)
    }

    /// Zeros for other keys, from this one on.
    fn begin(&mut self, first: usize) {
        self.first = first;
        self.lanes.fill(Lane([R::ZERO; QUERIES]));
    }

    /// The rows of some keys; there is room for whole tiles.
    fn rows(&mut self, keys: Range<usize>) -> MatrixMut<'_, R> {
        let stride = Self::stride(self.channels);
        let [start, end] = [keys.start, keys.end].map(|key| (key - self.first) * stride);
        MatrixMut {
            numbers: &mut Lane::numbers_mut(self.lanes)[start..end],
            stride,
        }
    }
}

impl<E: Vectorized> Task<'_, E> {
    fn computes_queries(&self) -> bool {
        self.which != Which::Keys && self.plan.grad_query.is_some()
    }

    fn computes_keys(&self) -> bool {
        self.which != Which::Queries && self.plan.grad_key.is_some()
    }

    fn computes_values(&self) -> bool {
        self.which != Which::Queries && self.plan.grad_value.is_some()
    }

    /// Whether all rows see a tile of keys before the next one comes, so that its gradients are complete then.
    fn is_one_pass(rows: usize, blocks: usize) -> bool {
        (1..=blocks * QUERIES).contains(&rows)
    }

    /// Size of the workspace for tasks of so many rows and keys, of keys and values of a tile, their sums, one step and so many
    /// blocks.
    pub fn workspace(
        plan: &Plan<'_, E>,
        [rows, keys]: [usize; 2],
        blocks: usize,
        which: Which,
    ) -> usize {
        let (channels, values) = (plan.sizes.channels, plan.sizes.value_channels);
        let keys = match Self::is_one_pass(rows, blocks) {
            true => KEYS,
            false => keys,
        };
        let sums = match which {
            Which::Queries => 0,
            _ => {
                KeySums::<E::Accumulator>::room(keys, channels)
                    + KeySums::<E::Accumulator>::room(keys, values)
            }
        };
        Step::<E::Accumulator>::room(plan.has_biases())
            + KeyTile::<E::Accumulator>::room(plan)
            + sums
            + blocks * Block::<E::Accumulator>::room(plan)
    }

    /// Computes the gradients, unless the call is cancelled.
    ///
    /// # Safety
    /// Rows and keys lie in the problem, and nothing else writes their gradients.
    pub unsafe fn run(&self, memory: &mut Vec<Lane<E::Accumulator>>) -> Result<()> {
        let (plan, zero) = (self.plan, Lane([E::Accumulator::ZERO; QUERIES]));
        let (channels, values) = (plan.sizes.channels, plan.sizes.value_channels);
        // Does nothing from a worker's second task on. A task overwrites what the one before it left.
        let sizes = [self.rows.len(), self.keys.len()];
        memory.resize(
            Self::workspace(plan, sizes, self.blocks, self.which).max(memory.len()),
            zero,
        );
        let one_pass = Self::is_one_pass(self.rows.len(), self.blocks);
        let (step, rest) = memory.split_at_mut(Step::<E::Accumulator>::room(plan.has_biases()));
        let mut step = Step::new(step);
        let (tile_room, mut rest) = rest.split_at_mut(KeyTile::<E::Accumulator>::room(plan));
        let mut sums = |is_needed: bool, channels: usize| {
            let keys = match (is_needed, one_pass) {
                (false, _) => 0,
                (true, true) => KEYS,
                (true, false) => self.keys.len(),
            };
            let room = KeySums::<E::Accumulator>::room(keys, channels);
            let (lanes, others) = std::mem::take(&mut rest).split_at_mut(room);
            rest = others;
            lanes.fill(zero);
            let first = self.keys.start;
            KeySums {
                lanes,
                channels,
                first,
            }
        };
        let mut key_sums = sums(self.computes_keys(), channels);
        let mut value_sums = sums(self.computes_values(), values);
        for start in self.rows.clone().step_by(self.blocks * QUERIES) {
            let rows = start..(start + self.blocks * QUERIES).min(self.rows.end);
            self.cpu.unless_cancelled(|| {
                // SAFETY: as the caller promises.
                let mut blocks = unsafe { self.blocks(rows, rest) };
                let seen = self.seen(&blocks);
                // In one pass gradients are written tile by tile, also of keys that nobody sees.
                let tiles = match one_pass {
                    true => self.keys.clone(),
                    false => seen.clone(),
                };
                for start in tiles.step_by(KEYS) {
                    let keys = start..(start + KEYS).min(self.keys.end);
                    if one_pass {
                        key_sums.begin(keys.start);
                        value_sums.begin(keys.start);
                    }
                    if seen.contains(&start) {
                        let head = [self.sequence, self.head];
                        // SAFETY: the keys lie in the problem.
                        let tile = unsafe {
                            KeyTile::load(&self.cpu, plan, head, keys.clone(), tile_room)
                        };
                        for block in &mut blocks {
                            // SAFETY: as above.
                            unsafe {
                                self.step(block, &tile, &mut step, &mut key_sums, &mut value_sums);
                            }
                        }
                    }
                    if one_pass {
                        self.store_of_keys(&mut key_sums, &mut value_sums, keys);
                    }
                }
                if self.computes_queries() {
                    blocks.into_iter().for_each(|block| self.store(block));
                }
            })?;
        }
        if !one_pass {
            self.store_of_keys(&mut key_sums, &mut value_sums, self.keys.clone());
        }
        Ok(())
    }

    /// # Safety
    /// The rows lie in the problem.
    unsafe fn blocks<'m>(
        &'m self,
        rows: Range<usize>,
        memory: &'m mut [Lane<E::Accumulator>],
    ) -> Vec<Block<'m, E::Accumulator>> {
        let of = self.plan.head_rows(self.sequence, self.head);
        let starts = rows.clone().step_by(QUERIES);
        starts
            .zip(memory.chunks_exact_mut(Block::<E::Accumulator>::room(self.plan)))
            .map(|(start, memory)| {
                let rows = start..(start + QUERIES).min(rows.end);
                // SAFETY: as the caller promises.
                unsafe { Block::new(&self.cpu, self.plan, of, rows, memory) }
            })
            .collect()
    }

    /// The keys that these blocks may see, from the first of a tile on.
    fn seen(&self, blocks: &[Block<'_, E::Accumulator>]) -> Range<usize> {
        let seen = match (blocks.first(), blocks.last()) {
            (Some(first), Some(last)) => first.seen.some.start..last.seen.some.end,
            _ => 0..0,
        };
        seen.start.max(self.keys.start) / KEYS * KEYS..seen.end.min(self.keys.end)
    }

    /// Adds one block and one tile of keys to all sums.
    ///
    /// # Safety
    /// The keys lie in the problem.
    unsafe fn step(
        &self,
        block: &mut Block<'_, E::Accumulator>,
        tile: &KeyTile<'_, E::Accumulator>,
        step: &mut Step<'_, E::Accumulator>,
        key_sums: &mut KeySums<'_, E::Accumulator>,
        value_sums: &mut KeySums<'_, E::Accumulator>,
    ) {
        let needs_grads = self.computes_queries() || self.computes_keys();
        let is_finite = block.is_finite && tile.is_finite;
        let how = [needs_grads, !is_finite];
        // SAFETY: as the caller promises.
        let weighed = unsafe { block.weigh(&self.cpu, self.plan, tile, step, how) };
        let Some(Weighed { keys, seen }) = weighed else {
            return;
        };
        let (weights, logit_grads) = (&step.weights[keys.clone()], &step.logit_grads[keys.clone()]);
        if let (Some(tiles), Some(rows), Some(columns)) =
            (&self.plan.tiles, tile.in_tiles, block.in_tiles)
            && self.plan.sums_in_tiles()
        {
            let summands = |numbers, with, channels| Summands {
                numbers,
                keys: keys.clone(),
                lanes: block.seen.rows.len(),
                with,
                channels,
            };
            let whole = tile.keys.start..tile.keys.start + KEYS;
            let (channels, values) = (self.plan.sizes.channels, self.plan.sizes.value_channels);
            // SAFETY: everything was packed with its channels, and there is room for whole tiles.
            unsafe {
                if self.computes_values() {
                    let summands = summands(step.weights, columns.grad_pairs, values);
                    (tiles.add_by_key)(summands, value_sums.rows(whole.clone()));
                }
                if self.computes_keys() {
                    let summands = summands(step.logit_grads, columns.query_pairs, channels);
                    (tiles.add_by_key)(summands, key_sums.rows(whole));
                }
                if self.computes_queries() {
                    let summands = summands(step.logit_grads, rows.transposed_keys, channels);
                    (tiles.add_by_query)(summands, (&mut *block.sums).into());
                }
            }
            return;
        }
        let counted = tile.keys.start + keys.start..tile.keys.start + keys.end;
        let key_rows = tile.key_rows.after(keys.start);
        if self.computes_values() {
            let out = value_sums.rows(counted.clone());
            let right = block.grad_rows;
            let columns = self.plan.sizes.value_channels;
            self.add_by_key(weights, right, out, columns, seen.as_ref());
        }
        if self.computes_keys() {
            let out = key_sums.rows(counted);
            let right = block.query_rows;
            let columns = self.plan.sizes.channels;
            self.add_by_key(logit_grads, right, out, columns, seen.as_ref());
        }
        if !self.computes_queries() {
            return;
        }
        let Some(seen) = seen else {
            return self.cpu.run(Product::<_, ADDED> {
                left: key_rows.first,
                row: 1,
                step: key_rows.stride,
                right: logit_grads.into(),
                columns: block.seen.rows.len(),
                out: (&mut block.sums[..self.plan.sizes.channels]).into(),
                factors: &[],
            });
        };
        for (key, (seen, Lane(grads))) in seen.iter().zip(logit_grads).enumerate() {
            let sums = block.sums[..self.plan.sizes.channels].iter_mut();
            for (channel, Lane(sums)) in sums.enumerate() {
                // SAFETY: the key is one of the tile, the channel one of its.
                let number = unsafe { *key_rows.after(key).first.add(channel) };
                for lane in lanes_of(*seen) {
                    sums[lane] = grads[lane].fused(number, sums[lane]);
                }
            }
        }
    }

    /// Adds `numbers`, one per key and lane, times `right`, one row per lane, to `out`, one row per key. Where it is said
    /// which lanes see a key, only those are added: a weight of 0 does not hide infinity or NaN.
    fn add_by_key(
        &self,
        numbers: &[Lane<E::Accumulator>],
        right: Matrix<'_, E::Accumulator>,
        out: MatrixMut<'_, E::Accumulator>,
        columns: usize,
        seen: Option<&[u64; KEYS]>,
    ) {
        let Some(seen) = seen else {
            return self.cpu.run(Product::<_, ADDED> {
                left: Lane::numbers(numbers).as_ptr(),
                row: QUERIES as isize,
                step: 1,
                right,
                out,
                factors: &[],
                columns,
            });
        };
        let rows = out.numbers.chunks_mut(out.stride);
        for ((Lane(numbers), seen), sums) in numbers.iter().zip(seen).zip(rows) {
            for lane in lanes_of(*seen) {
                let row = &right.numbers[lane * right.stride..][..columns];
                for (sum, &number) in sums.iter_mut().zip(row) {
                    *sum = numbers[lane].fused(number, *sum);
                }
            }
        }
    }

    /// Writes the gradients of a block's queries.
    fn store(&self, block: Block<'_, E::Accumulator>) {
        let Some(tensor) = &self.plan.grad_query else {
            return;
        };
        let sums = &mut block.sums[..self.plan.sizes.channels];
        for Lane(sums) in sums.iter_mut() {
            for sum in sums {
                *sum = *sum * self.plan.scale;
            }
        }
        self.cpu.run(Collect {
            from: sums,
            divisors: &Lane([E::Accumulator::ONE; QUERIES]),
            of: block.seen.of,
            rows: block.seen.rows,
            tensor,
        });
    }

    /// Writes the gradients of some keys and values.
    fn store_of_keys(
        &self,
        key_sums: &mut KeySums<'_, E::Accumulator>,
        value_sums: &mut KeySums<'_, E::Accumulator>,
        keys: Range<usize>,
    ) {
        if let (Some(tensor), true) = (&self.plan.grad_key, self.computes_keys()) {
            self.store_sums(key_sums, self.plan.scale, tensor, keys.clone());
        }
        if let (Some(tensor), true) = (&self.plan.grad_value, self.computes_values()) {
            self.store_sums(value_sums, E::Accumulator::ONE, tensor, keys);
        }
    }

    fn store_sums(
        &self,
        sums: &mut KeySums<'_, E::Accumulator>,
        factor: E::Accumulator,
        tensor: &Raw<E, 4>,
        keys: Range<usize>,
    ) {
        let [.., row, channel] = tensor.strides;
        let (first, count, channels) = (keys.start, keys.len(), sums.channels);
        let MatrixMut { numbers, stride } = sums.rows(keys);
        self.cpu.run(StoreRows {
            from: Matrix { numbers, stride },
            factor,
            channels,
            to: tensor.at([self.sequence, self.head, first]),
            strides: [row, channel],
            count,
        });
    }
}

/// The lanes whose bits are set.
fn lanes_of(bits: u64) -> impl Iterator<Item = usize> {
    (0..QUERIES).filter(move |lane| bits >> lane & 1 == 1)
}
