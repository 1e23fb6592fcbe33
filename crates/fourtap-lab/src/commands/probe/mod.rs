//! `fourtap probe`: find out what the hardware can do at most.

mod isolation;

use std::time::Duration;

use fourtap::cpu::Simd;
use fourtap::cuda::Cuda;

use self::isolation::isolated;
use super::{note, print, print_json, progress};
use crate::cli::{DeviceChoice, ProbeArgs, TargetArgs};
use crate::cuda::Stopwatch;
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::isolation::end_with_parent;
use crate::nearest::nearest;
use crate::probe::{self, Probe, Setting};
use crate::record::{Line, Outcome, ProbeRecord};
use crate::sink::{PartialRecord, Sink};
use crate::table;
use crate::target::{Device, Target};

/// Most time spent on repeating one measurement.
const BUDGET: Duration = Duration::from_secs(1);

pub fn execute(arguments: &ProbeArgs) -> Result<ExitCode> {
    if let Some(name) = &arguments.in_this_process {
        return in_this_process(name, arguments.device);
    }
    if arguments.list {
        let chosen = resolved(arguments.device);
        print(table::probes(&selected(probes_of(chosen), arguments)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = resolved(arguments.device);
    let device = device(chosen)?;
    let probes = selected(probes_of(chosen), arguments)?;
    let mut sink = Sink::open(arguments.json.as_deref(), PartialRecord::Refuse)?;
    let mut words = vec!["--device".to_string(), chosen.to_string()];
    if chosen == DeviceChoice::Cpu {
        words.extend([
            "--threads".to_string(),
            rayon::current_num_threads().to_string(),
        ]);
    }
    let bar = progress(probes.len() as u64);
    let mut records = Vec::new();
    for probe in &probes {
        bar.set_message(probe.name.clone());
        let limit = arguments.limit.unwrap_or(probe.limit);
        for record in isolated(probe, &device, &words, limit)? {
            sink.put(&Line::Probe(Box::new(record.clone())))?;
            records.push(record);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if !matches!(sink, Sink::Stdout) {
        print(table::probe_results(&records, &device))?;
    }
    Ok(ended(&records))
}

/// What a run ends with: a wrong result outweighs one that failed. Each is named.
fn ended(records: &[ProbeRecord]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for record in records {
        let word = match record.outcome {
            Outcome::Wrong => "computed wrongly",
            Outcome::Failed => "failed",
            Outcome::Hung => "hung",
            Outcome::Crashed => "crashed",
            _ => continue,
        };
        note(&format!("{} {word}: {}", record.name, record.words));
        if record.outcome == Outcome::Wrong {
            code = ExitCode::MISMATCH;
        } else if code == ExitCode::SUCCESS {
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// What the probe of this name finds on a CUDA device, in a process of its own.
pub fn measured(name: &str, device: &Device, words: &[String]) -> Result<Vec<ProbeRecord>> {
    let probe = named(probe::cuda::probes(), name)?;
    isolated(&probe, device, words, probe.limit)
}

/// Runs one probe here; its process is watched.
fn in_this_process(name: &str, choice: DeviceChoice) -> Result<ExitCode> {
    end_with_parent();
    let target = Target::new(&TargetArgs::on(choice))?;
    let stopwatch = target.cuda().map(Stopwatch::new).transpose()?;
    let setting = Setting {
        device: &target.device,
        budget: BUDGET,
        stopwatch: stopwatch.as_ref(),
    };
    let probe = named(probes_of(choice), name)?;
    for record in probe.run(&setting) {
        print_json(&Line::Probe(Box::new(record)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `auto` as what there is. Nothing is made on a device here: its context would be in the way of the probes'.
fn resolved(choice: DeviceChoice) -> DeviceChoice {
    match choice {
        DeviceChoice::Auto if Cuda::find(0).is_ok() => DeviceChoice::Cuda(0),
        DeviceChoice::Auto => DeviceChoice::Cpu,
        chosen => chosen,
    }
}

fn device(chosen: DeviceChoice) -> Result<Device> {
    match chosen {
        DeviceChoice::Cuda(ordinal) => match Cuda::find(ordinal as usize) {
            Ok(device) => Ok(Device::of_cuda(&device)),
            Err(source) => Err(Error::NoCuda {
                requested: chosen.to_string(),
                source: Box::new(source),
            }),
        },
        _ => Ok(Device::of_cpu(best_simd())),
    }
}

fn best_simd() -> Simd {
    Simd::available().next().unwrap_or(Simd::Portable)
}

fn probes_of(chosen: DeviceChoice) -> Vec<Probe> {
    match chosen {
        DeviceChoice::Cuda(_) => probe::cuda::probes(),
        _ => probe::cpu::probes(),
    }
}

/// Those asked for, in the order asked for.
fn selected(mut all: Vec<Probe>, arguments: &ProbeArgs) -> Result<Vec<Probe>> {
    let count = all.len();
    let filter = arguments.filter.as_deref().unwrap_or_default();
    if !arguments.names.is_empty() {
        let mut chosen: Vec<Probe> = Vec::new();
        for name in &arguments.names {
            if chosen.iter().any(|probe| probe.name == *name) {
                continue;
            }
            let (found, rest) = taken(all, name)?;
            chosen.push(found);
            all = rest;
        }
        all = chosen;
    }
    all.retain(|probe| probe.name.contains(filter) || probe.group.contains(filter));
    match all.is_empty() {
        false => Ok(all),
        true => Err(Error::NothingProbed {
            filter: filter.to_string(),
            count,
        }),
    }
}

fn named(all: Vec<Probe>, name: &str) -> Result<Probe> {
    Ok(taken(all, name)?.0)
}

/// The probe of this name, and the others. In test builds only here those are found that end badly on purpose.
fn taken(mut all: Vec<Probe>, name: &str) -> Result<(Probe, Vec<Probe>)> {
    if let Some(place) = all.iter().position(|probe| probe.name == name) {
        return Ok((all.remove(place), all));
    }
    #[cfg(feature = "fault-injection")]
    if let Some(found) = probe::faults::probes()
        .into_iter()
        .find(|it| it.name == name)
    {
        return Ok((found, all));
    }
    let names = all.iter().map(|probe| probe.name.as_str());
    Err(Error::UnknownProbe {
        name: name.to_string(),
        near: nearest(name, names).map(str::to_string),
    })
}
