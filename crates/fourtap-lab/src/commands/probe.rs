//! `fourtap probe`: find out what the hardware can do at most.

use std::time::Duration;

use fourtap::cpu::Simd;
use fourtap::cuda::Cuda;

use super::{note, print, print_json, progress};
use crate::cli::{DeviceChoice, ProbeArgs, TargetArgs};
use crate::cuda::Stopwatch;
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::isolation::{self, end_with_parent};
use crate::nearest::nearest;
use crate::probe::{self, Probe, Setting};
use crate::program;
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
    let chosen = resolved(arguments.device);
    if arguments.list {
        print(table::probes(&selected(chosen, arguments)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let device = device(chosen)?;
    let probes = selected(chosen, arguments)?;
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
        bar.set_message(probe.name);
        let limit = arguments.limit.unwrap_or(probe::LIMIT);
        let record = isolated(probe, &device, &words, limit)?;
        sink.put(&Line::Probe(Box::new(record.clone())))?;
        records.push(record);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if !matches!(sink, Sink::Stdout) {
        print(table::probe_results(&records, &device))?;
    }
    Ok(ended(&records))
}

/// What a probe finds in a process of its own, within so long; `words` tell that process the device. Whatever becomes of
/// it, there is a record.
fn isolated(
    probe: &Probe,
    device: &Device,
    words: &[String],
    limit: Duration,
) -> Result<ProbeRecord> {
    let mut command = program::again().map_err(Error::Start)?;
    command
        .args(["probe", "--in-this-process", probe.name])
        .args(words);
    let (run, trouble) = isolation::recorded(&mut command, limit)?;
    let silence = || (Outcome::Failed, "it gave no result".to_string());
    Ok(match (trouble, run.probes.into_iter().next()) {
        (None, Some(record)) => record,
        (trouble, _) => {
            let (outcome, words) = trouble.unwrap_or_else(silence);
            probe.ended(device, outcome, &words)
        }
    })
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
pub fn measured(name: &str, device: &Device, words: &[String]) -> Result<ProbeRecord> {
    let probe = named(probe::cuda::probes(), name)?;
    isolated(&probe, device, words, probe::LIMIT)
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
    print_json(&Line::Probe(Box::new(probe.run(&setting))))?;
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
        _ => Ok(Device::of_cpu(Simd::best())),
    }
}

fn probes_of(chosen: DeviceChoice) -> Vec<Probe> {
    match chosen {
        DeviceChoice::Cuda(_) => probe::cuda::probes(),
        _ => probe::cpu::probes(),
    }
}

/// Those asked for, in the order asked for.
fn selected(chosen: DeviceChoice, arguments: &ProbeArgs) -> Result<Vec<Probe>> {
    let mut probes = Vec::new();
    for (place, name) in arguments.names.iter().enumerate() {
        if !arguments.names[..place].contains(name) {
            probes.push(named(probes_of(chosen), name)?);
        }
    }
    if probes.is_empty() {
        probes = probes_of(chosen);
    }
    let count = probes.len();
    let filter = arguments.filter.as_deref().unwrap_or_default();
    probes.retain(|probe| probe.name.contains(filter));
    match probes.is_empty() {
        false => Ok(probes),
        true => Err(Error::NothingProbed {
            filter: filter.to_string(),
            count,
        }),
    }
}

/// The probe of this name. In test builds only here those are found that end badly on purpose.
fn named(all: Vec<Probe>, name: &str) -> Result<Probe> {
    let near = nearest(name, all.iter().map(|probe| probe.name)).map(str::to_string);
    let probes = all.into_iter();
    #[cfg(feature = "fault-injection")]
    let probes = probes.chain(probe::faults::probes());
    let mut named = probes.filter(|probe| probe.name == name);
    named.next().ok_or_else(|| Error::UnknownProbe {
        name: name.to_string(),
        near,
    })
}
