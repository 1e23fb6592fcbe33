//! Deformable attention on the CPU: how the work is split over threads.

mod coordinates;
mod forward;
mod geometry;
mod given;
mod plan;
mod projections;
mod samples;
mod sampling;
mod scatter;

use std::ops::Range;
use std::sync::Mutex;

use self::given::Given;
use self::plan::Plan;
use self::samples::{GivenGradients, Gradient, SampleGradients};
use self::sampling::Sampling;
use self::scatter::{LevelWalk, Scatter};
use super::raw::{self, Raw};
use super::simd::Vectorized;
use super::workspace::{lock, workspaces};
use super::{Cpu, writes_nothing};
use crate::bool_view::BoolView;
use crate::dtype::{DType, Real, bf16, f16};
use crate::error::{Error, Result};
use crate::msda::projections::{
    ProjectedBackward, ProjectedForward, ProjectionGradients, Projections, ZeroPixels,
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

    fn prepare_zero_pixels<'a>(
        &self,
        value: ViewMut<'a>,
        mask: BoolView<'a>,
    ) -> Result<Prepared<'a>> {
        let call = ZeroPixels::new(value, mask)?;
        if call.value.place() != Place::Host {
            return Err(Error::Place {
                tensor: "value",
                expected: Place::Host.to_string(),
                found: call.value.place(),
            });
        }
        Ok(Prepared::new(0, move |_| {
            zero_pixels(&call);
            Ok(())
        }))
    }
}

impl Cpu {
    // Planned at launch, because the plan depends on the number of threads there.
    fn msda_forward(&self, call: &Forward<'_>) -> Result<()> {
        if writes_nothing([&call.out]) {
            return Ok(());
        }
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
        let Gradients {
            value,
            sampling_locations,
            attention_weights,
        } = &call.gradients;
        let outputs = [value, sampling_locations, attention_weights];
        if writes_nothing(outputs.into_iter().flatten()) {
            return Ok(());
        }
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
        let plan = Given::<E>::plan(&call.problem, &call.inputs);
        let given = Given::new(&call.inputs);
        let passes = given.passes(&plan, self.tuning.near_bytes);
        let out = Raw::new(call.out.as_mut_ptr(), call.out.layout());
        let length = self.rows_per_task(&plan.sizes);
        self.each_range(&plan.sizes, length, |rows| {
            self.run(forward::Rows {
                plan: &plan,
                sampling: &given,
                passes: &passes,
                out,
                rows,
            })
        })
    }

    fn backward<E: Vectorized>(&self, call: &Backward<'_>) -> Result<()> {
        let plan = Given::<E>::plan(&call.problem, &call.inputs);
        let given = Given::new(&call.inputs);
        let grad_out = Raw::of(&call.grad_out);
        let gradients = &call.gradients;
        // The only part that can run out of memory comes first, before anything is written.
        if let Some(grad_value) = &gradients.value {
            let walks = given.walks(&plan);
            self.grad_value(&plan, &given, &walks, grad_out, grad_value)?;
        }
        if gradients.sampling_locations.is_some() || gradients.attention_weights.is_some() {
            let passes = given.passes(&plan, self.tuning.near_bytes);
            let to = GivenGradients::<E> {
                locations: (gradients.sampling_locations.as_ref())
                    .map(|grad| Gradient::new(grad, &passes)),
                weights: (gradients.attention_weights.as_ref())
                    .map(|grad| Gradient::new(grad, &passes)),
            };
            let length = self.rows_per_task(&plan.sizes);
            self.each_range(&plan.sizes, length, |rows| {
                self.run(SampleGradients {
                    plan: &plan,
                    sampling: &given,
                    passes: &passes,
                    grad_out,
                    to: &to,
                    rows,
                });
            })?;
        }
        Ok(())
    }

    /// `walks` has one for each level.
    fn grad_value<E: Vectorized, S: Sampling<E>>(
        &self,
        plan: &Plan<E>,
        sampling: &S,
        walks: &[LevelWalk<E::Accumulator, S::Places>],
        grad_out: Raw<E, 3>,
        grad_value: &ViewMut<'_>,
    ) -> Result<()> {
        let sizes = plan.sizes;
        let grad_value = Raw::new(grad_value.as_mut_ptr(), grad_value.layout());
        // However few samples there are, every pixel is written.
        let pixels = sizes.images * sizes.pixels * sizes.heads;
        let serial = self.is_small(sizes.samples().saturating_add(pixels), sizes.channels);
        let threads = if serial { 1 } else { self.threads() };
        let bands = self.bands::<E::Accumulator>(plan, threads);
        let longest = bands.iter().map(|(_, band)| band.len()).max().unwrap_or(0) * sizes.channels;
        let tasks = sizes.images * sizes.heads * bands.len();
        let spare = Mutex::new(workspaces::<E::Accumulator>(threads.min(tasks), longest)?);
        let scatter = |task: usize| {
            let mut sums = lock(&spare).pop().expect("one per worker");
            let (image_head, (level, band)) = (task / bands.len(), &bands[task % bands.len()]);
            sums.clear();
            sums.resize(band.len() * sizes.channels, E::Accumulator::ZERO);
            self.run(Scatter {
                plan,
                sampling,
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
        self.run_tasks(threads, tasks, |task| {
            self.unless_cancelled(|| scatter(task))
        })
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
        for (index, level) in plan.levels.iter().enumerate() {
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

    /// How many (image, query) rows a task has.
    fn rows_per_task(&self, sizes: &Sizes) -> usize {
        let rows = sizes.images * sizes.queries;
        if self.is_small(sizes.samples(), sizes.channels) {
            return rows.max(1);
        }
        let row_bytes = sizes.heads * sizes.channels * size_of::<f32>();
        let even = rows.div_ceil(self.tasks(self.threads()));
        let row_work = [sizes.levels, sizes.points, sizes.channels]
            .into_iter()
            .fold(sizes.heads, usize::saturating_mul);
        (self.tuning.task_bytes / row_bytes.max(1))
            .min(TASK_WORK / row_work.max(1))
            .min(even)
            .max(1)
    }

    /// Calls `work` with ranges of `length` that cover all (image, query) rows, on all threads if that is worth it.
    fn each_range(
        &self,
        sizes: &Sizes,
        length: usize,
        work: impl Fn(Range<usize>) + Sync,
    ) -> Result<()> {
        let rows = sizes.images * sizes.queries;
        let range = |task: usize| task * length..((task + 1) * length).min(rows);
        let tasks = rows.div_ceil(length);
        if self.is_small(sizes.samples(), sizes.channels) {
            (0..tasks).for_each(|task| work(range(task)));
            return Ok(());
        }
        self.run_tasks(self.threads(), tasks, |task| {
            self.unless_cancelled(|| work(range(task)))
        })
    }
}

/// Writes zeros where the mask is true.
fn zero_pixels(call: &ZeroPixels<'_>) {
    let layout = call.value.layout();
    let shape = layout.shape();
    let (sizes, strides) = (shape.sizes(), layout.strides());
    let bytes = layout.dtype().size();
    let first = call.value.as_mut_ptr();
    let at = |index: [usize; 4]| {
        let offset = raw::offset(&index, strides);
        first.wrapping_offset(offset.wrapping_mul(bytes as isize))
    };
    for n in 0..sizes[0] {
        for s in 0..sizes[1] {
            // SAFETY: the mask was checked with the call to be in host memory and of shape [N, S].
            if !unsafe { call.mask.get([n, s]) } {
                continue;
            }
            for m in 0..sizes[2] {
                // SAFETY: these elements lie in the tensor, which is ours to write; zero is zero in every element type.
                unsafe {
                    if strides[3] == 1 {
                        at([n, s, m, 0]).write_bytes(0, sizes[3] * bytes);
                    } else {
                        (0..sizes[3]).for_each(|d| at([n, s, m, d]).write_bytes(0, bytes));
                    }
                }
            }
        }
    }
}
