//! Benchmarks of dense attention.

use fourtap::dense::{Inputs, Options};

use super::{Bench, Counted};
use crate::dense::DenseTrial;
use crate::error::{Error, Result};
use crate::generate;
use crate::record::{AnyProblem, DTypes, DenseSizes};
use crate::roof::Least;
use crate::selection::Benchmark;
use crate::tensors::{DenseTensors, MappedFile, Placement};
use crate::workload::DenseWorkload;

impl Bench {
    /// Benchmarks of one element type, which share their numbers.
    pub(super) fn dense(&mut self, workload: &DenseWorkload, group: &[Benchmark]) -> Result<()> {
        let Some(
            first @ &Benchmark {
                dtype: Some(dtype), ..
            },
        ) = group.first()
        else {
            return Ok(());
        };
        let sizes = workload.sizes();
        let problem = workload.problem(dtype)?;
        let problem = AnyProblem::Dense(DenseSizes::from(&problem));
        let group = &self.left_to_do(group, &problem, (dtype, None));
        if group.is_empty() {
            return Ok(());
        }
        let count = |shape: [usize; 4]| shape.iter().map(|&size| size as u64).product::<u64>();
        let tensors = [sizes.query(), sizes.key(), sizes.value(), sizes.out()];
        let elements: u64 = tensors.into_iter().map(count).sum();
        self.expect_memory(first, 2 * elements * dtype.size() as u64)?;
        self.say(first, "making random numbers");
        let [query, key, value] = generate::dense(&sizes, dtype, self.seed)?;
        let inputs = Inputs {
            query: query.view(),
            key: key.view(),
            value: value.view(),
        };
        self.dense_group(group, inputs, workload.options())
    }

    pub(super) fn dense_file(&mut self, file: &MappedFile, group: &[Benchmark]) -> Result<()> {
        let tensors = DenseTensors::read(file, Placement::Aligned)?;
        let trial = DenseTrial::new(self.target.backend, tensors.inputs(), tensors.options)
            .map_err(|source| file.misfit(source))?;
        if trial.traffic().pairs == 0 {
            let workload = file.path().display().to_string();
            return Err(Error::NothingToTime { workload });
        }
        let problem = trial.problem();
        let recorded = AnyProblem::Dense(DenseSizes::from(problem));
        let group = &self.left_to_do(group, &recorded, (problem.dtype(), None));
        self.dense_group(group, tensors.inputs(), tensors.options)
    }

    fn dense_group(
        &mut self,
        group: &[Benchmark],
        inputs: Inputs<'_>,
        options: Options,
    ) -> Result<()> {
        let trial = DenseTrial::new(self.target.backend, inputs, options)?;
        for benchmark in group {
            let counted = Counted {
                problem: AnyProblem::Dense(DenseSizes::from(trial.problem())),
                dtypes: DTypes::from(trial.problem()),
                traffic: trial.traffic().into(),
                touched: None,
                least: Some(Least::of_dense(&trial)),
            };
            self.one(benchmark, &trial, counted)?;
        }
        Ok(())
    }
}
