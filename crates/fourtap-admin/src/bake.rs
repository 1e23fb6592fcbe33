//! `fourtap bake`: kernels compiled into a file, for machines without a compiler.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use fourtap::DType;
use fourtap::cuda::SpecialisedKernel;
use fourtap::cuda::jit::{Architecture, JitError, Nvrtc, PackBuilder, Program};
use fourtap::cuda::msda::{Kind, Types};
use indicatif::ProgressBar;
use rayon::prelude::*;
use serde::Serialize;

use crate::cli::BakeArgs;
use crate::console::{note, print_json, progress};
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::{SCHEMA, VERSION, units};

/// The JSON record of the command.
#[derive(Debug, Serialize)]
struct BakeReport {
    schema: u32,
    version: &'static str,
    command: &'static str,
    output: String,
    nvrtc: String,
    kernels: Vec<BakedKernel>,
    bytes: u64,
    seconds: f64,
}

/// A kernel in the pack.
#[derive(Debug, Serialize)]
struct BakedKernel {
    name: String,
    architecture: String,
    fingerprint: String,
    bytes: usize,
}

pub fn execute(arguments: &BakeArgs) -> Result<ExitCode> {
    let started = Instant::now();
    writable(&arguments.output)?;
    let nvrtc = Nvrtc::get()?;
    for &architecture in &arguments.arch {
        looked_for(architecture)?;
    }
    let programs = programs(arguments);
    let bar = progress(programs.len() as u64);
    let compiled = in_parallel(arguments.jobs, || {
        programs
            .par_iter()
            .map(|program| compile(nvrtc, program, &bar))
            .collect::<Result<Vec<_>>>()
    })??;
    bar.finish_and_clear();

    let mut pack = PackBuilder::new();
    let mut kernels = Vec::new();
    for (program, code) in programs.iter().zip(compiled) {
        let fingerprint = program.fingerprint();
        kernels.push(BakedKernel {
            name: program.name.clone(),
            architecture: program.architecture.to_string(),
            fingerprint: fingerprint.to_string(),
            bytes: code.len(),
        });
        pack.add(fingerprint, &program.name, program.architecture, code);
    }
    pack.write(&arguments.output)?;

    let bytes = fs::metadata(&arguments.output).map_or(0, |file| file.len());
    if arguments.json {
        let baked = BakeReport {
            schema: SCHEMA,
            version: VERSION,
            command: "bake",
            output: arguments.output.display().to_string(),
            nvrtc: nvrtc.version().to_string(),
            kernels,
            bytes,
            seconds: started.elapsed().as_secs_f64(),
        };
        print_json(&baked).map_err(Error::Stdout)?;
        return Ok(ExitCode::SUCCESS);
    }
    note(&format!(
        "wrote {}: {}, {}, compiled by NVRTC {} in {:.1} s",
        arguments.output.display(),
        units::kernels(kernels.len()),
        units::bytes(bytes),
        nvrtc.version(),
        started.elapsed().as_secs_f64(),
    ));
    Ok(ExitCode::SUCCESS)
}

/// Refuses an output that cannot be written, before minutes of compiling.
fn writable(output: &Path) -> Result<()> {
    let file = output.to_path_buf();
    if output.file_name().is_none() || output.is_dir() {
        let found = "a folder";
        return Err(Error::NotAFile { file, found });
    }
    let folder = match output.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Error::Write {
            file,
            source: io::ErrorKind::NotADirectory.into(),
        }),
        Err(source) => Err(Error::Write { file, source }),
    }
}

/// Refuses an architecture that no device looks for in a pack.
fn looked_for(found: Architecture) -> Result<()> {
    let expected = Architecture::of_device(found.major(), found.minor());
    match expected == found {
        true => Ok(()),
        false => Err(Error::Architecture { expected, found }),
    }
}

/// All programs that the combinations need, each once.
fn programs(arguments: &BakeArgs) -> Vec<Program> {
    let mut seen = HashSet::new();
    let mut programs = Vec::new();
    for kind in kinds(arguments) {
        for kernel in kind.kernels() {
            for &architecture in &arguments.arch {
                let program = kernel.program(architecture);
                if seen.insert(program.fingerprint()) {
                    programs.push(program);
                }
            }
        }
    }
    programs
}

fn kinds(arguments: &BakeArgs) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for &dtype in &arguments.dtype {
        let value = DType::from(dtype);
        let coordinates = arguments.coordinates.dtype(value);
        let types = Types {
            value,
            locations: coordinates,
            weights: coordinates,
        };
        for &channels in &arguments.channels {
            for &heads in &arguments.heads {
                for &levels in &arguments.levels {
                    for &points in &arguments.points {
                        kinds.push(Kind {
                            sampling: Default::default(),
                            types,
                            heads: heads as usize,
                            channels: channels as usize,
                            levels: levels as usize,
                            points: points as usize,
                        });
                    }
                }
            }
        }
    }
    kinds
}

fn compile(nvrtc: &Nvrtc, program: &Program, bar: &ProgressBar) -> Result<Vec<u8>> {
    bar.set_message(format!("{} for {}", program.name, program.architecture));
    let compiled = nvrtc.compile(program).map_err(|error| match error {
        JitError::ArchitectureUnsupported { .. } => Error::UnknownArchitecture {
            source: Box::new(error),
        },
        other => other.into(),
    })?;
    bar.inc(1);
    Ok(compiled.code)
}

/// Runs on the given number of threads, by default on all cores.
fn in_parallel<R: Send>(jobs: Option<u32>, work: impl FnOnce() -> R + Send) -> Result<R> {
    let Some(requested) = jobs else {
        return Ok(work());
    };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(requested as usize)
        .build()
        .map_err(|error| Error::Jobs {
            requested,
            reason: error.to_string(),
        })?;
    Ok(pool.install(work))
}
