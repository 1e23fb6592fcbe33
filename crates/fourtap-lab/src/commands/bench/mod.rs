//! `fourtap bench`: verify, then time.

mod cpu;
mod cuda;
mod doubts;
mod place;
mod plan;
mod task;
mod turns;

use std::time::Duration;

use fourtap::{Backend, DType};
use indicatif::ProgressBar;

use self::cpu::CpuBench;
use self::cuda::CudaBench;
use self::doubts::doubts;
use self::place::Place;
use self::plan::{already_done, planned};
use self::task::Task;
use self::turns::against;
use self::turns::served::Turns;
use super::{note, print, progress};
use crate::cli::{BenchArgs, CoordinatesChoice, Direction, Distribution};
use crate::computation::{Computation, TensorSet};
use crate::cuda::Mode;
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::interrupt;
use crate::machine;
use crate::operators::{DataSpec, OPERATORS, Operator, Reading, Workload};
use crate::output::Destination;
use crate::record::{
    BenchRecord, DTypes, InterruptedRecord, KernelUsed, Line, Origin, ProbeRecord, ProblemRecord,
    Run, benchmark_name,
};
use crate::report;
use crate::roof::{Ceilings, is_suspicious};
use crate::selection::{self, Benchmark, Selection, Subject};
use crate::sink::{PartialRecord, Sink};
use crate::table;
use crate::target::Target;
use crate::tensors::MappedFile;

/// Most time spent on repeating one benchmark.
const BUDGET: Duration = Duration::from_secs(3);
const QUICK_BUDGET: Duration = Duration::from_millis(500);

/// A ceiling gets this part of a benchmark's time.
const CEILINGS_SHARE: u32 = 5;

pub fn execute(arguments: &BenchArgs) -> Result<ExitCode> {
    if arguments.list {
        print(table::workloads()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Every name is looked up and every file opened before the first, perhaps long, measurement.
    let mut target = Target::new(&arguments.target)?;
    let on_cuda = target.cuda().is_some();
    let Selection { subjects, left_out } = selection::selected(arguments, on_cuda)?;
    let plan = planned(arguments, &subjects, on_cuda)?;
    let budget = match arguments.quick {
        true => QUICK_BUDGET,
        false => BUDGET,
    };
    if let Some(other) = &arguments.against {
        return against::execute(arguments, other, &plan.concat(), budget);
    }
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
        true => PartialRecord::Remove,
        false => PartialRecord::Refuse,
    };
    let sink = Sink::open(arguments.json.as_deref(), torn)?;
    let planned = plan.iter().map(Vec::len).sum::<usize>();
    let bar = progress(planned as u64);
    if !arguments.in_turns {
        let flag = interrupt::watch();
        if let Backend::Cpu(cpu) = target.backend {
            target.backend = Backend::Cpu(cpu.cancelled_by(flag));
        }
    }
    let mode = Mode::new(arguments.target.deterministic);
    let place = match target.cuda() {
        Some(cuda) => Place::Cuda(Box::new(CudaBench::new(cuda, mode)?)),
        None => Place::Cpu(CpuBench::new(&target.device)),
    };
    let turns = match arguments.in_turns {
        true => Some(Turns::begin(&target.device)?),
        false => None,
    };
    if !left_out.is_empty() && turns.is_none() {
        note(&format!(
            "note: skipped, more than 100 GFLOP each, which takes long on a CPU: {}; name one to time \
             it",
            left_out.join(", ")
        ));
    }
    let asked = arguments.target.kernel;
    let timed =
        |operator: &&'static dyn Operator| subjects.iter().any(|it| it.operator() == *operator);
    let operators = OPERATORS.into_iter().filter(timed).collect();
    let mut bench = Bench {
        target,
        place,
        operators,
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
        planned,
        failed: None,
        turns,
    };
    for (subject, benchmarks) in subjects.iter().zip(plan) {
        match bench.subject(subject, &benchmarks) {
            Err(Error::Interrupted) => break,
            done => done?,
        }
    }
    bench.bar.finish_and_clear();
    bench.conclude(arguments, page)
}

/// A run of benchmarks.
struct Bench {
    target: Target,
    place: Place,
    /// What is timed.
    operators: Vec<&'static dyn Operator>,
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
    /// How many benchmarks there are.
    planned: usize,
    /// What to end with if something failed; a failed verification outweighs the rest.
    failed: Option<ExitCode>,
    /// Where somebody else says when to compute.
    turns: Option<Turns>,
}

impl Bench {
    /// All benchmarks of a subject. What fails is reported and skipped; only an unwritable result stops the rest.
    fn subject(&mut self, subject: &Subject, benchmarks: &[Benchmark]) -> Result<()> {
        let mut remaining = benchmarks;
        while let Some(first) = remaining.first() {
            interrupt::check()?;
            let same =
                |other: &&Benchmark| other.numbers == first.numbers && other.dtype == first.dtype;
            let count = remaining.iter().take_while(same).count();
            let (group, rest) = remaining.split_at(count);
            remaining = rest;
            let done = match subject {
                Subject::Synthetic(workload) => self.random(&**workload, group),
                Subject::File(file) => self.file(file, group),
            };
            match done {
                // Whatever was given up because of it.
                Err(_) if interrupt::is_requested() => return Err(Error::Interrupted),
                Err(error @ (Error::Stdout(_) | Error::Write { .. })) => return Err(error),
                Err(error) => self.fail(&error),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Benchmarks of one distribution and element type, which share their numbers.
    fn random(&mut self, workload: &dyn Workload, group: &[Benchmark]) -> Result<()> {
        let Some((first, dtype)) = group.first().and_then(|it| Some((it, it.dtype?))) else {
            return Ok(());
        };
        let filling = DataSpec {
            dtype,
            coordinates: self.coordinates.dtype(dtype),
            distribution: first.numbers.points.unwrap_or(Distribution::Local),
            backward: group.iter().any(|it| it.direction == Direction::Backward),
            seed: self.seed,
        };
        let problem = workload.problem(dtype)?;
        let group = &self.left_to_do(group, &problem, &workload.dtypes(&filling));
        if group.is_empty() {
            return Ok(());
        }
        self.expect_memory(first, workload.bytes(&filling)?)?;
        self.say(first, "generating random inputs");
        self.group(group, &*workload.filled(&filling)?)
    }

    /// Benchmarks of the tensors of a file.
    fn file(&mut self, file: &MappedFile, group: &[Benchmark]) -> Result<()> {
        let reading = Reading::Time { seed: self.seed };
        let tensors = file.operator().read(file, reading)?;
        let forward = tensors.trial(self.target.backend, Direction::Forward)?;
        let (problem, dtypes) = forward.recorded();
        let group = &self.left_to_do(group, &problem, &dtypes);
        self.group(group, &*tensors)
    }

    fn group(&mut self, group: &[Benchmark], tensors: &dyn TensorSet) -> Result<()> {
        for benchmark in group {
            let trial = tensors.trial(self.target.backend, benchmark.direction)?;
            self.one(benchmark, &*trial)?;
        }
        Ok(())
    }

    fn fail(&mut self, error: &Error) {
        self.bar.suspend(|| error.report());
        if self.failed != Some(ExitCode::MISMATCH) {
            self.failed = Some(error.exit_code());
        }
    }

    fn say(&self, benchmark: &Benchmark, phase: &str) {
        self.bar
            .set_message(format!("{}: {phase}", benchmark.name()));
    }

    /// Refuses what needs more memory than is free: better no result than a machine that swaps.
    fn expect_memory(&self, benchmark: &Benchmark, needed: u64) -> Result<()> {
        match machine::memory_available().filter(|&available| needed > available) {
            None => Ok(()),
            // Passes share their numbers.
            available => Err(Error::Memory {
                what: format!(
                    "{}/{}/{}",
                    benchmark.workload,
                    benchmark.numbers.name,
                    benchmark.dtype.map_or("file", DType::name)
                ),
                needed,
                available,
            }),
        }
    }

    /// The benchmarks of a group that no record of an interrupted run answers. Those that one does are shown with the
    /// rest.
    fn left_to_do(
        &mut self,
        group: &[Benchmark],
        problem: &ProblemRecord,
        dtypes: &DTypes,
    ) -> Vec<Benchmark> {
        let mut left = Vec::new();
        for benchmark in group {
            let has_modes =
                benchmark.direction == Direction::Backward && self.target.cuda().is_some();
            let name = benchmark_name(
                (&benchmark.workload, problem.variant()),
                benchmark.numbers.name,
                (&dtypes.value, dtypes.locations.as_deref()),
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

    /// Verifies and times one benchmark, and records what came of it.
    fn one(&mut self, benchmark: &Benchmark, trial: &dyn Computation) -> Result<()> {
        let name = benchmark.name();
        let task = Task {
            name: &name,
            trial,
            seed: self.seed,
            budget: self.budget,
        };
        if let Some(turns) = &mut self.turns {
            return self.place.in_turns(&task, turns);
        }
        let (problem, dtypes) = trial.recorded();
        let counted = trial.counted();
        let bar = &self.bar;
        let say = |phase: &str| bar.set_message(format!("{name}: {phase}"));
        if self.ceilings.is_empty() {
            say("measuring the hardware's ceilings first");
            let budget = self.budget / CEILINGS_SHARE;
            let device = &self.target.device;
            let ceilings = self.place.ceilings(device, &self.operators, budget);
            // Those that were given up say that they failed.
            interrupt::check()?;
            self.ceilings = ceilings;
            for ceiling in &self.ceilings {
                self.sink.put(&Line::Probe(Box::new(ceiling.clone())))?;
            }
        }
        let measured = self.place.measured(&task, say)?;
        let wrong = measured.found_wrong();
        let mut record = BenchRecord {
            origin: Origin::here(),
            workload: benchmark.workload.clone(),
            distribution: benchmark.numbers.name.to_string(),
            seed: self.seed,
            problem,
            dtypes,
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
            traffic: counted.traffic,
            in_bounds_fraction: counted.in_bounds_fraction,
            touched_fraction: counted.touched_fraction,
            roof: None,
            beside: measured.beside,
        };
        let ceilings = Ceilings {
            probes: &self.ceilings,
            cache_bytes: self.place.cache_bytes(),
        };
        let roof = counted.least.and_then(|least| ceilings.roof(least));
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
    fn conclude(mut self, arguments: &BenchArgs, page: Option<Destination>) -> Result<ExitCode> {
        let interrupted = interrupt::is_requested() && self.records.len() < self.planned;
        let interrupted = interrupted.then(|| InterruptedRecord {
            origin: Origin::here(),
            measured: self.records.len(),
            planned: self.planned,
        });
        if let Some(interrupted) = &interrupted {
            self.sink.put(&Line::Interrupted(interrupted.clone()))?;
        }
        let timed = self.records.iter().any(|record| record.hot.is_some());
        if !matches!(self.sink, Sink::Stdout) && timed {
            let on_cuda = matches!(self.place, Place::Cuda(_));
            print(table::bench_results(&self.records, &self.ceilings, on_cuda))?;
        }
        for doubt in doubts(&self.records, &self.ceilings, arguments.quick) {
            note(&format!("note: {doubt}"));
        }
        if let (Some(page), Some(file)) = (page, &arguments.report)
            && (interrupted.is_none() || !self.records.is_empty())
        {
            let run = Run {
                path: arguments
                    .json
                    .clone()
                    .unwrap_or_else(|| "fourtap bench".into()),
                benches: self.records,
                probes: self.ceilings,
                interrupted: interrupted.clone(),
                ..Run::default()
            };
            page.write_bytes(report::html(&[run])?.as_bytes())?;
            note(&format!("wrote {}", file.display()));
        }
        if let Some(interrupted) = interrupted {
            let hint = match (&arguments.json, &self.sink) {
                (Some(_), Sink::File { path, .. }) => {
                    format!("; --resume --json {} measures the rest", path.display())
                }
                _ => String::new(),
            };
            note(&format!("{}{hint}", interrupted.in_words()));
            return Ok(ExitCode::INTERRUPTED);
        }
        Ok(self.failed.unwrap_or(ExitCode::SUCCESS))
    }
}
