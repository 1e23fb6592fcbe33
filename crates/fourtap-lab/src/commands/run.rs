//! `fourtap run`: tensors in, tensors out.

use crate::exit::ExitCode;
use std::time::Instant;

use serde::Serialize;

use super::{note, print_json, progress};
use crate::array::Array;
use crate::cli::RunArgs;
use crate::error::Result;
use crate::output::Destination;
use crate::record::{DTypes, ProblemSizes, SCHEMA};
use crate::target::{Device, Target};
use crate::tensors::{GradOut, MappedFile, Placement, Tensors};
use crate::trial::Trial;

/// What was done.
#[derive(Debug, Serialize)]
struct Done<'a> {
    schema: u32,
    version: &'a str,
    command: &'a str,
    input: String,
    output: String,
    tensors: Vec<&'a str>,
    problem: ProblemSizes,
    dtypes: DTypes,
    device: &'a Device,
    /// Whether every run gives these bits: gradients on CUDA promise it only if asked to.
    deterministic: bool,
    /// Seconds of computing; on CUDA with loading the kernels, which may mean compiling them.
    compute_seconds: f64,
    /// Seconds of everything.
    total_seconds: f64,
}

pub fn execute(arguments: &RunArgs) -> Result<ExitCode> {
    let started = Instant::now();
    let target = Target::new(&arguments.target)?;
    let file = MappedFile::open(&arguments.input)?;
    let destination = Destination::new(&arguments.output, file.path(), arguments.force)?;
    let grad_out = if arguments.grad {
        GradOut::Required
    } else {
        GradOut::Ignored
    };
    let tensors = Tensors::read(&file, grad_out, Placement::AsItLies)?;

    // Everything is checked before anything is computed.
    let (backend, inputs) = (target.backend, tensors.inputs());
    let misfit = |source| file.misfit(source);
    let mut trials = vec![Trial::forward(backend, inputs).map_err(misfit)?];
    if let Some(grad_out) = &tensors.grad_out {
        trials.push(Trial::backward(backend, inputs, grad_out.view()).map_err(misfit)?);
    }
    if !tensors.ignored.is_empty() {
        note(&format!(
            "note: {}: ignored: {}",
            file.path().display(),
            tensors.ignored.join(", ")
        ));
    }

    let mut computed: Vec<Array> = Vec::new();
    let mut compute_seconds = 0.0;
    let bar = progress(trials.len() as u64 + 1);
    for trial in &trials {
        bar.set_message(format!("computing {}", trial.output_names().join(", ")));
        let (mut outputs, took) = trial.computed()?;
        compute_seconds += took.as_secs_f64();
        computed.append(&mut outputs);
        bar.inc(1);
    }
    let names: Vec<&str> = trials
        .iter()
        .flat_map(|trial| trial.output_names().iter().copied())
        .collect();
    let named: Vec<(&str, &Array)> = names.iter().copied().zip(&computed).collect();
    bar.set_message("writing");
    destination.write(&named)?;
    bar.finish_and_clear();

    let (device, problem) = (&target.device, trials[0].problem());
    if arguments.json {
        print_json(&Done {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            command: "run",
            input: arguments.input.display().to_string(),
            output: arguments.output.display().to_string(),
            tensors: names,
            problem: ProblemSizes::from(problem),
            dtypes: DTypes::from(problem),
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
