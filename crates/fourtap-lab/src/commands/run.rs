//! `fourtap run`: tensors in, tensors out.

use crate::exit::ExitCode;
use std::time::Instant;

use serde::Serialize;

use super::{note, print_json, progress};
use crate::array::Array;
use crate::cli::RunArgs;
use crate::computation::{Computation, computed};
use crate::dense::DenseTrial;
use crate::error::{Error, Result};
use crate::output::Destination;
use crate::record::{AnyProblem, DTypes, DenseSizes, SCHEMA};
use crate::target::{Device, Target};
use crate::tensors::{DenseTensors, GradOut, MappedFile, Placement, Tensors};
use crate::trial::Trial;
use crate::workload::Operator;

/// What was done.
#[derive(Debug, Serialize)]
struct Done<'a> {
    schema: u32,
    version: &'a str,
    command: &'a str,
    input: String,
    output: String,
    tensors: Vec<&'a str>,
    problem: AnyProblem,
    dtypes: DTypes,
    device: &'a Device,
    /// Whether every run gives these bits: gradients on CUDA promise it only if asked to.
    deterministic: bool,
    /// Seconds of computing; on CUDA with loading the kernels, which may mean compiling them.
    compute_seconds: f64,
    /// Seconds of everything.
    total_seconds: f64,
}

/// What there is to compute, checked before anything is.
struct Work<'a> {
    trials: Vec<Box<dyn Computation + 'a>>,
    problem: AnyProblem,
    dtypes: DTypes,
    ignored: &'a [String],
}

pub fn execute(arguments: &RunArgs) -> Result<ExitCode> {
    let started = Instant::now();
    let target = Target::new(&arguments.target)?;
    let file = MappedFile::open(&arguments.input)?;
    let destination = Destination::new(&arguments.output, file.path(), arguments.force)?;
    let backend = target.backend;
    let misfit = |source| file.misfit(source);
    let refused = |option, expected| Error::WrongOperator {
        option,
        expected,
        found: file.path().display().to_string(),
    };
    let compute = |work| computed_and_written(arguments, &target, destination, work, started);
    match file.operator() {
        Operator::Msda if arguments.lse => Err(refused("--lse", Operator::Dense)),
        Operator::Dense if arguments.grad => Err(refused("--grad", Operator::Msda)),
        Operator::Msda => {
            let grad_out = match arguments.grad {
                true => GradOut::Required,
                false => GradOut::Ignored,
            };
            let tensors = Tensors::read(&file, grad_out, Placement::AsItLies)?;
            let forward = Trial::forward(backend, tensors.inputs()).map_err(misfit)?;
            let (problem, dtypes) = (forward.problem().into(), forward.problem().into());
            let mut trials: Vec<Box<dyn Computation + '_>> = vec![Box::new(forward)];
            if let Some(grad_out) = &tensors.grad_out {
                let backward = Trial::backward(backend, tensors.inputs(), grad_out.view());
                trials.push(Box::new(backward.map_err(misfit)?));
            }
            compute(Work {
                trials,
                problem: AnyProblem::Msda(problem),
                dtypes,
                ignored: &tensors.ignored,
            })
        }
        Operator::Dense => {
            let tensors = DenseTensors::read(&file, Placement::AsItLies)?;
            let trial = DenseTrial::new(backend, tensors.inputs(), tensors.options);
            let mut trial = trial.map_err(misfit)?;
            if arguments.lse {
                trial = trial.with_lse();
            }
            compute(Work {
                problem: AnyProblem::Dense(DenseSizes::from(trial.problem())),
                dtypes: DTypes::from(trial.problem()),
                trials: vec![Box::new(trial)],
                ignored: &tensors.ignored,
            })
        }
    }
}

fn computed_and_written(
    arguments: &RunArgs,
    target: &Target,
    destination: Destination,
    work: Work<'_>,
    started: Instant,
) -> Result<ExitCode> {
    if !work.ignored.is_empty() {
        note(&format!(
            "note: {}: ignored: {}",
            arguments.input.display(),
            work.ignored.join(", ")
        ));
    }
    let mut outputs: Vec<Array> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    let mut compute_seconds = 0.0;
    let bar = progress(work.trials.len() as u64 + 1);
    for trial in &work.trials {
        bar.set_message(format!("computing {}", trial.output_names().join(", ")));
        let (mut computed, took) = computed(trial.as_ref())?;
        compute_seconds += took.as_secs_f64();
        outputs.append(&mut computed);
        names.extend(trial.output_names());
        bar.inc(1);
    }
    let named: Vec<(&str, &Array)> = names.iter().copied().zip(&outputs).collect();
    bar.set_message("writing");
    destination.write(&named)?;
    bar.finish_and_clear();

    let device = &target.device;
    if arguments.json {
        print_json(&Done {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            command: "run",
            input: arguments.input.display().to_string(),
            output: arguments.output.display().to_string(),
            tensors: names,
            problem: work.problem,
            dtypes: work.dtypes,
            device,
            deterministic: arguments.target.deterministic
                || !arguments.grad
                || target.cuda().is_none(),
            compute_seconds,
            total_seconds: started.elapsed().as_secs_f64(),
        })?;
    } else {
        let written: Vec<_> = named
            .iter()
            .map(|(name, array)| format!("{name} {} {}", array.shape(), array.dtype()))
            .collect();
        note(&format!(
            "wrote {}: {}; computed in {:.1} ms on {}",
            arguments.output.display(),
            written.join(", "),
            1e3 * compute_seconds,
            device.in_words(),
        ));
    }
    Ok(ExitCode::SUCCESS)
}
