//! Rungs among the kernels that `tune` searches choices for.

use std::sync::OnceLock;
use std::time::Duration;

use fourtap::DType;
use fourtap::cuda::Cuda;
use fourtap::cuda::jit::{Architecture, Program};
use fourtap::dense::{Alignment, Mask};
use fourtap::tuning::Space;
use fourtap_lab::extension::record::Timing;
use fourtap_lab::extension::{
    Array, Bench, DenseWorkload, Distribution, Error, ExternalKernel, MsdaWorkload, Operator,
    Result, Stopwatch, Subject, Verification, Workload,
};

use crate::case::Case;
use crate::dense;
use crate::measurement::Runner;
use crate::numbers::Numbers;
use crate::plan::{Choice, Hardware};
use crate::rung::{Contender, Rung};
use crate::rungs;
use crate::trial::source;

/// A rung and what can be chosen about it.
#[derive(Debug)]
struct TunableRung {
    space: Space,
    rung: Rung,
}

/// The rungs that have parameters.
pub fn kernels() -> Vec<&'static dyn ExternalKernel> {
    static ALL: OnceLock<Vec<TunableRung>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let rungs = rungs::all().into_iter();
        let tunable = rungs.filter(|rung| !rung.parameters.is_empty());
        let with_space = tunable.map(|rung| TunableRung {
            space: Space {
                kernel: rung.name,
                what: rung.title,
                parameters: rung.parameters,
            },
            rung,
        });
        with_space.collect()
    });
    all.iter()
        .map(|it| -> &'static dyn ExternalKernel { it })
        .collect()
}

impl ExternalKernel for TunableRung {
    fn space(&'static self) -> &'static Space {
        &self.space
    }

    fn operator(&self) -> &'static dyn Operator {
        self.rung.operator().operator()
    }

    fn accepts(
        &self,
        subject: &Subject,
        hardware: &Hardware,
        choice: &Choice,
    ) -> std::result::Result<(), String> {
        let shape = case_of(subject)?
            .shape()
            .map_err(|error| error.to_string())??;
        self.rung.planned(&shape, hardware, choice).map(drop)
    }

    fn programs(
        &self,
        subject: &Subject,
        hardware: &Hardware,
        choice: &Choice,
        architecture: Architecture,
    ) -> Result<std::result::Result<Vec<Program>, String>> {
        let case = match case_of(subject) {
            Ok(case) => case,
            Err(words) => return Ok(Err(words)),
        };
        Ok(case.shape()?.and_then(|shape| {
            let plan = self.rung.planned(&shape, hardware, choice)?;
            let plan = plan.for_capability((architecture.major(), architecture.minor()))?;
            let entries = plan.steps.iter().map(|step| {
                let source = source(&self.rung, &shape, choice, &plan, step.entry);
                source.program(architecture)
            });
            Ok(entries.collect())
        }))
    }

    fn bench(&self, subject: &Subject, ordinal: usize, seed: u64) -> Result<Box<dyn Bench>> {
        let case = case_of(subject).map_err(|why| refused(&subject.name(), why))?;
        Ok(Box::new(RungBench {
            contender: Contender::Rung(self.rung),
            stopwatch: Stopwatch::new(Cuda::new(ordinal).map_err(fourtap::Error::from)?)?,
            numbers: case.numbers(seed)?,
        }))
    }
}

/// The problem, as rungs are given it; in words if they cannot be.
fn case_of(subject: &Subject) -> std::result::Result<Case, String> {
    case(&*subject.workload, subject.dtype, subject.distribution)
}

fn case(
    workload: &dyn Workload,
    dtype: DType,
    distribution: Distribution,
) -> std::result::Result<Case, String> {
    if let Some(workload) = workload.downcast::<MsdaWorkload>() {
        return match dtype {
            DType::F16 => Ok(Case::Msda(workload.clone(), distribution)),
            other => Err(format!("rungs take value in f16, not in {other}")),
        };
    }
    let Some(workload) = workload.downcast::<DenseWorkload>() else {
        let operator = workload.operator().in_words();
        return Err(format!("there are no rungs of {operator}"));
    };
    let sizes = workload.sizes();
    let mask = workload.options().mask;
    let is_causal = mask == Mask::causal(Alignment::TopLeft);
    let alike = sizes.query_heads == sizes.key_heads
        && sizes.channels == sizes.value_channels
        && (is_causal || mask == Mask::default());
    if !alike {
        return Err(
            "rungs take heads of the same number and channels, under a causal mask or none"
                .to_string(),
        );
    }
    let workload = dense::Workload {
        name: "",
        batch: sizes.batch,
        heads: sizes.query_heads,
        queries: sizes.queries,
        keys: sizes.keys,
        channels: sizes.channels,
        dtype,
    };
    Ok(Case::Dense(workload, is_causal))
}

/// A rung on a problem.
struct RungBench {
    contender: Contender,
    stopwatch: Stopwatch,
    numbers: Numbers,
}

impl RungBench {
    fn runner(&self, choice: &Choice) -> Result<Runner<'_>> {
        let cuda = self.stopwatch.cuda();
        let runner = Runner::new(&self.contender, choice, &self.numbers, cuda)?;
        runner.map_err(|why| refused(&choice.to_string(), why))
    }
}

impl Bench for RungBench {
    fn computed(&mut self, choice: &Choice) -> Result<Vec<Array>> {
        let computed = self.runner(choice)?.computed(&self.stopwatch)?;
        let computed = computed.map_err(|why| refused(&choice.to_string(), why))?;
        Ok(vec![computed])
    }

    fn repeats_bits(&mut self, _: &Choice) -> Result<bool> {
        Ok(true)
    }

    fn verified(&self, outputs: &[Array], seed: u64) -> Result<Verification> {
        let rule = self.contender.rule();
        self.numbers.verify(&outputs[0], Some(seed), rule)
    }

    fn timed(&mut self, choice: &Choice, budget: Duration) -> Result<(Timing, Vec<Array>)> {
        let mut runner = self.runner(choice)?;
        // So that it is seen if what is timed does not compute.
        self.stopwatch.once(|cuda| runner.poison(cuda))?;
        let timed = self
            .stopwatch
            .hot(budget, |cuda| runner.queue(cuda, true))?;
        Ok((timed.timing, vec![runner.download()?]))
    }

    fn in_turns(
        &mut self,
        choices: &[Choice],
        next: &mut dyn FnMut(Option<f64>) -> Option<usize>,
    ) -> Result<()> {
        let runners = choices.iter().map(|choice| self.runner(choice));
        let mut runners = runners.collect::<Result<Vec<_>>>()?;
        self.stopwatch.in_turns(
            runners.len(),
            |cuda, index| runners[index].queue(cuda, true),
            next,
        )
    }
}

fn refused(setting: &str, expected: String) -> Error {
    Error::Setting {
        setting: setting.to_string(),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::H200;
    use fourtap_lab::extension::record::RungOperator;
    use fourtap_lab::extension::selection::workload;

    fn problem(operator: RungOperator, dtype: DType) -> std::result::Result<Case, String> {
        let name = match operator {
            RungOperator::Msda => "seed-full",
            RungOperator::Dense => "dense-s512-d64",
        };
        let workload = workload(name.as_ref(), None).unwrap();
        case(&*workload, dtype, Distribution::Local)
    }

    #[test]
    fn rungs_have_choices() {
        let mut with_choices = 0;
        for kernel in rungs::all() {
            let shape = problem(kernel.operator(), DType::F16).unwrap();
            let shape = shape.shape().unwrap().unwrap();
            let parameters = kernel.parameters.iter();
            let single = parameters.flat_map(|parameter| {
                let others = parameter.values.iter();
                let others = others.filter(|&&value| value != parameter.default);
                others.map(|&value| (parameter.name.to_string(), value))
            });
            let takes = |settings: &[(String, u32)]| {
                let choice = Choice::new(kernel.parameters, settings);
                kernel.planned(&shape, &H200, &choice).is_ok()
            };
            // Some rungs refuse the problem as a whole.
            if takes(&[]) && single.into_iter().any(|one| takes(&[one])) {
                with_choices += 1;
            }
        }
        assert!(with_choices > 10, "{with_choices}");
    }

    #[test]
    fn names_of_kernels_are_told_apart() {
        let mut names: Vec<_> = kernels().iter().map(|it| it.space().kernel).collect();
        let library = Space::all().map(|space| space.kernel);
        names.extend(library);
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn what_rungs_cannot_take_is_refused_in_words() {
        let refused = problem(RungOperator::Msda, DType::F32).unwrap_err();
        assert!(refused.contains("not in f32"), "{refused}");
        let decode = workload("dense-decode".as_ref(), None).unwrap();
        let refused = case(&*decode, DType::F16, Distribution::Local).unwrap_err();
        assert!(refused.contains("heads of the same number"), "{refused}");
    }
}
