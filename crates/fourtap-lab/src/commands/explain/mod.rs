//! `fourtap explain`: gather what is known, then say it.

use fourtap::cuda::DeviceSize;
use fourtap::cuda::driver::{DeviceFacts, Driver};

use super::{note, print};
use crate::cli::{DeviceChoice, ExplainArgs};
use crate::error::{Error, Result};
use crate::exit::ExitCode;
use crate::explain::{Case, Ceilings, DeviceDesc, ExplainInputs, Explanation, Multiprocessor};
use crate::record::Run;
use crate::target::{CudaDevice, Device};
use crate::{machine, selection, target};

pub fn execute(arguments: &ExplainArgs) -> Result<ExitCode> {
    let named = &arguments.case;
    let workload = selection::workload(&named.workload, named.images)?;
    let workload = selection::computed_from(workload, named.inputs)?;
    let explanation = explained(arguments, &*workload.case(named)?)?;
    match arguments.json {
        true => {
            let json = explanation.to_json();
            print(json.map_err(|error| Error::Stdout(error.into()))? + "\n")?;
        }
        false => {
            print(explanation.in_words())?;
            for text in explanation.notes() {
                note(&format!("note: {text}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn explained(arguments: &ExplainArgs, case: &dyn Case) -> Result<Box<dyn Explanation>> {
    let [probes, results] = runs(arguments)?;
    let mut notes = Vec::new();
    let kind = kind(arguments.device, probes.as_ref());
    let ceilings = ceilings(kind, probes.as_ref(), arguments, &mut notes)?;
    let device = match (kind, arguments.device) {
        ("cpu", _) => None,
        (_, DeviceChoice::Cuda(ordinal)) => {
            let facts = facts(ordinal)?;
            expect_same(facts, &ceilings, &mut notes);
            Some(like(facts))
        }
        _ => Some(stored(&ceilings)?),
    };
    add_cut_short([&probes, &results], &mut notes);
    case.explained(ExplainInputs {
        ceilings: &ceilings,
        device: device.as_ref(),
        results: results.as_ref(),
        beside: probes.as_ref(),
        notes,
    })
}

/// What --probes and --results name.
fn runs(arguments: &ExplainArgs) -> Result<[Option<Run>; 2]> {
    Ok([
        arguments.probes.as_deref().map(Run::read).transpose()?,
        arguments.results.as_deref().map(Run::read).transpose()?,
    ])
}

/// Says so if the ceilings are of another device than this.
fn expect_same(facts: &DeviceFacts, ceilings: &Ceilings, notes: &mut Vec<String>) {
    if ceilings.device.model.as_deref() != Some(facts.name.as_str()) {
        notes.push(format!(
            "the kernel is chosen for {}, the ceilings are of another device: `fourtap probe --json FILE` \
             measures this one's, for --probes FILE",
            facts.name
        ));
    }
}

fn add_cut_short(runs: [&Option<Run>; 2], notes: &mut Vec<String>) {
    for run in runs.into_iter().flatten().filter(|run| run.cut_short) {
        notes.push(format!(
            "{}: the last line is cut short and was left out",
            run.path.display()
        ));
    }
}

/// "cpu" or "cuda": what was asked for, else what the probes are of.
fn kind(device: DeviceChoice, probes: Option<&Run>) -> &'static str {
    let only_cpu = |run: &Run| {
        let mut kinds = run.probes.iter().map(|probe| probe.device.kind.as_str());
        kinds.clone().count() > 0 && kinds.all(|kind| kind == "cpu")
    };
    match device {
        DeviceChoice::Cpu => "cpu",
        DeviceChoice::Auto if probes.is_some_and(only_cpu) => "cpu",
        _ => "cuda",
    }
}

fn ceilings(
    kind: &str,
    probes: Option<&Run>,
    arguments: &ExplainArgs,
    notes: &mut Vec<String>,
) -> Result<Ceilings> {
    if let Some(run) = probes {
        return Ceilings::of(run, kind).ok_or_else(|| Error::Records {
            file: run.path.clone(),
            line: None,
            found: format!("no measured probe of a {kind} device"),
        });
    }
    if kind == "cpu" {
        notes.push(
            "no ceilings of this processor: `fourtap probe --device cpu --json FILE` measures them, for --probes FILE"
                .to_string(),
        );
        return Ok(Ceilings::none(this_processor()));
    }
    let ceilings = Ceilings::built_in()?.ok_or_else(|| Error::Records {
        file: arguments.case.workload.clone(),
        line: None,
        found: "no built-in ceilings".to_string(),
    })?;
    if let Some(here) = first_device() {
        let model = ceilings.device.model.as_deref().unwrap_or("another device");
        notes.push(format!(
            "the ceilings are stored ones of {model}; this machine has {here}, and `fourtap probe --json FILE` measures \
             its own, for --probes FILE"
        ));
    }
    Ok(ceilings)
}

fn this_processor() -> Device {
    Device {
        kind: "cpu".to_string(),
        model: machine::cpu_model(),
        simd: None,
        threads: None,
        cuda: None,
    }
}

/// The name of this machine's first CUDA device; asking makes no context.
fn first_device() -> Option<String> {
    Some(facts(0).ok()?.name.clone())
}

fn facts(ordinal: u32) -> Result<&'static DeviceFacts> {
    let found = Driver::get().and_then(|driver| driver.device(ordinal as usize));
    let device = found.map_err(|source| Error::NoCuda {
        requested: format!("cuda:{ordinal}"),
        source: Box::new(source.into()),
    })?;
    Ok(device.facts())
}

fn like(facts: &DeviceFacts) -> DeviceDesc {
    DeviceDesc {
        name: facts.name.clone(),
        size: DeviceSize::from(facts),
        capability: facts.compute_capability,
    }
}

/// The device the ceilings were measured on.
fn stored(ceilings: &Ceilings) -> Result<DeviceDesc> {
    let device = &ceilings.device;
    let capability = |cuda: &CudaDevice| target::parse_dotted(&cuda.compute_capability);
    let described = device.cuda.as_ref().and_then(|cuda| {
        let capability = capability(cuda)?;
        Some(DeviceDesc {
            name: device.model.clone().unwrap_or("unknown device".to_string()),
            size: DeviceSize {
                multiprocessors: cuda.multiprocessors,
                l2_bytes: cuda.l2_bytes,
                // Nobody knows of a newer one; then nothing is kept there.
                shared_bytes: Multiprocessor::of(capability)
                    .map_or(0, |one| one.shared_bytes_a_block()),
                has_wgmma: capability == (9, 0),
            },
            capability,
        })
    });
    described.ok_or_else(|| Error::Records {
        file: ceilings.origin.clone().into(),
        line: None,
        found: "probes of a device without its compute capability".to_string(),
    })
}
