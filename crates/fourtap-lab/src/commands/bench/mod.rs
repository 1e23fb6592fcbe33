//! `fourtap bench`: verify, then time.

mod cpu;
mod cuda;
mod doubts;
mod place;
mod plan;
mod task;

use std::time::Duration;

use fourtap::msda::Inputs;
use fourtap::{DType, View};
use indicatif::ProgressBar;

use self::cpu::CpuBench;
use self::cuda::CudaBench;
use self::doubts::doubts;
use self::place::Place;
use self::plan::{already_done, planned};
use self::task::Task;
use super::{note, print, progress};
use crate::cli::{BenchArgs, CoordinatesChoice, Direction};
use crate::cuda::Mode;
use crate::error::{EXIT_MISMATCH, Error, Result};
use crate::exit::ExitCode;
use crate::generate;
use crate::machine;
use crate::output::Destination;
use crate::record::{
    BenchRecord, DTypes, KernelUsed, Line, Origin, ProbeRecord, ProblemSizes, Run, benchmark_name,
};
use crate::report;
use crate::roof::{Ceilings, Least, is_suspicious};
use crate::selection::{self, Benchmark, Subject};
use crate::sink::{Sink, Torn};
use crate::table;
use crate::target::Target;
use crate::tensors::{GradOut, MappedFile, Placement, Source, Tensors};
use crate::trial::Trial;
use crate::workload::Workload;

/// Most time spent on repeating one benchmark.
const BUDGET: Duration = Duration::from_secs(3);
const QUICK_BUDGET: Duration = Duration::from_millis(500);

/// A ceiling gets this part of a benchmark's time.
const CEILINGS_SHARE: u32 = 5;

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
    let plan = planned(arguments, &subjects, target.cuda().is_some())?;
    let done = match arguments.resume {
        true => already_done(arguments)?,
        false => Vec::new(),
    };
    let page = arguments
        .report
        .as_deref()
        .map(report::destination)
        .transpose()?;
    let torn = match arguments.resume {
        true => Torn::Remove,
        false => Torn::Refuse,
    };
    let sink = Sink::open(arguments.json.as_deref(), torn)?;
    let bar = progress(plan.iter().map(Vec::len).sum::<usize>() as u64);
    let budget = match arguments.quick {
        true => QUICK_BUDGET,
        false => BUDGET,
    };
    let mode = Mode::new(arguments.target.deterministic);
    let place = match target.cuda() {
        Some(cuda) => Place::Cuda(Box::new(CudaBench::new(cuda, mode)?)),
        None => Place::Cpu(CpuBench::new(&target.device)),
    };
    let asked = arguments.target.kernel;
    let mut bench = Bench {
        target,
        place,
        ceilings: Vec::new(),
        mode,
        seed: arguments.seed,
        coordinates: arguments.coordinates,
        asked: asked.map(|kernel| kernel.name().to_string()),
        budget,
        bar,
        sink,
        done,
        records: Vec::new(),
        failed: None,
    };
    for (subject, benchmarks) in subjects.iter().zip(plan) {
        bench.subject(subject, &benchmarks)?;
    }
    bench.bar.finish_and_clear();
    bench.conclude(arguments, page)
}

/// A run of benchmarks.
struct Bench {
    target: Target,
    place: Place,
    /// Measured before the first benchmark is, once it is known that there is one.
    ceilings: Vec<ProbeRecord>,
    /// The mode asked for.
    mode: Mode,
    seed: u64,
    coordinates: CoordinatesChoice,
    /// The kernel asked for by name.
    asked: Option<String>,
    budget: Duration,
    bar: ProgressBar,
    sink: Sink,
    /// Records of an interrupted run that need not be measured again.
    done: Vec<BenchRecord>,
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
        let coordinates = self.coordinates.dtype(dtype);
        let group = &self.left_to_do(
            group,
            &ProblemSizes::new(&sizes, &levels),
            [dtype, coordinates],
        );
        if group.is_empty() {
            return Ok(());
        }
        // Inputs, outputs and gradients at once: better no result than a machine that swaps.
        let count = |shape: &[usize]| shape.iter().map(|&size| size as u64).product::<u64>();
        let coordinate = coordinates.size().max(DType::F32.size());
        let coordinate_bytes = 3 * count(&sizes.attention_weights()) * coordinate as u64;
        let values = (count(&sizes.value()) + count(&sizes.out())) * dtype.size() as u64;
        let needed = 2 * (coordinate_bytes + values);
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
        let coordinates = forward.problem().sampling_locations().dtype();
        let sizes = ProblemSizes::from(forward.problem());
        let group = &self.left_to_do(group, &sizes, [dtype, coordinates]);
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

    /// The benchmarks of a group that no record of an interrupted run answers. Those that one does are shown with the
    /// rest.
    fn left_to_do(
        &mut self,
        group: &[Benchmark],
        problem: &ProblemSizes,
        [value, locations]: [DType; 2],
    ) -> Vec<Benchmark> {
        let mut left = Vec::new();
        for benchmark in group {
            let has_modes =
                benchmark.direction == Direction::Backward && self.target.cuda().is_some();
            let name = benchmark_name(
                &benchmark.workload,
                benchmark.distribution_name(),
                (value.name(), locations.name()),
                benchmark.direction,
                (has_modes.then_some(self.mode), self.asked.as_deref()),
            );
            let same = |record: &&BenchRecord| {
                record.name() == name
                    && record.problem == *problem
                    && record.seed == self.seed
                    && record.device == self.target.device
            };
            match self.done.iter().find(same) {
                Some(record) => {
                    self.records.push(record.clone());
                    self.bar.inc(1);
                }
                None => left.push(benchmark.clone()),
            }
        }
        left
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
        if self.ceilings.is_empty() {
            say("first, what the hardware can do at most");
            let budget = self.budget / CEILINGS_SHARE;
            self.ceilings = self.place.ceilings(&self.target.device, budget);
            for ceiling in &self.ceilings {
                self.sink.put(&Line::Probe(Box::new(ceiling.clone())))?;
            }
        }
        let measured = self.place.measured(&task, say)?;
        let wrong = measured.found_wrong();
        let touched = trial.touched();
        let in_bounds_fraction = touched.as_ref().map_or(1.0, |touched| touched.in_bounds);
        let mut record = BenchRecord {
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
            in_bounds_fraction,
            touched_fraction: touched.as_ref().map(|touched| touched.value),
            roof: None,
            beside: measured.beside,
        };
        let ceilings = Ceilings {
            probes: &self.ceilings,
            cache_bytes: self.place.cache_bytes(),
        };
        let least = touched.map(|touched| Least::of(trial, &touched));
        let roof = least.and_then(|least| ceilings.roof(least));
        if let (Some(mut roof), Some(_)) = (roof, &record.hot) {
            roof.suspicious = is_suspicious(&record, &roof);
            record.roof = Some(roof);
        }
        // Wrong, but no reason to leave out the other pass.
        for found in wrong {
            self.fail(&task.wrong(&found));
        }
        self.sink.put(&Line::Bench(Box::new(record.clone())))?;
        self.records.push(record);
        self.bar.inc(1);
        Ok(())
    }

    /// Shows what was found, and says what to think of it.
    fn conclude(self, arguments: &BenchArgs, page: Option<Destination>) -> Result<ExitCode> {
        let timed = self.records.iter().any(|record| record.hot.is_some());
        if !matches!(self.sink, Sink::Stdout) && timed {
            print(match &self.place {
                Place::Cuda(_) => table::cuda_results(&self.records, &self.ceilings),
                Place::Cpu(_) => table::results(&self.records),
            })?;
        }
        for doubt in doubts(&self.records, &self.ceilings, arguments.quick) {
            note(&format!("note: {doubt}"));
        }
        if let (Some(page), Some(file)) = (page, &arguments.report) {
            let run = Run {
                path: arguments.json.clone().unwrap_or_else(|| "bench".into()),
                benches: self.records,
                probes: self.ceilings,
                ..Run::default()
            };
            page.write_bytes(report::html(&[run])?.as_bytes())?;
            note(&format!("wrote {}", file.display()));
        }
        Ok(self.failed.unwrap_or(ExitCode::SUCCESS))
    }
}
