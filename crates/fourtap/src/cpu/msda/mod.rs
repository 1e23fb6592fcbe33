//! Deformable attention on the CPU: how the work is split over threads.

mod coordinates;
mod forward;
mod geometry;
mod plan;
mod samples;
mod scatter;

use std::ops::Range;
use std::sync::Mutex;

use rayon::prelude::*;

use self::plan::Plan;
use self::samples::{Destination, SampleGradients};
use self::scatter::{LevelWalk, Scatter};
use super::Cpu;
use super::raw::Raw;
use super::simd::Vectorized;
use super::workspace::{lock, workspaces};
use crate::dtype::{DType, Real, bf16, f16};
use crate::error::Result;
use crate::msda::projections::{
    ProjectedBackward, ProjectedForward, ProjectionGradients, Projections,
};
use crate::msda::{Backward, Forward, Gradients, Implementation, Inputs, Sizes};
use crate::place::Place;
use crate::prepared::Prepared;
use crate::tensor::{View, ViewMut};
use crate::tuning::Class;
use crate::tuning::spaces::cpu::{MSDA_BACKWARD, MSDA_FORWARD};

/// Channels of samples a task of rows may have, however short its rows are: a few hundredths of a second, so
/// that a cancelled call ends soon.
const TASK_WORK: usize = 1 << 24;

impl Implementation for Cpu {
    fn prepare_forward<'a>(&self, inputs: Inputs<'a>, out: ViewMut<'a>) -> Result<Prepared<'a>> {
        let call = Forward::new(inputs, out)?;
        call.problem.expect_in(Place::Host)?;
        let cpu = *self;
        Ok(Prepared::new(0, move |_| cpu.msda_forward(&call)))
    }

    fn prepare_backward<'a>(
        &self,
        inputs: Inputs<'a>,
        grad_out: View<'a>,
        gradients: Gradients<'a>,
    ) -> Result<Prepared<'a>> {
        let call = Backward::new(inputs, grad_out, gradients)?;
        call.problem.expect_in(Place::Host)?;
        let cpu = *self;
        Ok(Prepared::new(0, move |_| cpu.msda_backward(&call)))
    }

    fn prepare_projected_forward<'a>(
        &self,
        inputs: Projections<'a>,
        out: ViewMut<'a>,
    ) -> Result<Prepared<'a>> {
        let call = ProjectedForward::new(inputs, out)?;
        call.problem.expect_in(Place::Host)?;
        let cpu = *self;
        Ok(Prepared::new(0, move |_| cpu.projected_forward(&call)))
    }

    fn prepare_projected_backward<'a>(
        &self,
        inputs: Projections<'a>,
        grad_out: View<'a>,
        gradients: ProjectionGradients<'a>,
    ) -> Result<Prepared<'a>> {
        let call = ProjectedBackward::new(inputs, grad_out, gradients)?;
        call.problem.expect_in(Place::Host)?;
        let cpu = *self;
        Ok(Prepared::new(0, move |_| cpu.projected_backward(&call)))
    }
}

impl Cpu {
    fn projected_forward(&self, _call: &ProjectedForward<'_>) -> Result<()> {
        todo!()
    }

    fn projected_backward(&self, _call: &ProjectedBackward<'_>) -> Result<()> {
        todo!()
    }
}

impl Cpu {
    // Planned at launch, because the plan depends on the number of threads there.
    fn msda_forward(&self, call: &Forward<'_>) -> Result<()> {
        let dtype = call.problem.value().dtype();
        let cpu = self.tuned(&MSDA_FORWARD, Class::of_msda(call.problem.sizes()), dtype);
        match dtype {
            DType::F16 => cpu.forward::<f16>(call),
            DType::BF16 => cpu.forward::<bf16>(call),
            DType::F32 => cpu.forward::<f32>(call),
            DType::F64 => cpu.forward::<f64>(call),
        }
    }

    fn msda_backward(&self, call: &Backward<'_>) -> Result<()> {
        let dtype = call.problem.value().dtype();
        let cpu = self.tuned(&MSDA_BACKWARD, Class::of_msda(call.problem.sizes()), dtype);
        match dtype {
            DType::F16 => cpu.backward::<f16>(call),
            DType::BF16 => cpu.backward::<bf16>(call),
            DType::F32 => cpu.backward::<f32>(call),
            DType::F64 => cpu.backward::<f64>(call),
        }
    }

    fn forward<E: Vectorized>(&self, call: &Forward<'_>) -> Result<()> {
        let plan = Plan::<E>::new(&call.problem, &call.inputs);
        let passes = plan.passes(self.tuning.near_bytes);
        let out = Raw::new(call.out.as_mut_ptr(), call.out.layout());
        self.each_range(&plan.sizes, |rows| {
            self.run(forward::Rows {
                plan: &plan,
                passes: &passes,
                out,
                rows,
            })
        })
    }

    fn backward<E: Vectorized>(&self, call: &Backward<'_>) -> Result<()> {
        let plan = Plan::<E>::new(&call.problem, &call.inputs);
        let grad_out = Raw::of(&call.grad_out);
        let gradients = &call.gradients;
        // The only part that can run out of memory comes first, before anything is written.
        if let Some(grad_value) = &gradients.value {
            self.grad_value(&plan, grad_out, grad_value)?;
        }
        if gradients.sampling_locations.is_some() || gradients.attention_weights.is_some() {
            let passes = plan.passes(self.tuning.near_bytes);
            let grad_locations = gradients
                .sampling_locations
                .as_ref()
                .map(|grad| Destination::new(grad, &passes));
            let grad_weights = gradients
                .attention_weights
                .as_ref()
                .map(|grad| Destination::new(grad, &passes));
            self.each_range(&plan.sizes, |rows| {
                self.run(SampleGradients {
                    plan: &plan,
                    passes: &passes,
                    grad_out,
                    grad_locations: &grad_locations,
                    grad_weights: &grad_weights,
                    rows,
                });
            })?;
        }
        Ok(())
    }

    fn grad_value<E: Vectorized>(
        &self,
        plan: &Plan<E>,
        grad_out: Raw<E, 3>,
        grad_value: &ViewMut<'_>,
    ) -> Result<()> {
        let sizes = plan.sizes;
        let grad_value = Raw::new(grad_value.as_mut_ptr(), grad_value.layout());
        let walks: Vec<_> = (0..sizes.levels)
            .map(|level| {
                let (queries, slots) = plan.level_slots(level);
                LevelWalk { slots, queries }
            })
            .collect();
        // However few samples there are, every pixel is written.
        let pixels = sizes.images * sizes.pixels * sizes.heads;
        let serial = self.is_small(sizes.samples().saturating_add(pixels), sizes.channels);
        let bands = self.bands::<E::Accumulator>(
            plan,
            if serial {
                1
            } else {
                rayon::current_num_threads()
            },
        );
        let longest = bands.iter().map(|(_, band)| band.len()).max().unwrap_or(0) * sizes.channels;
        let tasks = 0..sizes.images * sizes.heads * bands.len();
        let workers = if serial {
            1
        } else {
            rayon::current_num_threads().min(tasks.len())
        };
        let spare = Mutex::new(workspaces::<E::Accumulator>(workers, longest)?);
        let scatter = |task: usize| {
            let mut sums = lock(&spare).pop().expect("one per worker");
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
        let scatter = |task| self.unless_cancelled(|| scatter(task));
        if serial {
            tasks.into_iter().try_for_each(scatter)
        } else {
            tasks.into_par_iter().with_max_len(1).try_for_each(scatter)
        }
    }

    /// Splits the levels into bands of pixels: to keep the sums in cache, and to give work to every thread.
    fn bands<R: Real>(
        &self,
        plan: &Plan<impl Vectorized>,
        threads: usize,
    ) -> Vec<(usize, Range<usize>)> {
        let sizes = plan.sizes;
        let whole = (sizes.images * sizes.heads * sizes.levels).max(1);
        let to_share = if threads == 1 {
            1
        } else {
            self.tasks(threads).div_ceil(whole)
        };
        let mut bands = Vec::new();
        for (index, level) in plan.problem().levels().iter().enumerate() {
            let to_cache = (level.pixels() * sizes.channels * size_of::<R>())
                .div_ceil(self.tuning.band_bytes.max(1))
                .min(self.tuning.most_bands);
            let length = level
                .pixels()
                .div_ceil(to_cache.max(to_share).max(1))
                .max(1);
            let end = level.start + level.pixels();
            bands.extend(
                (level.start..end)
                    .step_by(length)
                    .map(|start| (index, start..(start + length).min(end))),
            );
        }
        bands
    }

    /// The minimum number of tasks: enough that no thread waits long for the last.
    fn tasks(&self, threads: usize) -> usize {
        self.tuning.tasks_each.max(1).saturating_mul(threads)
    }

    fn is_small(&self, samples: usize, channels: usize) -> bool {
        samples.saturating_mul(channels) < self.tuning.serial_work
    }

    /// Calls `work` with ranges that cover all (image, query) rows, on all threads if that is worth it.
    fn each_range(&self, sizes: &Sizes, work: impl Fn(Range<usize>) + Sync) -> Result<()> {
        let rows = sizes.images * sizes.queries;
        if self.is_small(sizes.samples(), sizes.channels) {
            work(0..rows);
            return Ok(());
        }
        let row_bytes = sizes.heads * sizes.channels * size_of::<f32>();
        let even = rows.div_ceil(self.tasks(rayon::current_num_threads()));
        let row_work = [sizes.levels, sizes.points, sizes.channels]
            .into_iter()
            .fold(sizes.heads, usize::saturating_mul);
        let length = (self.tuning.task_bytes / row_bytes.max(1))
            .min(TASK_WORK / row_work.max(1))
            .min(even)
            .max(1);
        (0..rows.div_ceil(length))
            .into_par_iter()
            .try_for_each(|task| {
                self.unless_cancelled(|| work(task * length..((task + 1) * length).min(rows)))
            })
    }
}
