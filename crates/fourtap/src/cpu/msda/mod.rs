//! Deformable attention on the CPU: how the work is split over threads.

mod forward;
mod geometry;
mod order;
mod plan;
mod samples;
mod scatter;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;

use self::order::{Share, near_queries_together};
use self::plan::{Plan, Raw, Slots};
use self::samples::{Destination, SampleGradients};
use self::scatter::{LevelWalk, Scatter};
use super::Cpu;
use super::simd::Vectorized;
use crate::dtype::{DType, Element, Real, bf16, f16};
use crate::error::{Error, Result};
use crate::msda::{Backward, Forward, Sizes};
use crate::tensor::ViewMut;

/// Below this many samples times channels a call stays on its thread: waking others costs more than they save.
const SERIAL_WORK: usize = 1 << 16;

/// Samples times channels of one task: enough to drown its cost, few enough to share evenly.
const TASK_WORK: usize = 1 << 18;

/// Bytes of sums in one band, at most, while a level is not cut more than [`MOST_BANDS`] times for it.
const BAND_BYTES: usize = 1 << 20;

/// Every band walks all queries, so cutting finer stops paying.
const MOST_BANDS: usize = 4;

impl Cpu {
    pub(crate) fn msda_forward(&self, call: &Forward<'_>) -> Result<()> {
        match call.problem.value().dtype() {
            DType::F16 => self.forward::<f16>(call),
            DType::BF16 => self.forward::<bf16>(call),
            DType::F32 => self.forward::<f32>(call),
            DType::F64 => self.forward::<f64>(call),
        }
        Ok(())
    }

    pub(crate) fn msda_backward(&self, call: &Backward<'_>) -> Result<()> {
        match call.problem.value().dtype() {
            DType::F16 => self.backward::<f16>(call),
            DType::BF16 => self.backward::<bf16>(call),
            DType::F32 => self.backward::<f32>(call),
            DType::F64 => self.backward::<f64>(call),
        }
    }

    fn forward<E: Vectorized>(&self, call: &Forward<'_>) {
        let plan = Plan::<E>::new(&call.problem, &call.inputs);
        let slots = plan.query_slots();
        let out = Raw::new(call.out.as_mut_ptr(), call.out.layout());
        each_share(&plan, &slots, |rows| self.run(forward::Rows { plan: &plan, slots: &slots, out, rows }));
    }

    fn backward<E: Vectorized>(&self, call: &Backward<'_>) -> Result<()> {
        let plan = Plan::<E>::new(&call.problem, &call.inputs);
        let grad_out = Raw::of(&call.grad_out);
        let gradients = &call.gradients;
        // The only part that can fail comes first, before anything is written.
        if let Some(grad_value) = &gradients.value {
            self.grad_value(&plan, grad_out, grad_value)?;
        }
        if gradients.sampling_locations.is_some() || gradients.attention_weights.is_some() {
            let slots = plan.query_slots();
            let grad_locations = gradients.sampling_locations.as_ref().map(|grad| Destination::new(grad, &slots));
            let grad_weights = gradients.attention_weights.as_ref().map(|grad| Destination::new(grad, &slots));
            each_share(&plan, &slots, |rows| {
                self.run(SampleGradients {
                    plan: &plan,
                    slots: &slots,
                    grad_out,
                    grad_locations: &grad_locations,
                    grad_weights: &grad_weights,
                    rows,
                });
            });
        }
        Ok(())
    }

    fn grad_value<E: Vectorized>(&self, plan: &Plan<E>, grad_out: Raw<E, 3>, grad_value: &ViewMut<'_>) -> Result<()> {
        let sizes = plan.sizes;
        let grad_value = Raw::new(grad_value.as_mut_ptr(), grad_value.layout());
        let walks: Vec<_> = (0..sizes.levels)
            .map(|level| {
                let (queries, slots) = plan.level_slots(level);
                LevelWalk { slots, queries }
            })
            .collect();
        let serial = is_small(&sizes);
        let bands = bands::<E::Accumulator>(plan, if serial { 1 } else { rayon::current_num_threads() });
        let longest = bands.iter().map(|(_, band)| band.len()).max().unwrap_or(0) * sizes.channels;
        let tasks = 0..sizes.images * sizes.heads * bands.len();
        let workers = if serial { 1 } else { rayon::current_num_threads().min(tasks.len()) };
        let spare = Mutex::new(workspaces::<E::Accumulator>(workers, longest)?);
        let scatter = |task: usize| {
            let mut sums = lock(&spare).pop().expect("one a worker");
            let (image_head, (level, band)) = (task / bands.len(), &bands[task % bands.len()]);
            sums.clear();
            sums.resize(band.len() * sizes.channels, E::Accumulator::ZERO);
            self.run(Scatter {
                plan,
                walk: &walks[*level],
                grad_out,
                grad_value,
                image: image_head / sizes.heads,
                head: image_head % sizes.heads,
                band: band.clone(),
                sums: &mut sums,
            });
            lock(&spare).push(sums);
        };
        if serial {
            tasks.into_iter().for_each(scatter);
        } else {
            tasks.into_par_iter().with_max_len(1).for_each(scatter);
        }
        Ok(())
    }
}

/// One buffer a worker, allocated before anything is written, so that running out of memory loses nothing.
fn workspaces<R>(workers: usize, length: usize) -> Result<Vec<Vec<R>>> {
    let allocate = |_| {
        let mut buffer = Vec::new();
        let failed = |_| Error::OutOfMemory { bytes: workers.saturating_mul(length).saturating_mul(size_of::<R>()) };
        buffer.try_reserve_exact(length).map_err(failed).map(|()| buffer)
    };
    (0..workers).map(allocate).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Cuts the levels into bands of pixels: to keep the sums in cache, and to give every thread some.
fn bands<R: Real>(plan: &Plan<impl Vectorized>, threads: usize) -> Vec<(usize, Range<usize>)> {
    let sizes = plan.sizes;
    let whole = (sizes.images * sizes.heads * sizes.levels).max(1);
    let to_share = if threads == 1 { 1 } else { (4 * threads).div_ceil(whole) };
    let mut bands = Vec::new();
    for (index, level) in plan.problem().levels().iter().enumerate() {
        let to_cache = (level.pixels() * sizes.channels * size_of::<R>()).div_ceil(BAND_BYTES).min(MOST_BANDS);
        let length = level.pixels().div_ceil(to_cache.max(to_share).max(1)).max(1);
        let end = level.start + level.pixels();
        bands.extend((level.start..end).step_by(length).map(|start| (index, start..(start + length).min(end))));
    }
    bands
}

fn is_small(sizes: &Sizes) -> bool {
    sizes.samples().saturating_mul(sizes.channels) < SERIAL_WORK
}

/// Calls `work` with shares that make up all (image, query) rows, on all threads where that pays.
fn each_share<E: Element>(plan: &Plan<E>, slots: &[Slots<E::Accumulator>], work: impl Fn(Share<'_>) + Sync) {
    let sizes = plan.sizes;
    let rows = sizes.images * sizes.queries;
    if is_small(&sizes) {
        return work(Share { rows: 0..rows, order: None });
    }
    let order = near_queries_together(plan, slots);
    let order = order.as_deref();
    let per_row = (sizes.heads * sizes.levels * sizes.points).saturating_mul(sizes.channels).max(1);
    let length = TASK_WORK.div_ceil(per_row);
    (0..rows.div_ceil(length)).into_par_iter().for_each(|task| {
        let rows = task * length..((task + 1) * length).min(rows);
        work(Share { rows, order });
    });
}
