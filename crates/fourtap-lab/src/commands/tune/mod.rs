//! `fourtap tune`: search for better choices about a kernel.

mod csv;
mod errand;
mod keep;
mod one;
mod search;
mod watched;

use std::path::{Path, PathBuf};

use fourtap::Backend;
use fourtap::cpu::{Cpu, Simd};
use fourtap::tuning::{Choice, Space, Table};

use super::print;
use crate::cli::{DeviceChoice, SearchArgs, TuneArgs, TuneProblem, TuneWhat};
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::nearest::nearest;
use crate::record::{Run, TuneSubject};
use crate::selection;
use crate::table;
use crate::target::Device;
use crate::tune::{Subject, entry};
use crate::workload::{AnyWorkload, Operator};

/// What a kernel is tried on unless told otherwise.
const MSDA_WORKLOAD: &str = "detr-encoder";
const DENSE_WORKLOAD: &str = "dense-s2048-d64";

pub fn execute(arguments: &TuneArgs) -> Result<ExitCode> {
    match &arguments.what {
        Some(TuneWhat::One(one)) => one::execute(one),
        Some(TuneWhat::Table { runs }) => table_of(runs),
        Some(TuneWhat::Attempt(errand)) => errand::attempt(errand),
        Some(TuneWhat::Finals(errand)) => errand::finals(errand),
        None if arguments.search.space => {
            print(table::spaces())?;
            Ok(ExitCode::SUCCESS)
        }
        None => search::execute(&arguments.search),
    }
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

/// Only the CPU's kernels declare what can be chosen about them.
fn expect_cpu(device: DeviceChoice) -> Result<()> {
    match device {
        DeviceChoice::Auto | DeviceChoice::Cpu => Ok(()),
        DeviceChoice::Cuda(_) => Err(Error::Misplaced {
            option: "tune",
            expected: "the CPU",
            found: device.to_string(),
        }),
    }
}

/// What the targets name, each element type of it.
fn subjects(arguments: &SearchArgs) -> Result<Vec<Subject>> {
    let (targets, problem) = (&arguments.targets, &arguments.problem);
    expect_cpu(problem.device)?;
    if targets.is_empty() {
        return Err(Error::Incomplete {
            option: "tune",
            expected: "a workload or a kernel to tune",
        });
    }
    let mut subjects = Vec::new();
    for target in targets {
        for (space, named, workload) in resolved(target, arguments)? {
            for &dtype in &problem.dtype {
                subjects.push(Subject {
                    space,
                    named: named.clone(),
                    workload: workload.clone(),
                    distribution: problem.distribution,
                    dtype: dtype.into(),
                });
            }
        }
    }
    Ok(subjects)
}

/// The subject of a kernel by its name, for the first element type asked for.
fn subject(kernel: &str, problem: &TuneProblem) -> Result<Subject> {
    expect_cpu(problem.device)?;
    let Some(space) = Space::named(kernel) else {
        return Err(unknown(kernel));
    };
    let dtype = problem.dtype.first().copied();
    let (named, workload) = workload_of(space, problem)?;
    Ok(Subject {
        space,
        named,
        workload,
        distribution: problem.distribution,
        dtype: dtype.map_or(fourtap::DType::F32, Into::into),
    })
}

/// Kernels and workloads a target stands for; workloads as they were named, too.
fn resolved(
    target: &Path,
    arguments: &SearchArgs,
) -> Result<Vec<(&'static Space, PathBuf, AnyWorkload)>> {
    let problem = &arguments.problem;
    let name = target.to_str().unwrap_or_default();
    if let Some(space) = Space::named(name) {
        let (named, workload) = workload_of(space, problem)?;
        return Ok(vec![(space, named, workload)]);
    }
    let workload = match selection::any_workload(target, problem.images) {
        Err(Error::UnknownWorkload { .. }) => return Err(unknown(name)),
        found => found?,
    };
    let operator = workload.operator();
    let asked = |space: &&'static Space| {
        let (computed, direction) = Subject::computes(space);
        let passes = &arguments.direction;
        computed == operator && (passes.is_empty() || passes.contains(&direction))
    };
    let spaces: Vec<_> = Space::all().filter(asked).collect();
    if spaces.is_empty() {
        return Err(Error::WrongOperator {
            option: "--direction backward",
            expected: Operator::Msda,
            found: name.to_string(),
        });
    }
    Ok(spaces
        .into_iter()
        .map(|space| (space, target.to_path_buf(), workload.clone()))
        .collect())
}

fn workload_of(space: &Space, problem: &TuneProblem) -> Result<(PathBuf, AnyWorkload)> {
    let (operator, _) = Subject::computes(space);
    let usual = match operator {
        Operator::Msda => MSDA_WORKLOAD,
        Operator::Dense => DENSE_WORKLOAD,
    };
    let named = problem.workload.clone().unwrap_or(usual.into());
    let workload = selection::any_workload(&named, problem.images)?;
    match workload.operator() == operator {
        true => Ok((named, workload)),
        false => Err(Error::WrongOperator {
            option: "--workload",
            expected: operator,
            found: named.display().to_string(),
        }),
    }
}

fn unknown(name: &str) -> Error {
    let kernels = Space::all().map(|space| space.kernel);
    let workloads = Operator::ALL.into_iter().flat_map(Operator::workloads);
    let near = nearest(name, kernels.chain(workloads)).map(str::to_string);
    Error::UnknownTarget {
        name: name.to_string(),
        near,
    }
}

/// What computes a choice.
fn backend(choice: &Choice) -> std::result::Result<Backend, String> {
    Cpu::new().with_choice(choice).map(Backend::Cpu)
}

/// A subject as records name it.
fn recorded(subject: &Subject, seed: u64) -> Result<TuneSubject> {
    Ok(TuneSubject {
        device: Device::of_cpu(Simd::best()),
        kernel: subject.space.kernel.to_string(),
        workload: subject.workload_name().to_string(),
        distribution: subject.distribution().to_string(),
        dtype: subject.dtype.to_string(),
        problem: subject.problem()?,
        class: subject.class()?.to_string(),
        seed,
    })
}
