//! Dense attention on the CPU: how the work is split over threads.
//!
//! A task is a few blocks of [`QUERIES`] rows that share a head of keys and values. Queries are in the lanes of vectors,
//! so keys and values are used as they are in memory, one number at a time for all queries, and the softmax needs no sum
//! across lanes. Keys are processed in steps of [`lanes::KEYS`], aligned to multiples of it, so a query's result depends only on
//! the keys it sees, never on its neighbours in the block or the number of threads.

mod block;
mod lanes;
mod plan;
mod product;
mod rows;
mod softmax;
mod task;
mod walk;

use std::sync::Mutex;

use rayon::prelude::*;

use self::lanes::QUERIES;
use self::plan::Plan;
use self::task::Task;
use super::Cpu;
use super::simd::Vectorized;
use super::workspace::{lock, workspaces};
use crate::dense::{Forward, Implementation, Inputs, Options, Outputs, Sizes};
use crate::dtype::{DType, bf16, f16};
use crate::error::Result;
use crate::place::Place;
use crate::prepared::Prepared;
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
}

impl Cpu {
    // Planned at launch, because the plan depends on the number of threads there.
    fn dense_forward(&self, call: &Forward<'_>) -> Result<()> {
        let problem = &call.problem;
        let class = Class::of_dense(problem.sizes(), &problem.options().mask);
        let cpu = self.tuned(&DENSE_FORWARD, class, problem.dtype());
        match problem.dtype() {
            DType::F16 => cpu.attend::<f16>(call),
            DType::BF16 => cpu.attend::<bf16>(call),
            DType::F32 => cpu.attend::<f32>(call),
            DType::F64 => cpu.attend::<f64>(call),
        }
    }

    fn attend<E: Vectorized>(&self, call: &Forward<'_>) -> Result<()> {
        let sizes = *call.problem.sizes();
        let (heads, rows) = (sizes.batch * sizes.key_heads, sizes.queries * sizes.group());
        let serial = self.is_small_dense(&sizes);
        let threads = if serial {
            1
        } else {
            rayon::current_num_threads()
        };
        let all_blocks = heads * rows.div_ceil(QUERIES);
        let tasks_each = self.tuning.dense_tasks_each.max(1);
        let most = self.tuning.task_blocks.max(1);
        let blocks = (all_blocks / tasks_each.saturating_mul(threads)).clamp(1, most);
        let task_rows = blocks * QUERIES;
        let tasks_a_head = rows.div_ceil(task_rows);
        let tasks = 0..heads * tasks_a_head;
        let plan = Plan::<E>::new(call, blocks);
        let spare = Mutex::new(workspaces(threads.min(tasks.len()), plan.workspace())?);
        let attend = |task: usize| {
            let mut workspace = lock(&spare).pop().expect("one per worker");
            let (sequence_head, part) = (task / tasks_a_head, task % tasks_a_head);
            let task = Task {
                cpu: *self,
                plan: &plan,
                sequence: sequence_head / sizes.key_heads,
                head: sequence_head % sizes.key_heads,
                rows: part * task_rows..((part + 1) * task_rows).min(rows),
            };
            // SAFETY: every row lies in the problem and belongs to one task.
            unsafe { task.run(&mut workspace) };
            lock(&spare).push(workspace);
        };
        let attend = |task| self.unless_cancelled(|| attend(task));
        if serial {
            tasks.into_iter().try_for_each(attend)
        } else {
            tasks.into_par_iter().with_max_len(1).try_for_each(attend)
        }
    }

    fn is_small_dense(&self, sizes: &Sizes) -> bool {
        let [b, h, s] = sizes.lse();
        let products = [h, s, sizes.keys, sizes.channels + sizes.value_channels]
            .into_iter()
            .fold(b, usize::saturating_mul);
        products / PRODUCTS_PER_SAMPLE < self.tuning.serial_work
    }
}
