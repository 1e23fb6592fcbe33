//! Dense attention on the CPU: how the work is split over threads.
//!
//! A task is a few blocks of [`QUERIES`] rows that share a head of keys and values. Queries are in the lanes of vectors,
//! so keys and values are used as they are in memory, one number at a time for all queries, and the softmax needs no sum
//! across lanes. Keys are processed in steps of [`lanes::KEYS`], aligned to multiples of it, so a query's result depends only on
//! the keys it sees, never on its neighbours in the block or the number of threads. 16-bit types are
//! multiplied in `tiles` instead where there is AMX, split into tasks the same way.

mod backward;
mod block;
mod lanes;
mod mask;
mod plan;
mod product;
mod rows;
mod seen;
mod softmax;
mod task;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;
mod walk;

use std::ops::Range;
use std::sync::Mutex;

use self::lanes::QUERIES;
use self::plan::Plan;
use self::task::Task;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::simd::Simd;
use super::simd::Vectorized;
use super::workspace::{lock, workspaces};
use super::{Cpu, writes_nothing};
use crate::dense::{
    Backward, Forward, ForwardResults, Gradients, Implementation, Inputs, Options, Outputs, Sizes,
};
use crate::dtype::{DType, bf16, f16};
use crate::error::Result;
use crate::place::Place;
use crate::prepared::Prepared;
use crate::tensor::View;
use crate::tuning::Class;
use crate::tuning::spaces::cpu::DENSE_FORWARD;

/// Multiply-adds that take as long as one channel of one sample of deformable attention.
const PRODUCTS_PER_SAMPLE: usize = 8;

impl Implementation for Cpu {
    fn prepare_forward<'a>(
        &self,
        inputs: Inputs<'a>,
        options: Options,
        outputs: Outputs<'a>,
    ) -> Result<Prepared<'a>> {
        let call = Forward::new(inputs, options, outputs)?;
        call.problem.expect_in(Place::Host)?;
        let cpu = *self;
        Ok(Prepared::new(0, move |_| cpu.dense_forward(&call)))
    }

    fn prepare_backward<'a>(
        &self,
        inputs: Inputs<'a>,
        options: Options,
        results: ForwardResults<'a>,
        grad_out: View<'a>,
        gradients: Gradients<'a>,
    ) -> Result<Prepared<'a>> {
        let call = Backward::new(inputs, options, results, grad_out, gradients)?;
        call.problem.expect_in(Place::Host)?;
        let cpu = *self;
        Ok(Prepared::new(0, move |_| cpu.dense_backward(&call)))
    }
}

impl Cpu {
    // Planned at launch, because the plan depends on the number of threads there.
    fn dense_forward(&self, call: &Forward<'_>) -> Result<()> {
        // There is an LSE where there is an output: it has a channel or more.
        if writes_nothing([&call.outputs.out]) {
            return Ok(());
        }
        let problem = &call.problem;
        let class = Class::of_dense(problem.sizes(), &problem.options().mask);
        let cpu = self.tuned(&DENSE_FORWARD, class, problem.dtype());
        match problem.dtype() {
            DType::F16 => cpu.attend_16_bit::<f16>(call),
            DType::BF16 => cpu.attend_16_bit::<bf16>(call),
            DType::F32 => cpu.attend::<f32>(call),
            DType::F64 => cpu.attend::<f64>(call),
        }
    }

    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    fn attend_16_bit<E: Vectorized>(&self, call: &Forward<'_>) -> Result<()> {
        self.attend::<E>(call)
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn attend_16_bit<E: tiles::Split>(&self, call: &Forward<'_>) -> Result<()> {
        let split = self.split(call.problem.sizes(), tiles::LONGER_TASKS);
        let plan = Plan::<E>::new(call, split.blocks);
        if self.simd != Simd::Amx || !tiles::serves(&plan) {
            return self.attend::<E>(call);
        }
        let length = tiles::workspace::<E>(&plan.sizes, split.blocks * QUERIES);
        split.run(self, length, |place, rows, memory| {
            memory.resize(length, tiles::Line::ZERO);
            // SAFETY: every row lies in the problem and belongs to one task; there is AMX, as `simd` says.
            unsafe { tiles::run(*self, &plan, place, rows, memory) };
        })
    }

    fn attend<E: Vectorized>(&self, call: &Forward<'_>) -> Result<()> {
        let split = self.split(call.problem.sizes(), 1);
        let plan = Plan::<E>::new(call, split.blocks);
        split.run(self, plan.workspace(), |[sequence, head], rows, memory| {
            let task = Task {
                cpu: *self,
                plan: &plan,
                sequence,
                head,
                rows,
            };
            // SAFETY: every row lies in the problem and belongs to one task.
            unsafe { task.run(memory) };
        })
    }

    /// How the rows of a problem are split, with tasks up to `longer` times as long as usual.
    fn split(&self, sizes: &Sizes, longer: usize) -> TaskSplit {
        let heads = sizes.batch * sizes.key_heads;
        let rows = sizes.queries * sizes.group();
        let threads = self.threads_for(sizes);
        let all_blocks = heads * rows.div_ceil(QUERIES);
        let tasks_each = self.tuning.dense_tasks_each.max(1);
        let most = self.tuning.task_blocks.max(1).saturating_mul(longer);
        TaskSplit {
            heads,
            key_heads: sizes.key_heads,
            rows,
            blocks: (all_blocks / tasks_each.saturating_mul(threads)).clamp(1, most),
            threads,
        }
    }

    /// The threads worth using.
    fn threads_for(&self, sizes: &Sizes) -> usize {
        let [b, h, s] = sizes.lse();
        let products = [h, s, sizes.keys, sizes.channels + sizes.value_channels]
            .into_iter()
            .fold(b, usize::saturating_mul);
        match products / PRODUCTS_PER_SAMPLE < self.tuning.serial_work {
            true => 1,
            false => self.threads(),
        }
    }
}

/// How the rows of a problem are split into tasks, each of one head of keys.
struct TaskSplit {
    /// Heads of keys of all sequences, and of one.
    heads: usize,
    key_heads: usize,
    /// Of one of these heads.
    rows: usize,
    /// Blocks of a task, at most.
    blocks: usize,
    threads: usize,
}

impl TaskSplit {
    /// Runs `task` for the rows of each, with the indices of sequence and head of keys, and `length` items of workspace, which
    /// may hold what another task has left there.
    fn run<M: Send>(
        &self,
        cpu: &Cpu,
        length: usize,
        task: impl Fn([usize; 2], Range<usize>, &mut Vec<M>) + Sync,
    ) -> Result<()> {
        let task_rows = self.blocks * QUERIES;
        let tasks_per_head = self.rows.div_ceil(task_rows);
        let tasks = self.heads * tasks_per_head;
        run_tasks(cpu, self.threads, tasks, length, |index, memory| {
            let (head, part) = (index / tasks_per_head, index % tasks_per_head);
            let rows = part * task_rows..((part + 1) * task_rows).min(self.rows);
            let place = [head / self.key_heads, head % self.key_heads];
            cpu.unless_cancelled(|| task(place, rows, memory))
        })
    }
}

/// Runs so many tasks on so many threads of the pool, or on this one, each with `length` items of workspace, which may hold what
/// another task has left there.
fn run_tasks<M: Send>(
    cpu: &Cpu,
    threads: usize,
    tasks: usize,
    length: usize,
    task: impl Fn(usize, &mut Vec<M>) -> Result<()> + Sync,
) -> Result<()> {
    let spare = Mutex::new(workspaces(threads.min(tasks), length)?);
    cpu.run_tasks(threads, tasks, |index| {
        let mut memory = lock(&spare).pop().expect("one per worker");
        let result = task(index, &mut memory);
        lock(&spare).push(memory);
        result
    })
}
