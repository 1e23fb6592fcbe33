//! Gradients of dense attention on the CPU: how the work is split over threads.
//!
//! The weights are computed again, a block of [`QUERIES`] rows and a tile of [`KEYS`] keys at a time, from the LSE that forward has
//! kept. Where there are enough heads of keys, a task is one of them: five matrix products for each pair of block and tile, and sums
//! of all its keys and values in memory. Where there are not, the gradients of keys and values are computed in tasks of some keys, those
//! of queries in tasks of some rows: seven products, and the same bits. 16-bit types are multiplied in tiles where there is AMX.

mod bias;
mod block;
mod kernels;
mod key_tile;
mod plan;
mod task;
mod tile_products;

pub(super) use self::tile_products::{Sides, Summands, TensorRows, TileProducts};

use self::bias::{BiasGradient, BiasSums};
use self::plan::Plan;
use self::task::{Task, Which};
use super::lanes::{KEYS, Lane, QUERIES};
use super::run_tasks;
use crate::cpu::simd::Vectorized;
use crate::cpu::{Cpu, writes_nothing};
use crate::dense::Backward;
use crate::dtype::{DType, bf16, f16};
use crate::error::Result;

/// Matrix products for each pair of block and tile if one task computes all gradients, and if two do.
const PRODUCTS: [usize; 2] = [5, 7];

/// Tasks per thread, if heads are split: masks make some shorter than others.
const TASKS_EACH: usize = 4;

impl Cpu {
    // Planned at launch, because the plan depends on the number of threads there.
    pub(super) fn dense_backward(&self, call: &Backward<'_>) -> Result<()> {
        let gradients = call.gradients.named();
        if writes_nothing(gradients.into_iter().filter_map(|(_, view)| view)) {
            return Ok(());
        }
        match call.problem.dtype() {
            DType::F16 => self.gradients_of_16_bit::<f16>(call),
            DType::BF16 => self.gradients_of_16_bit::<bf16>(call),
            DType::F32 => self.gradients::<f32>(call, None),
            DType::F64 => self.gradients::<f64>(call, None),
        }
    }

    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    fn gradients_of_16_bit<E: Vectorized>(&self, call: &Backward<'_>) -> Result<()> {
        self.gradients::<E>(call, None)
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn gradients_of_16_bit<E: super::tiles::Split>(&self, call: &Backward<'_>) -> Result<()> {
        let has_tiles = self.simd == crate::cpu::Simd::Amx;
        self.gradients::<E>(call, has_tiles.then(super::tiles::products))
    }

    fn gradients<E: Vectorized>(
        &self,
        call: &Backward<'_>,
        tiles: Option<TileProducts<E>>,
    ) -> Result<()> {
        let plan = Plan::<E>::new(call, tiles);
        let threads = self.threads_for(&plan.sizes);
        let of_keys = plan.grad_key.is_some() || plan.grad_value.is_some();
        match (plan.grad_query.is_some(), of_keys) {
            (true, true) if fills(plan.sizes.batch * plan.sizes.key_heads, threads) => {
                self.run_split(&plan, Which::All, threads)?;
            }
            (of_queries, of_keys) => {
                if of_keys {
                    self.run_split(&plan, Which::Keys, threads)?;
                }
                if of_queries {
                    self.run_split(&plan, Which::Queries, threads)?;
                }
            }
        }
        let (Some(view), Some(desc)) = (&call.gradients.bias, call.grad_bias()) else {
            return Ok(());
        };
        let sums = BiasSums {
            cpu: *self,
            plan: &plan,
            to: BiasGradient {
                first: view.as_mut_ptr(),
                desc,
            },
        };
        sums.run(|tasks, length, task| {
            run_tasks(self, threads, tasks, length, |index, memory| {
                self.unless_cancelled(|| task(index, memory))
            })
        })
    }

    /// Runs the tasks that compute these gradients.
    fn run_split<E: Vectorized>(
        &self,
        plan: &Plan<'_, E>,
        which: Which,
        threads: usize,
    ) -> Result<()> {
        let sizes = &plan.sizes;
        let heads = sizes.batch * sizes.key_heads;
        let rows = sizes.queries * sizes.group();
        let row_blocks = rows.div_ceil(QUERIES);
        let most_blocks = self.tuning.task_blocks.max(1);
        // As many tasks of a head as make enough tasks, but for one thread, for which one is.
        let wanted = match threads {
            1 => 1,
            _ => (TASKS_EACH * threads).div_ceil(heads.max(1)),
        };
        let (task_rows, task_keys) = match which {
            Which::All => (rows, sizes.keys),
            Which::Keys => (rows, sizes.keys.div_ceil(KEYS).div_ceil(wanted) * KEYS),
            Which::Queries => (row_blocks.div_ceil(wanted) * QUERIES, sizes.keys),
        };
        let blocks = most_blocks.min(task_rows.div_ceil(QUERIES)).max(1);
        let row_parts = parts(rows, task_rows, which != Which::Queries);
        let key_parts = parts(sizes.keys, task_keys, which != Which::Keys);
        let part = |index: usize, length: usize, whole: usize| {
            (index * length).min(whole)..((index + 1) * length).min(whole)
        };
        let task_sizes = [task_rows.min(rows), task_keys.min(sizes.keys)];
        let length = Task::workspace(plan, task_sizes, blocks, which);
        let tasks = heads * row_parts * key_parts;
        run_tasks(
            self,
            threads,
            tasks,
            length,
            |index, memory: &mut Vec<Lane<_>>| {
                let (head, index) = (
                    index / (row_parts * key_parts),
                    index % (row_parts * key_parts),
                );
                let task = Task {
                    cpu: *self,
                    plan,
                    sequence: head / sizes.key_heads,
                    head: head % sizes.key_heads,
                    rows: part(index / key_parts, task_rows, rows),
                    keys: part(index % key_parts, task_keys, sizes.keys),
                    blocks,
                    which,
                };
                // SAFETY: rows and keys lie in the problem. Those of a task have gradients that no other writes: rows are split only
                // where those of queries are computed, keys only where those of keys and values are.
                unsafe { task.run(memory) }
            },
        )
    }
}

/// Parts of an axis, each of `length`; one where the axis is not split, even if it is empty.
fn parts(whole: usize, length: usize, is_whole: bool) -> usize {
    match is_whole {
        true => 1,
        false => whole.div_ceil(length.max(1)),
    }
}

/// Whether so many tasks keep the threads busy enough that splitting them, at two more products, would take longer.
fn fills(tasks: usize, threads: usize) -> bool {
    let [together, apart] = PRODUCTS;
    tasks.div_ceil(threads) * threads * together <= tasks * apart
}
