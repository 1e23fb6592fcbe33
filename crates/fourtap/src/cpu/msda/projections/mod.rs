//! Deformable attention from the projections on: samples are placed, a few rows at a time, and then read by the kernels
//! that also read given ones.

mod gradients;
mod place;
mod placed;
mod reference_gradients;
mod softmax;

use std::sync::Mutex;

use self::gradients::{Finish, ProjectedGradients};
use self::place::{Place, Projected};
use self::placed::{LevelLayout, Mask, Placed, RowLayout, SampleArrays};
use super::plan::Plan;
use super::samples::SampleGradients;
use super::scatter::LevelWalk;
use super::{Cpu, forward};
use crate::cpu::raw::Raw;
use crate::cpu::simd::Vectorized;
use crate::cpu::workspace::{lock, workspaces};
use crate::cpu::writes_nothing;
use crate::dtype::{DType, Real, bf16, f16};
use crate::error::Result;
use crate::msda::projections::{
    ProjectedBackward, ProjectedForward, ProjectedProblem, ProjectionGradients,
};
use crate::tensor::View;
use crate::tuning::Class;
use crate::tuning::spaces::cpu::{MSDA_BACKWARD, MSDA_FORWARD};

/// Bytes of placed samples that a task keeps, unless a single row has more: few enough to stay in the near cache, enough
/// rows that a pass over them mostly finds each coarse level there.
const PLACED_BYTES: usize = 3 << 18;

impl Cpu {
    pub(super) fn projected_forward(&self, call: &ProjectedForward<'_>) -> Result<()> {
        if writes_nothing([&call.out]) {
            return Ok(());
        }
        let dtype = call.problem.value().dtype();
        let cpu = self.tuned(&MSDA_FORWARD, Class::of_msda(call.problem.sizes()), dtype);
        match dtype {
            DType::F16 => cpu.forward_placed::<f16>(call),
            DType::BF16 => cpu.forward_placed::<bf16>(call),
            DType::F32 => cpu.forward_placed::<f32>(call),
            DType::F64 => cpu.forward_placed::<f64>(call),
        }
    }

    pub(super) fn projected_backward(&self, call: &ProjectedBackward<'_>) -> Result<()> {
        let ProjectionGradients {
            value,
            reference_points,
            sampling_offsets,
            attention_logits,
        } = &call.gradients;
        let outputs = [value, reference_points, sampling_offsets, attention_logits];
        if writes_nothing(outputs.into_iter().flatten()) {
            return Ok(());
        }
        let dtype = call.problem.value().dtype();
        let cpu = self.tuned(&MSDA_BACKWARD, Class::of_msda(call.problem.sizes()), dtype);
        match dtype {
            DType::F16 => cpu.backward_placed::<f16>(call),
            DType::BF16 => cpu.backward_placed::<bf16>(call),
            DType::F32 => cpu.backward_placed::<f32>(call),
            DType::F64 => cpu.backward_placed::<f64>(call),
        }
    }

    fn forward_placed<E: Vectorized>(&self, call: &ProjectedForward<'_>) -> Result<()> {
        let plan = plan::<E>(&call.problem, &call.inputs.value);
        let projected = Projected::<E>::new(&call.problem, &call.inputs);
        let mask = Mask::new(&call.inputs).filter(|_| !call.inputs.mask_is_applied);
        let out = Raw::new(call.out.as_mut_ptr(), call.out.layout());
        let rows = self.rows_per_placed_task(&plan);
        let layout = RowLayout::new(&plan, self.tuning.near_bytes, rows);
        let placed_length = 3 * layout.length;
        let length = placed_length + projected.scratch_length();
        let spare = self.task_memory(&plan, length)?;
        self.each_range(&plan.sizes, layout.rows, |rows| {
            let mut memory = lock(&spare).pop().expect("one per worker");
            memory.resize(length, E::Accumulator::ZERO);
            let (samples, scratch) = memory.split_at_mut(placed_length);
            let samples = SampleArrays::new(samples, rows.start);
            let placed = placed(&call.problem, &samples, &mask);
            self.run(Place {
                projected: &projected,
                chunks: &layout.chunks,
                whole_blocks: true,
                to: &samples,
                scratch,
                rows: rows.clone(),
            });
            self.run(forward::Rows {
                plan: &plan,
                sampling: &placed,
                passes: &layout.passes,
                out,
                rows,
            });
            lock(&spare).push(memory);
        })
    }

    fn backward_placed<E: Vectorized>(&self, call: &ProjectedBackward<'_>) -> Result<()> {
        let plan = plan::<E>(&call.problem, &call.inputs.value);
        let projected = Projected::<E>::new(&call.problem, &call.inputs);
        let mask = Mask::new(&call.inputs);
        let grad_out = Raw::of(&call.grad_out);
        let rows = self.rows_per_placed_task(&plan);
        let layout = RowLayout::new(&plan, self.tuning.near_bytes, rows);
        let placed_length = 3 * layout.length;
        // All memory is there before anything is written.
        let gradients = ProjectedGradients::new(&call.problem, &call.gradients)?;
        let length = 2 * placed_length + projected.scratch_length();
        let spare = self.task_memory(&plan, length)?;

        if let Some(grad_value) = &call.gradients.value {
            let levels = LevelLayout::new(&plan);
            let [mut all]: [Vec<_>; 1] = workspaces(1, 3 * levels.length)?
                .try_into()
                .expect("one was asked for");
            all.resize(3 * levels.length, E::Accumulator::ZERO);
            let all = SampleArrays::new(&mut all, 0);
            let placed = Placed {
                gradients_of_value: true,
                ..placed(&call.problem, &all, &mask)
            };
            self.each_range(&plan.sizes, layout.rows, |rows| {
                let mut memory = lock(&spare).pop().expect("one per worker");
                memory.resize(length, E::Accumulator::ZERO);
                self.run(Place {
                    projected: &projected,
                    chunks: &levels.chunks,
                    whole_blocks: false,
                    to: &all,
                    scratch: &mut memory,
                    rows,
                });
                lock(&spare).push(memory);
            })?;
            let walk = |level| LevelWalk::new(&plan, level, levels.places(level));
            let walks: Vec<_> = (0..plan.sizes.levels).map(walk).collect();
            self.grad_value(&plan, &placed, &walks, grad_out, grad_value)?;
        }
        if !gradients.are_wanted() {
            return Ok(());
        }
        let of_reading = mask.filter(|_| !call.inputs.mask_is_applied);
        self.each_range(&plan.sizes, layout.rows, |rows| {
            let mut memory = lock(&spare).pop().expect("one per worker");
            memory.resize(length, E::Accumulator::ZERO);
            let (samples, rest) = memory.split_at_mut(placed_length);
            let (by_sample, scratch) = rest.split_at_mut(placed_length);
            let samples = SampleArrays::new(samples, rows.start);
            let by_sample = SampleArrays::new(by_sample, rows.start);
            let placed = placed(&call.problem, &samples, &of_reading);
            self.run(Place {
                projected: &projected,
                chunks: &layout.chunks,
                whole_blocks: true,
                to: &samples,
                scratch,
                rows: rows.clone(),
            });
            self.run(SampleGradients {
                plan: &plan,
                sampling: &placed,
                passes: &layout.passes,
                grad_out,
                to: &by_sample,
                rows: rows.clone(),
            });
            self.run(Finish {
                projected: &projected,
                chunks: &layout.chunks,
                samples: &samples,
                by_sample: &by_sample,
                to: &gradients,
                scratch,
                rows,
            });
            lock(&spare).push(memory);
        })?;
        gradients.sum_references();
        Ok(())
    }

    /// As `rows_per_task`, and no more than have [`PLACED_BYTES`].
    fn rows_per_placed_task<E: Vectorized>(&self, plan: &Plan<E>) -> usize {
        let samples = plan.sizes.heads * plan.first_samples[plan.sizes.levels];
        let row_bytes = 3 * samples * size_of::<E::Accumulator>();
        self.rows_per_task(&plan.sizes)
            .min(PLACED_BYTES / row_bytes.max(1))
            .max(1)
    }

    /// Memory for `length` numbers for each thread that works on rows, which it fills with zeros.
    fn task_memory<E: Vectorized>(
        &self,
        plan: &Plan<E>,
        length: usize,
    ) -> Result<Mutex<Vec<Vec<E::Accumulator>>>> {
        let sizes = &plan.sizes;
        let workers = match self.is_small(sizes.samples(), sizes.channels) {
            true => 1,
            false => self.threads(),
        };
        Ok(Mutex::new(workspaces(workers, length)?))
    }
}

fn plan<E: Vectorized>(problem: &ProjectedProblem, value: &View<'_>) -> Plan<E> {
    Plan::new(
        problem.sizes(),
        problem.levels(),
        problem.first_samples().to_vec(),
        value,
    )
}

fn placed<'a, R>(
    problem: &ProjectedProblem,
    samples: &'a SampleArrays<'a, R>,
    mask: &'a Option<Mask<'a>>,
) -> Placed<'a, R> {
    Placed {
        arrays: samples,
        interpolation: problem.interpolation(),
        mask: mask.as_ref(),
        gradients_of_value: false,
    }
}
