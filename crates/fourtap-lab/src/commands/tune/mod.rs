//! `fourtap tune`: search for better choices about a kernel.

mod builders;
mod csv;
mod keep;
mod one;
mod search;
mod trial_worker;
mod work;
mod workbench;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fourtap::DType;
use fourtap::cpu::Simd;
use fourtap::cuda::Cuda;
use fourtap::cuda::driver;
use fourtap::tuning::Table;

use super::print;
use crate::cli::{DeviceChoice, DevicesChoice, SearchArgs, TuneArgs, TuneCommand, TuneProblem};
use crate::devices;
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::nearest::nearest;
use crate::operators::{Workload, without_backward};
use crate::record::{Run, TuneSubject};
use crate::selection;
use crate::table;
use crate::target::Device;
use crate::tune::{Engine, Gpu, Subject, Tunable, entry, tunables};

pub fn execute(arguments: &TuneArgs) -> Result<ExitCode> {
    match &arguments.what {
        Some(TuneCommand::One(one)) => one::execute(one),
        Some(TuneCommand::Table { runs }) => table_of(runs),
        Some(TuneCommand::Work(arguments)) => work::work(arguments),
        None if arguments.search.space => {
            print(table::spaces(&listed(&arguments.search.targets)?))?;
            Ok(ExitCode::SUCCESS)
        }
        None => search::execute(&arguments.search),
    }
}

/// The kernels named, or all.
fn listed(targets: &[PathBuf]) -> Result<Vec<Tunable>> {
    if targets.is_empty() {
        return Ok(tunables().to_vec());
    }
    let named = |target: &PathBuf| {
        let name = target.to_str().unwrap_or_default();
        Tunable::named(name).ok_or_else(|| unknown(name))
    };
    targets.iter().map(named).collect()
}

/// Prints what searches found as a table, the later ones in the place of earlier ones.
fn table_of(runs: &[PathBuf]) -> Result<ExitCode> {
    let mut table = Table::default();
    for path in runs {
        let run = Run::read(path)?;
        for tuned in &run.tuned {
            let entry = entry(tuned).map_err(|expected| Error::Records {
                file: path.clone(),
                line: None,
                found: format!("one of another version: expected {expected}"),
            })?;
            match tuned.winner {
                0 => drop(table.remove(&entry)),
                _ => table.put(entry),
            }
        }
    }
    print(table.to_text())?;
    Ok(ExitCode::SUCCESS)
}

/// The device to tune for; none: the processor.
fn device(choice: DeviceChoice) -> Result<Option<driver::Device>> {
    match choice {
        DeviceChoice::Cpu => Ok(None),
        DeviceChoice::Auto => Ok(Cuda::find(0).ok()),
        DeviceChoice::Cuda(ordinal) => {
            let found = Cuda::find(ordinal as usize).map_err(|source| Error::NoCuda {
                requested: choice.to_string(),
                source: Box::new(source),
            });
            Ok(Some(found?))
        }
    }
}

/// What a kernel runs on: a kernel of the processor does whatever other devices there are.
fn engine(tunable: &Tunable, device: Option<&driver::Device>) -> Result<Engine> {
    let gpu = || match device {
        Some(device) => Ok(Gpu::of(device.facts())),
        None => Err(Error::Misplaced {
            option: tunable.space.kernel,
            expected: "a CUDA device",
            found: "the CPU".to_string(),
        }),
    };
    Ok(match tunable.external {
        Some(kernel) => Engine::External(kernel, gpu()?),
        None if tunable.is_cuda() => Engine::Cuda(gpu()?),
        None => Engine::Cpu,
    })
}

/// Where to search: none is the processor.
fn places(arguments: &SearchArgs) -> Result<Vec<Option<driver::Device>>> {
    match arguments.devices {
        Some(DevicesChoice::All) => Ok(devices::all()?.into_iter().map(Some).collect()),
        None => Ok(vec![device(arguments.problem.device)?]),
    }
}

/// What the targets name, each element type of it.
fn subjects(arguments: &SearchArgs, device: Option<&driver::Device>) -> Result<Vec<Subject>> {
    let (targets, problem) = (&arguments.targets, &arguments.problem);
    if targets.is_empty() {
        return Err(Error::Incomplete {
            option: "tune",
            expected: "a workload or a kernel to tune",
        });
    }
    let mut subjects = Vec::new();
    for target in targets {
        for (tunable, named, workload) in resolved(target, arguments, device)? {
            // Searches at the same time would share one processor.
            if arguments.devices.is_some() && !tunable.is_cuda() {
                return Err(Error::Misplaced {
                    option: "--devices",
                    expected: "CUDA devices",
                    found: format!("{}, a kernel of the CPU", tunable.space.kernel),
                });
            }
            let engine = engine(&tunable, device)?;
            for dtype in dtypes(problem, &tunable) {
                subjects.push(Subject {
                    space: tunable.space,
                    engine: engine.clone(),
                    direction: tunable.computes().1,
                    named: named.clone(),
                    workload: workload.clone(),
                    distribution: problem.distribution,
                    dtype,
                });
            }
        }
    }
    Ok(subjects)
}

/// The element types asked for, else the usual one.
fn dtypes(problem: &TuneProblem, tunable: &Tunable) -> Vec<DType> {
    match (problem.dtype.is_empty(), tunable.is_cuda()) {
        (false, _) => problem.dtype.iter().map(|&dtype| dtype.into()).collect(),
        (true, true) => vec![DType::F16],
        (true, false) => vec![DType::F32],
    }
}

/// The subject of a kernel by its name, for the first element type asked for.
fn subject(kernel: &str, problem: &TuneProblem) -> Result<Subject> {
    let Some(tunable) = Tunable::named(kernel) else {
        return Err(unknown(kernel));
    };
    let device = device(problem.device)?;
    let (named, workload) = workload_of(&tunable, problem)?;
    Ok(Subject {
        space: tunable.space,
        engine: engine(&tunable, device.as_ref())?,
        direction: tunable.computes().1,
        named,
        workload,
        distribution: problem.distribution,
        dtype: dtypes(problem, &tunable)[0],
    })
}

/// A kernel and what it is tuned on: the workload as it was named, and itself.
type OnWorkload = (Tunable, PathBuf, Arc<dyn Workload>);

/// Kernels and workloads a target stands for; workloads as they were named, too.
fn resolved(
    target: &Path,
    arguments: &SearchArgs,
    device: Option<&driver::Device>,
) -> Result<Vec<OnWorkload>> {
    let problem = &arguments.problem;
    let name = target.to_str().unwrap_or_default();
    if let Some(tunable) = Tunable::named(name) {
        let (named, workload) = workload_of(&tunable, problem)?;
        return Ok(vec![(tunable, named, workload)]);
    }
    let workload = match selection::workload(target, problem.images) {
        Err(Error::UnknownWorkload { .. }) => return Err(unknown(name)),
        found => found?,
    };
    let operator = workload.operator();
    let asked = |tunable: &&Tunable| {
        let (computed, direction) = tunable.computes();
        let passes = &arguments.direction;
        tunable.external.is_none()
            && tunable.is_cuda() == device.is_some()
            && computed == operator
            && (passes.is_empty() || passes.contains(&direction))
    };
    let kernels: Vec<_> = tunables().iter().filter(asked).collect();
    if kernels.is_empty() {
        let found = name.to_string();
        return Err(without_backward("--direction backward", operator, found));
    }
    Ok(kernels
        .into_iter()
        .map(|kernel| (*kernel, target.to_path_buf(), workload.clone()))
        .collect())
}

fn workload_of(tunable: &Tunable, problem: &TuneProblem) -> Result<(PathBuf, Arc<dyn Workload>)> {
    let (operator, _) = tunable.computes();
    let named = problem
        .workload
        .clone()
        .unwrap_or(operator.tuning_workload().into());
    let workload = selection::workload(&named, problem.images)?;
    match workload.operator() == operator {
        true => Ok((named, workload)),
        false => Err(Error::WrongOperator {
            option: "--workload",
            expected: operator,
            found: named.display().to_string(),
            hint: None,
        }),
    }
}

fn unknown(name: &str) -> Error {
    let kernels = tunables().iter().map(|tunable| tunable.space.kernel);
    let near = nearest(name, kernels.chain(selection::workload_names())).map(str::to_string);
    Error::UnknownTarget {
        name: name.to_string(),
        near,
    }
}

/// A subject as records name it.
fn recorded(subject: &Subject, seed: u64) -> Result<TuneSubject> {
    Ok(TuneSubject {
        device: match &subject.engine {
            Engine::Cpu => Device::of_cpu(Simd::best()),
            Engine::Cuda(gpu) | Engine::External(_, gpu) => {
                Device::of_cuda(&Cuda::find(gpu.ordinal).map_err(fourtap::Error::from)?)
            }
        },
        kernel: subject.space.kernel.to_string(),
        workload: subject.workload.name().to_string(),
        distribution: subject.distribution().to_string(),
        dtype: subject.dtype.to_string(),
        problem: subject.workload.problem(subject.dtype)?,
        class: subject.workload.class()?.to_string(),
        seed,
    })
}
