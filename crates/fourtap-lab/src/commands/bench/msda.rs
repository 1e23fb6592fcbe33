//! Benchmarks of deformable attention.

use fourtap::msda::Inputs;
use fourtap::{DType, View};

use super::{Bench, Counted};
use crate::cli::Direction;
use crate::error::{Error, Result};
use crate::generate;
use crate::record::{AnyProblem, DTypes, ProblemSizes};
use crate::roof::Least;
use crate::selection::{Benchmark, Numbers};
use crate::tensors::{GradOut, MappedFile, Placement, Source, Tensors};
use crate::trial::Trial;
use crate::workload::Workload;

impl Bench {
    /// Benchmarks of one distribution and element type, which share their numbers.
    pub(super) fn msda(&mut self, workload: &Workload, group: &[Benchmark]) -> Result<()> {
        let Some(
            first @ &Benchmark {
                numbers: Numbers::Points(distribution),
                dtype: Some(dtype),
                ..
            },
        ) = group.first()
        else {
            return Ok(());
        };
        let levels = workload.levels()?;
        let sizes = workload.sizes(&levels);
        let coordinates = self.coordinates.dtype(dtype);
        let problem = AnyProblem::Msda(ProblemSizes::new(&sizes, &levels));
        let group = &self.left_to_do(group, &problem, (dtype, Some(coordinates)));
        if group.is_empty() {
            return Ok(());
        }
        // Inputs, outputs and gradients at once.
        let count = |shape: &[usize]| shape.iter().map(|&size| size as u64).product::<u64>();
        let coordinate = coordinates.size().max(DType::F32.size());
        let coordinate_bytes = 3 * count(&sizes.attention_weights()) * coordinate as u64;
        let values = (count(&sizes.value()) + count(&sizes.out())) * dtype.size() as u64;
        self.expect_memory(first, 2 * (coordinate_bytes + values))?;
        self.say(first, "making random numbers");
        let mut locations =
            generate::locations(&sizes, &levels, workload.reference, distribution, self.seed)?;
        let mut weights = generate::weights(&sizes, self.seed)?;
        if coordinates != DType::F32 {
            locations = locations.rounded("sampling_locations", dtype)?;
            weights = weights.rounded("attention_weights", dtype)?;
        }
        let value = generate::value(&sizes, dtype, self.seed)?;
        let grad_out = generate::grad_out(&sizes, dtype, self.seed)?;
        let inputs = Inputs {
            value: value.view(),
            levels: (&levels).into(),
            sampling_locations: locations.view(),
            attention_weights: weights.view(),
        };
        self.group(group, inputs, grad_out.view())
    }

    pub(super) fn msda_file(&mut self, file: &MappedFile, group: &[Benchmark]) -> Result<()> {
        let misfit = |source| file.misfit(source);
        let tensors = Tensors::read(file, GradOut::Optional, Placement::Aligned)?;
        let forward = Trial::forward(self.target.backend, tensors.inputs()).map_err(misfit)?;
        let (sizes, dtype) = (
            *forward.problem().sizes(),
            forward.problem().value().dtype(),
        );
        if sizes.samples() == 0 || sizes.pixels == 0 {
            let workload = file.path().display().to_string();
            return Err(Error::NothingToTime { workload });
        }
        let grad_out = match &tensors.grad_out {
            Some(grad_out) => grad_out,
            None => &Source::Owned(generate::grad_out(&sizes, dtype, self.seed)?),
        };
        let coordinates = forward.problem().sampling_locations().dtype();
        let problem = AnyProblem::Msda(ProblemSizes::from(forward.problem()));
        let group = &self.left_to_do(group, &problem, (dtype, Some(coordinates)));
        let (inputs, grad_out) = (tensors.inputs(), grad_out.view());
        Trial::backward(self.target.backend, inputs, grad_out).map_err(misfit)?;
        self.group(group, inputs, grad_out)
    }

    fn group(&mut self, group: &[Benchmark], inputs: Inputs<'_>, grad_out: View<'_>) -> Result<()> {
        let backend = self.target.backend;
        for benchmark in group {
            let trial = match benchmark.direction {
                Direction::Forward => Trial::forward(backend, inputs)?,
                Direction::Backward => Trial::backward(backend, inputs, grad_out)?,
            };
            let touched = trial.touched();
            let counted = Counted {
                problem: AnyProblem::Msda(ProblemSizes::from(trial.problem())),
                dtypes: DTypes::from(trial.problem()),
                traffic: trial.traffic().into(),
                least: touched.as_ref().map(|touched| Least::of(&trial, touched)),
                touched,
            };
            self.one(benchmark, &trial, counted)?;
        }
        Ok(())
    }
}
