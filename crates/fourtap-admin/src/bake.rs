//! `fourtap bake`: kernels compiled into a file, for machines without a compiler.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use fourtap::DType;
use fourtap::cuda::SpecialisedKernel;
use fourtap::cuda::jit::{Architecture, JitError, Nvrtc, PackBuilder, PackFolder, Program};
use fourtap::cuda::msda::{
    Gather, KernelVariant, Kind, Projection, SamplesGather, Sampling, Sort, Types,
};
use indicatif::ProgressBar;
use rayon::prelude::*;
use serde::Serialize;

use crate::choices::BakeInputs;
use crate::cli::BakeArgs;
use crate::console::{note, print_json, progress};
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::{SCHEMA, VERSION, units, usual};

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
    if !arguments.usual {
        writable(&arguments.output)?;
    }
    let nvrtc = Nvrtc::get()?;
    for &architecture in &arguments.arch {
        looked_for(architecture)?;
    }
    let mut programs = match arguments.usual {
        true => usual_programs(&arguments.arch)?,
        false => programs(arguments),
    };
    if let Some(text) = &arguments.only {
        programs.retain(|program| program.name.contains(text));
        if programs.is_empty() {
            let only = text.clone();
            return Err(Error::NoKernel { only });
        }
    }
    let bar = progress(programs.len() as u64);
    let compiled = in_parallel(arguments.jobs, || {
        programs
            .par_iter()
            .map(|program| compile(nvrtc, program, &bar))
            .collect::<Result<Vec<_>>>()
    })??;
    bar.finish_and_clear();

    let mut packs = BTreeMap::<_, PackBuilder>::new();
    let mut kernels = Vec::new();
    for (program, code) in programs.iter().zip(compiled) {
        let fingerprint = program.fingerprint();
        kernels.push(BakedKernel {
            name: program.name.clone(),
            architecture: program.architecture.to_string(),
            fingerprint: fingerprint.to_string(),
            bytes: code.len(),
        });
        // One file for all, or one for each architecture.
        let file = arguments.usual.then_some(program.architecture);
        let pack = packs.entry(file).or_default();
        pack.add(fingerprint, &program.name, program.architecture, code);
    }
    let bytes = kernels.iter().map(|kernel| kernel.bytes as u64).sum();
    match arguments.usual {
        true => {
            let packs = packs
                .into_iter()
                .filter_map(|(file, pack)| Some((file?, pack)));
            PackFolder::write(&arguments.output, &packs.collect())?;
        }
        false => {
            let pack = packs.remove(&None).unwrap_or_default();
            pack.write(&arguments.output)?;
        }
    }
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

/// Those of usual calls on devices of these architectures, or of all that are usual.
fn usual_programs(architectures: &[Architecture]) -> Result<Vec<Program>> {
    let mut architectures = architectures.to_vec();
    if architectures.is_empty() {
        let all = usual::ARCHITECTURES.iter().map(|name| name.parse());
        architectures = all.collect::<std::result::Result<_, JitError>>()?;
    }
    Ok(architectures
        .into_iter()
        .flat_map(usual::programs)
        .collect())
}

/// All programs that the combinations need, each once.
fn programs(arguments: &BakeArgs) -> Vec<Program> {
    let mut seen = HashSet::new();
    let mut programs = Vec::new();
    for kind in kinds(arguments) {
        for kernel in kernels(&kind) {
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

/// The kernels of a kind; of projections also those for other layouts that linear layers give them.
fn kernels(kind: &Kind) -> Vec<KernelVariant> {
    let mut kernels = kind.kernels();
    if kind.sampling != Sampling::Given {
        let others: Vec<_> = (kernels.iter())
            .flat_map(|kernel| for_other_layouts(kernel, kind))
            .collect();
        kernels.extend(others);
        let exact: Vec<_> = kernels.iter().filter_map(with_all_digits).collect();
        kernels.extend(exact);
    }
    kernels
}

/// The same kernel for gradients that are kept in f32, as those of reference points are.
fn with_all_digits(kernel: &KernelVariant) -> Option<KernelVariant> {
    let exact = |gather: Gather| Gather {
        exact: true,
        ..gather
    };
    let kernel = match *kernel {
        KernelVariant::SamplesGather(SamplesGather { gather, scatter }) if !gather.exact => {
            KernelVariant::SamplesGather(SamplesGather {
                gather: exact(gather),
                scatter,
            })
        }
        KernelVariant::SamplesMatrix(gather) if !gather.exact => {
            KernelVariant::SamplesMatrix(exact(gather))
        }
        _ => return None,
    };
    Some(kernel)
}

/// A kernel for offsets and logits that are slices of one tensor: with gaps between their rows, and with and without gaps
/// between those of gradients. And one for points that can be read four at a time.
fn for_other_layouts(kernel: &KernelVariant, kind: &Kind) -> Vec<KernelVariant> {
    let gaps = |gather: Gather, grads_dense| Gather {
        dense: false,
        grads_dense,
        ..gather
    };
    let both = [true, false];
    match *kernel {
        KernelVariant::Gather(gather) => vec![KernelVariant::Gather(gaps(gather, true))],
        KernelVariant::Matrix(gather) => vec![KernelVariant::Matrix(gaps(gather, true))],
        KernelVariant::SamplesGather(SamplesGather { gather, scatter }) => both
            .map(|dense| SamplesGather {
                gather: gaps(gather, dense),
                scatter,
            })
            .map(KernelVariant::SamplesGather)
            .to_vec(),
        KernelVariant::SamplesMatrix(gather) => both
            .map(|dense| KernelVariant::SamplesMatrix(gaps(gather, dense)))
            .to_vec(),
        KernelVariant::Sort(sort)
            if kind.points.is_multiple_of(4) && kind.types.value != DType::F64 =>
        {
            vec![KernelVariant::Sort(Sort {
                fours: true,
                ..sort
            })]
        }
        _ => Vec::new(),
    }
}

/// How kernels for these inputs sample.
fn sampling(inputs: BakeInputs) -> Sampling {
    let projected = |boxes| {
        Sampling::Projected(Projection {
            references: DType::F32,
            boxes,
            nearest: false,
            turns: 1,
            uneven: None,
        })
    };
    match inputs {
        BakeInputs::Given => Sampling::Given,
        BakeInputs::Points => projected(false),
        BakeInputs::Boxes => projected(true),
    }
}

fn kinds(arguments: &BakeArgs) -> Vec<Kind> {
    let mut kinds = Vec::new();
    let each = (arguments.dtype.iter())
        .flat_map(|&dtype| arguments.inputs.iter().map(move |&inputs| (dtype, inputs)));
    for (dtype, inputs) in each {
        let value = DType::from(dtype);
        let coordinates = match inputs {
            BakeInputs::Given => arguments.coordinates.dtype(value),
            BakeInputs::Points | BakeInputs::Boxes => value,
        };
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
                            sampling: sampling(inputs),
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

#[cfg(test)]
mod tests {
    use super::*;
    use fourtap::cuda::DeviceSize;
    use fourtap::cuda::msda::{KernelChoice, ProblemDesc, ProjectedDesc};
    use fourtap::msda::Levels;

    /// Of projections in `dtype` to points or boxes, whether a pack for it has every kernel of its plans.
    fn expect_baked(value: DType, boxes: bool, queries: usize) {
        let levels = Levels::packed(&[(100, 167), (50, 84), (25, 42), (13, 21)]).unwrap();
        let types = Types {
            value,
            locations: value,
            weights: value,
        };
        let kind = Kind {
            types,
            sampling: sampling(if boxes {
                BakeInputs::Boxes
            } else {
                BakeInputs::Points
            }),
            heads: 8,
            channels: 32,
            levels: 4,
            points: 4,
        };
        let described = ProjectedDesc {
            call: ProblemDesc {
                images: 2,
                queries,
                heads: kind.heads,
                channels: kind.channels,
                points: kind.points,
                levels: &levels,
                types,
            },
            references: DType::F32,
            boxes,
        };
        let device = DeviceSize {
            multiprocessors: 132,
            l2_bytes: 62_914_560,
            shared_bytes: 232_448,
            has_wgmma: true,
        };
        let best = KernelChoice::Best;
        let forward = described.forward(device, best).unwrap();
        let mut planned: Vec<_> = forward.steps().iter().map(|step| step.kernel).collect();
        for deterministic in [false, true] {
            let plan = described.backward(device, best, deterministic).unwrap();
            planned.extend(plan.steps().iter().map(|step| step.kernel));
        }
        let baked = kernels(&kind);
        for kernel in planned {
            assert!(
                baked.contains(&kernel),
                "{kernel} of {queries} queries in {value}"
            );
        }
    }

    #[test]
    fn packs_serve_projections_of_one_linear_layer() {
        for value in [DType::F16, DType::BF16, DType::F32] {
            for queries in [300, 22223] {
                expect_baked(value, false, queries);
                expect_baked(value, true, queries);
            }
        }
    }
}
