//! `fourtap run`: tensors in, tensors out.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use super::{note, print_json, progress};
use crate::array::Array;
use crate::cli::{Direction, RunArgs};
use crate::computation::computed;
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::operators::{Reading, refused, without_backward};
use crate::output::{Destination, write_safetensors};
use crate::record::{DTypes, ProblemRecord, SCHEMA};
use crate::target::{Device, Target};
use crate::tensors::MappedFile;

/// The JSON record of the command.
#[derive(Debug, Serialize)]
struct RunSummary<'a> {
    schema: u32,
    version: &'a str,
    command: &'a str,
    input: String,
    output: String,
    tensors: Vec<&'a str>,
    problem: ProblemRecord,
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
    let destination = match arguments.output == Path::new("-") {
        true => {
            expect_reader(arguments.json)?;
            None
        }
        false => Some(Destination::new(
            &arguments.output,
            file.path(),
            arguments.force,
        )?),
    };
    let operator = file.operator();
    let found = || file.path().display().to_string();
    if arguments.lse && !operator.has_lse() {
        return Err(refused("--lse", found(), |it| it.has_lse()));
    }
    let mut passes = vec![Direction::Forward];
    if arguments.grad {
        passes.push(Direction::Backward);
    }
    if !passes.iter().all(|pass| operator.passes().contains(pass)) {
        return Err(without_backward("--grad", operator, found()));
    }
    let reading = Reading::Compute {
        grad: arguments.grad,
        lse: arguments.lse,
    };
    // All is checked before anything is computed.
    let tensors = operator.read(&file, reading)?;
    let trials = passes
        .iter()
        .map(|&pass| tensors.trial(target.backend, pass));
    let trials = trials.collect::<Result<Vec<_>>>()?;
    if !tensors.ignored().is_empty() {
        note(&format!(
            "note: {}: ignored: {}",
            arguments.input.display(),
            tensors.ignored().join(", ")
        ));
    }
    let mut outputs: Vec<Array> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    let mut compute_seconds = 0.0;
    let bar = progress(trials.len() as u64 + 1);
    for trial in &trials {
        bar.set_message(format!("computing {}", trial.output_names().join(", ")));
        let (mut computed, took) = computed(trial.as_ref())?;
        compute_seconds += took.as_secs_f64();
        outputs.append(&mut computed);
        names.extend(trial.output_names());
        bar.inc(1);
    }
    let named: Vec<(&str, &Array)> = names.iter().copied().zip(&outputs).collect();
    bar.set_message("writing");
    match destination {
        Some(destination) => destination.write(&named)?,
        None => {
            let mut stdout = BufWriter::new(io::stdout().lock());
            write_safetensors(&mut stdout, &named)
                .and_then(|()| stdout.flush())
                .map_err(Error::Stdout)?;
        }
    }
    bar.finish_and_clear();

    let device = &target.device;
    if arguments.json {
        let (problem, dtypes) = trials[0].recorded();
        print_json(&RunSummary {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            command: "run",
            input: arguments.input.display().to_string(),
            output: arguments.output.display().to_string(),
            tensors: names,
            problem,
            dtypes,
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

/// Refuses to write tensors where they would be of no use: to people, or into a record.
fn expect_reader(json: bool) -> Result<()> {
    let found = match (io::stdout().is_terminal(), json) {
        (true, _) => "a terminal",
        (_, true) => "that --json prints there",
        _ => return Ok(()),
    };
    Err(Error::TensorsToStdout { found })
}
