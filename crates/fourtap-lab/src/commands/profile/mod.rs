//! `fourtap profile`: this program again, under the profiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fourtap::cuda::driver::Driver;

use super::{note, print, progress};
use crate::cli::{CaseArgs, CoordinatesChoice, DeviceChoice, ProfileArgs};
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::explain::Case;
use crate::operators::{OPERATORS, Operator, Workload};
use crate::profile::{
    KernelCounters, Ncu, Statement, binding, by_kernel, compute, counters, launches, wanted,
};
use crate::program;
use crate::record::{CountersRecord, Line, Origin};
use crate::selection;
use crate::sink::{PartialRecord, Sink};
use crate::target::Device;

/// How often the time beside the progress bar is redrawn.
const TICK: Duration = Duration::from_millis(200);

pub fn execute(arguments: &ProfileArgs) -> Result<ExitCode> {
    let workload = selection::workload(&arguments.case.workload, arguments.case.images)?;
    let workload = selection::computed_from(workload, arguments.case.inputs)?;
    if !workload.operator().is_profiled() {
        let mut profiled = OPERATORS.into_iter().filter(|it| it.is_profiled());
        let expected = profiled.next().unwrap_or(OPERATORS[0]);
        return Err(selection::of_another(&*workload, expected));
    }
    let case = &*workload.case(&arguments.case)?;
    if let Some(file) = &arguments.statement {
        compute(&*workload, &arguments.case, arguments.device, file)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.device == DeviceChoice::Cpu {
        return Err(Error::Misplaced {
            option: "profile",
            expected: "a CUDA device",
            found: "the CPU".to_string(),
        });
    }
    let mut sink = Sink::open(arguments.json.as_deref(), PartialRecord::Refuse)?;
    let found = match &arguments.import {
        Some(file) => imported(file, workload.operator())?,
        None => profiled(arguments, &case.name())?,
    };
    let mut records = Vec::new();
    for kernel in found.kernels {
        let record = record(
            (&*workload, &arguments.case, case),
            kernel,
            &found.device,
            &found.source,
        )?;
        sink.put(&Line::Counters(Box::new(record.clone())))?;
        records.push(record);
    }
    if !matches!(sink, Sink::Stdout) {
        print(format!("{}\n{}", case.name(), counters(&records)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Counters, and what they are of.
struct ProfiledKernels {
    kernels: Vec<KernelCounters>,
    device: Device,
    source: String,
}

fn imported(file: &Path, operator: &dyn Operator) -> Result<ProfiledKernels> {
    let text = fs::read(file).map_err(|source| Error::Read {
        file: file.to_path_buf(),
        source,
    })?;
    let mut kernels = by_kernel(&launches(file, &String::from_utf8_lossy(&text))?);
    let all = kernels.len();
    // Names of our kernels' functions begin so.
    let ours = format!("{}_", operator.name());
    let is_ours = |kernel: &KernelCounters| kernel.kernel.starts_with(&ours);
    if kernels.iter().any(is_ours) {
        kernels.retain(is_ours);
    }
    if kernels.len() < all {
        let others = all - kernels.len();
        note(&format!(
            "note: {others} of {all} kernels are not fourtap's and were left out"
        ));
    }
    if kernels.is_empty() {
        return Err(Error::CounterFile {
            file: file.to_path_buf(),
            line: None,
            found: "no kernel".to_string(),
        });
    }
    Ok(ProfiledKernels {
        kernels,
        // The file does not say which.
        device: Device {
            kind: "cuda".to_string(),
            model: None,
            simd: None,
            threads: None,
            cuda: None,
        },
        source: file.display().to_string(),
    })
}

fn profiled(arguments: &ProfileArgs, name: &str) -> Result<ProfiledKernels> {
    let ncu = Ncu::find(arguments.ncu.as_deref())?;
    let bar = progress(2);
    bar.enable_steady_tick(TICK);
    bar.set_message("asking the profiler what it can count");
    let wanted = wanted(&arguments.metrics, &ncu.known_metrics()?);
    bar.inc(1);
    for text in &wanted.notes {
        bar.suspend(|| note(&format!("note: {text}")));
    }
    if wanted.is_blind() {
        return Err(ncu.without(&wanted.missing));
    }
    let folder = tempfile::tempdir().map_err(|source| Error::Write {
        file: std::env::temp_dir(),
        source,
    })?;
    let file = folder.path().join("statement.json");
    let mut program = program::again().map_err(|source| Error::Read {
        file: PathBuf::from("this program"),
        source,
    })?;
    program.args(words(&arguments.case, arguments.device));
    program.arg("--statement").arg(&file);
    bar.set_message(format!("{name}: computing under the profiler"));
    let profiled = ncu.profile(&wanted.metrics, &program)?;
    bar.finish_and_clear();
    let statement = Statement::read(&file);
    if let Some(found) = statement
        .as_ref()
        .and_then(|statement| statement.verification.found.clone())
    {
        return Err(Error::Verification {
            benchmark: name.to_string(),
            found,
        });
    }
    if let Some(failure) = profiled.failure() {
        // Without a driver the profiler's words are only a consequence.
        return Err(match (&statement, Driver::get()) {
            (None, Err(source)) if matches!(failure, Error::Profiler { .. }) => {
                Error::NothingToProfile {
                    source: Box::new(source.into()),
                }
            }
            _ => failure,
        });
    }
    // Counters of something that may have been wrong are worth nothing.
    let Some(statement) = statement else {
        return Err(profiled.without_kernels());
    };
    let name = PathBuf::from(format!("ncu {}", ncu.version));
    let kernels = by_kernel(&launches(&name, &profiled.stdout)?);
    if kernels.is_empty() {
        return Err(profiled.without_kernels());
    }
    Ok(ProfiledKernels {
        kernels,
        device: statement.device,
        source: format!("ncu {}", ncu.version),
    })
}

/// The words that name the same case again.
fn words(case: &CaseArgs, device: DeviceChoice) -> Vec<std::ffi::OsString> {
    let value = fourtap::DType::from(case.dtype);
    let coordinates = match case.coordinates {
        CoordinatesChoice::F32 => "f32",
        CoordinatesChoice::Value => "value",
    };
    let mut words = vec!["profile".into(), case.workload.clone().into_os_string()];
    let options = [
        ("--dtype", value.to_string()),
        ("--coordinates", coordinates.to_string()),
        ("--distribution", case.distribution.name().to_string()),
        ("--direction", case.direction.name().to_string()),
        ("--device", device.to_string()),
    ];
    let images = case.images.map(|images| ("--images", images.to_string()));
    let variant = case.inputs.variant();
    let inputs = variant.map(|inputs| ("--inputs", inputs.to_string()));
    for (option, value) in options.into_iter().chain(images).chain(inputs) {
        words.extend([option.into(), value.into()]);
    }
    words
}

fn record(
    (workload, arguments, case): (&dyn Workload, &CaseArgs, &dyn Case),
    kernel: KernelCounters,
    device: &Device,
    source: &str,
) -> Result<CountersRecord> {
    let Some(binding) = binding(&kernel.metrics) else {
        return Err(Error::CounterFile {
            file: PathBuf::from(source),
            line: None,
            found: format!(
                "nothing that says how busy {} kept the device",
                kernel.kernel
            ),
        });
    };
    Ok(CountersRecord {
        origin: Origin::here(),
        workload: workload.name().to_string(),
        distribution: workload.numbers(arguments.distribution).name.to_string(),
        problem: case.problem(),
        dtypes: case.dtypes(),
        direction: arguments.direction,
        device: device.clone(),
        kernel: kernel.kernel,
        launches: kernel.launches,
        source: source.to_string(),
        metrics: kernel.metrics,
        binding,
    })
}
