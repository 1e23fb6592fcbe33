//! `fourtap bench`: verify, then time.

mod cuda;
pub mod sink;

use crate::exit::ExitCode;
use std::collections::BTreeMap;
use std::time::Duration;

use fourtap::msda::Inputs;
use fourtap::{DType, View};
use indicatif::ProgressBar;

use self::cuda::CudaBench;
use self::sink::Sink;
use super::{note, print, progress};
use crate::array::Array;
use crate::cli::{BenchArgs, CoordinatesChoice, Direction};
use crate::cuda::Mode;
use crate::error::{EXIT_MISMATCH, Error, Result};
use crate::generate;
use crate::machine;
use crate::measure::measure;
use crate::record::{
    BenchRecord, Beside, Conditions, DTypes, KernelUsed, Line, Origin, ProblemSizes, Timing,
};
use crate::selection::{self, Benchmark, Subject};
use crate::table;
use crate::target::Target;
use crate::tensors::{GradOut, MappedFile, Placement, Source, Tensors};
use crate::trial::Trial;
use crate::verification::{Verification, verify};
use crate::workload::Workload;

/// Most time spent on repeating one benchmark.
const BUDGET: Duration = Duration::from_secs(3);
const QUICK_BUDGET: Duration = Duration::from_millis(500);

/// Half the confidence interval, as a share of the median, that deserves a word.
const UNCERTAIN: f64 = 0.05;

pub fn execute(arguments: &BenchArgs) -> Result<ExitCode> {
    if arguments.list {
        let workloads = Workload::names()
            .filter_map(Workload::built_in)
            .collect::<Result<Vec<_>>>()?;
        print(table::workloads(&workloads))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Every name is looked up and every file opened before the first, perhaps long, measurement.
    let target = Target::new(&arguments.target)?;
    let subjects = selection::subjects(arguments)?;
    let filter = arguments.filter.as_deref().unwrap_or_default();
    let mut plan: Vec<_> = subjects
        .iter()
        .map(|subject| subject.benchmarks(arguments, target.cuda().is_some()))
        .collect();
    let all: usize = plan.iter().map(Vec::len).sum();
    for benchmarks in &mut plan {
        benchmarks.retain(|benchmark| benchmark.name().contains(filter));
    }
    let count: usize = plan.iter().map(Vec::len).sum();
    if count == 0 {
        return Err(Error::NothingSelected {
            filter: filter.to_string(),
            count: all,
        });
    }
    let budget = match arguments.quick {
        true => QUICK_BUDGET,
        false => BUDGET,
    };
    let mut sink = Sink::open(arguments.json.as_deref())?;
    let bar = progress(count as u64);
    let cuda = match target.cuda() {
        Some(cuda) => {
            bar.set_message("measuring the device's ceilings");
            let mode = Mode::new(arguments.target.deterministic);
            let cuda = CudaBench::new(cuda, mode, &target.device, budget)?;
            for ceiling in cuda.ceilings() {
                sink.put(&Line::Probe(Box::new(ceiling.clone())))?;
            }
            Some(cuda)
        }
        None => None,
    };
    let mut bench = Bench {
        target,
        cuda,
        seed: arguments.seed,
        coordinates: arguments.coordinates,
        asked: arguments
            .target
            .kernel
            .map(|kernel| kernel.name().to_string()),
        budget,
        bar,
        sink,
        records: Vec::new(),
        failed: None,
    };
    for (subject, benchmarks) in subjects.iter().zip(plan) {
        bench.subject(subject, &benchmarks)?;
    }
    bench.bar.finish_and_clear();
    if !matches!(bench.sink, Sink::Stdout) && !bench.records.is_empty() {
        print(match &bench.cuda {
            Some(cuda) => table::cuda_results(&bench.records, cuda.ceilings()),
            None => table::results(&bench.records),
        })?;
    }
    let uncertain = bench.records.iter().filter(|record| {
        record
            .hot
            .as_ref()
            .is_some_and(|hot| hot.uncertainty() > UNCERTAIN)
    });
    let (uncertain, all) = (uncertain.count(), bench.records.len());
    if uncertain > 0 {
        let longer = if arguments.quick {
            ", or leave --quick out"
        } else {
            ""
        };
        note(&format!(
            "note: {uncertain} of {all} medians are uncertain by more than 5 %: close other programs{longer}"
        ));
    }
    Ok(bench.failed.unwrap_or(ExitCode::SUCCESS))
}

/// A benchmark about to be measured.
struct Task<'a> {
    name: &'a str,
    trial: &'a Trial<'a>,
    seed: u64,
    /// Most time to spend on repeating one thing.
    budget: Duration,
}

impl Task<'_> {
    /// How near the oracle a result is, or what is wrong with it.
    fn verified(&self, outputs: &[Array]) -> Result<Verification> {
        verify(self.trial, outputs, self.seed)
    }

    /// In words, what is wrong with a result of the timed computations, which were right before; none if nothing is.
    fn still_right(
        &self,
        kernel: &KernelUsed,
        before: &[Array],
        after: &[Array],
    ) -> Result<Option<String>> {
        if !kernel.reproducible {
            // Bits that may differ must still be right.
            return Ok(self.verified(after)?.found);
        }
        let same = |(before, after): (&Array, &Array)| before.bytes() == after.bytes();
        let all = before.iter().zip(after).all(same);
        Ok((!all).then(|| "the timed computations gave other bits than the first".to_string()))
    }

    fn wrong(&self, found: &str) -> Error {
        Error::Verification {
            benchmark: self.name.to_string(),
            found: found.to_string(),
        }
    }
}

/// What a benchmark found. Only what is right has times.
struct Measured {
    kernel: KernelUsed,
    verification: Verification,
    hot: Option<Timing>,
    cold: Option<Timing>,
    conditions: Option<Conditions>,
    beside: Vec<Beside>,
}

/// A run of benchmarks.
struct Bench {
    target: Target,
    /// What timing on a device needs, if that is where.
    cuda: Option<CudaBench>,
    seed: u64,
    coordinates: CoordinatesChoice,
    /// The kernel asked for by name.
    asked: Option<String>,
    budget: Duration,
    bar: ProgressBar,
    sink: Sink,
    records: Vec<BenchRecord>,
    /// What to end with if something failed; a failed verification outweighs the rest.
    failed: Option<ExitCode>,
}

impl Bench {
    /// All benchmarks of a subject. What fails is reported and skipped; only an unwritable result stops the rest.
    fn subject(&mut self, subject: &Subject, benchmarks: &[Benchmark]) -> Result<()> {
        let mut remaining = benchmarks;
        while let Some(first) = remaining.first() {
            let same = |other: &&Benchmark| {
                other.distribution == first.distribution && other.dtype == first.dtype
            };
            let count = remaining.iter().take_while(same).count();
            let (group, rest) = remaining.split_at(count);
            remaining = rest;
            let done = match subject {
                Subject::Synthetic(workload) => self.synthetic(workload, group),
                Subject::File(file) => self.file(file, group),
            };
            match done {
                Err(error @ (Error::Stdout(_) | Error::Write { .. })) => return Err(error),
                Err(error) => self.fail(&error),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn fail(&mut self, error: &Error) {
        self.bar.suspend(|| error.report());
        if self.failed != Some(ExitCode::from(EXIT_MISMATCH)) {
            self.failed = Some(error.exit_code());
        }
    }

    fn say(&self, benchmark: &Benchmark, phase: &str) {
        self.bar
            .set_message(format!("{}: {phase}", benchmark.name()));
    }

    /// Benchmarks of one distribution and element type, which share their numbers.
    fn synthetic(&mut self, workload: &Workload, group: &[Benchmark]) -> Result<()> {
        let Some((first, distribution, dtype)) = group
            .first()
            .and_then(|first| Some((first, first.distribution?, first.dtype?)))
        else {
            return Ok(());
        };
        let levels = workload.levels()?;
        let sizes = workload.sizes(&levels);
        // Inputs, outputs and gradients at once: better no result than a machine that swaps.
        let count = |shape: &[usize]| shape.iter().map(|&size| size as u64).product::<u64>();
        let coordinate = self.coordinates.dtype(dtype).size().max(DType::F32.size());
        let coordinates = 3 * count(&sizes.attention_weights()) * coordinate as u64;
        let values = (count(&sizes.value()) + count(&sizes.out())) * dtype.size() as u64;
        let needed = 2 * (coordinates + values);
        if let Some(available) = machine::memory_available().filter(|&available| needed > available)
        {
            let what = format!("{}/{}/{dtype}", workload.name, distribution.name());
            return Err(Error::Memory {
                what,
                needed,
                available: Some(available),
            });
        }
        self.say(first, "making random numbers");
        let mut locations =
            generate::locations(&sizes, &levels, workload.reference, distribution, self.seed)?;
        let mut weights = generate::weights(&sizes, self.seed)?;
        if self.coordinates.dtype(dtype) != DType::F32 {
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

    fn file(&mut self, file: &MappedFile, group: &[Benchmark]) -> Result<()> {
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
            self.one(benchmark, &trial)?;
        }
        Ok(())
    }

    fn one(&mut self, benchmark: &Benchmark, trial: &Trial<'_>) -> Result<()> {
        let name = benchmark.name();
        let task = Task {
            name: &name,
            trial,
            seed: self.seed,
            budget: self.budget,
        };
        let bar = &self.bar;
        let say = |phase: &str| bar.set_message(format!("{name}: {phase}"));
        let measured = match &mut self.cuda {
            Some(cuda) => cuda.measured(&task, say),
            None => on_cpu(&task, say),
        };
        let measured = measured?;
        // No reason to leave out the other pass.
        let wrong = [&measured.verification].into_iter().map(|one| ("", one));
        let beside = measured.beside.iter();
        let beside = beside.map(|one| (one.role.as_str(), &one.verification));
        let found: Vec<String> = wrong
            .chain(beside)
            .filter_map(
                |(role, verification)| match (role, verification.found.as_ref()?) {
                    ("", found) => Some(found.clone()),
                    (role, found) => Some(format!("{role}: {found}")),
                },
            )
            .collect();
        let failures: Vec<Error> = found.iter().map(|found| task.wrong(found)).collect();
        let record = BenchRecord {
            origin: Origin::here(),
            workload: benchmark.workload.clone(),
            distribution: benchmark.distribution_name().to_string(),
            seed: self.seed,
            problem: ProblemSizes::from(trial.problem()),
            dtypes: DTypes::from(trial.problem()),
            direction: benchmark.direction,
            device: self.target.device.clone(),
            kernel: KernelUsed {
                asked: self.asked.clone(),
                ..measured.kernel
            },
            verification: measured.verification,
            hot: measured.hot,
            cold: measured.cold,
            conditions: measured.conditions,
            traffic: trial.traffic().into(),
            in_bounds_fraction: trial.in_bounds_fraction()?,
            roof: None,
            beside: measured.beside,
        };
        for failure in failures {
            self.fail(&failure);
        }
        self.sink.put(&Line::Bench(Box::new(record.clone())))?;
        self.records.push(record);
        self.bar.inc(1);
        Ok(())
    }
}

/// Verifies, then times.
fn on_cpu(task: &Task<'_>, say: impl Fn(&str)) -> Result<Measured> {
    let mut outputs = task.trial.outputs()?;
    say("verifying");
    task.trial.compute(&mut outputs)?;
    let verification = task.verified(&outputs)?;
    let mut measured = Measured {
        kernel: KernelUsed {
            words: task.trial.on_cpu_in_words(),
            fingerprint: None,
            parameters: BTreeMap::new(),
            asked: None,
            mode: None,
            reproducible: true,
            workspace_bytes: None,
        },
        verification,
        hot: None,
        cold: None,
        conditions: None,
        beside: Vec::new(),
    };
    if measured.verification.passed {
        say("timing");
        measured.hot = Some(Timing::of(measure(task.trial, &mut outputs, task.budget)?));
    }
    Ok(measured)
}
