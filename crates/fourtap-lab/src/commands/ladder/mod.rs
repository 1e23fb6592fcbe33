//! `fourtap ladder`: every kernel idea, verified, timed and ranked.

mod counters;
mod errand;
mod sanitizer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fourtap::cuda::Cuda;

use self::counters::Counter;
use self::sanitizer::{Findings, sanitized};
use super::{note, print, progress};
use crate::cli::{DeviceChoice, Distribution, Errand, LadderArgs};
use crate::error::{EXIT_MISMATCH, Error, Result};
use crate::exit::ExitCode;
use crate::isolation::run;
use crate::ladder::{Contender, contenders};
use crate::nearest::nearest;
use crate::program;
use crate::record::{
    Line, Origin, Outcome, ProbeRecord, ProblemSizes, Run, RungClaim, RungRecord, billions_a_second,
};
use crate::selection;
use crate::sink::{Sink, Torn};
use crate::table;
use crate::target::Device;
use crate::workload::Workload;

/// What a rung may take, all workloads together.
const LIMIT: Duration = Duration::from_secs(60);
const SWEEP_LIMIT: Duration = Duration::from_secs(600);

/// The shapes that were published with the ideas stand behind the two that matter.
const WORKLOADS: [&str; 5] = [
    "seed-full",
    "detr-encoder",
    "ladder-n8-q1024",
    "ladder-n4-q512",
    "ladder-n2-q256",
];

/// What a rung's speed is shown as a share of.
const GATHER: &str = "gather-64-l1";
const DRAM: &str = "dram-read";

pub fn execute(arguments: &LadderArgs) -> Result<ExitCode> {
    let chosen = selected(&arguments.rungs)?;
    if arguments.list {
        print(table::rungs(&chosen))?;
        return Ok(ExitCode::SUCCESS);
    }
    check_settings(&chosen, &arguments.set)?;
    let cases = Cases::of(arguments)?;
    if let Some(errand) = arguments.in_this_process {
        return errand::run(errand, &chosen, &cases, arguments);
    }
    let ordinal = match arguments.device {
        DeviceChoice::Cuda(ordinal) => ordinal,
        DeviceChoice::Auto => 0,
        DeviceChoice::Cpu => {
            return Err(Error::Misplaced {
                option: "ladder",
                expected: "a CUDA device",
                found: "the CPU".to_string(),
            });
        }
    };
    // Nothing is made on the device here: its context would be in the way of the rungs'.
    let device = match Cuda::find(ordinal as usize) {
        Ok(device) => Device::of_cuda(&device),
        Err(source) => {
            return Err(Error::NothingToClimbOn {
                source: Box::new(source),
            });
        }
    };
    let counter = arguments.counters.then(Counter::new).transpose()?;
    let sink = Sink::open(arguments.json.as_deref(), Torn::Refuse)?;
    Ladder {
        arguments,
        counter,
        cases,
        device,
        ordinal,
        sink,
        records: Vec::new(),
    }
    .climb(&chosen)
}

/// What every rung computes.
pub struct Cases {
    workloads: Vec<(PathBuf, Workload)>,
    distributions: Vec<Distribution>,
}

impl Cases {
    fn of(arguments: &LadderArgs) -> Result<Self> {
        let named = match &arguments.workload[..] {
            [] => WORKLOADS.iter().map(PathBuf::from).collect(),
            named => named.to_vec(),
        };
        let workload = |name: PathBuf| {
            let workload = selection::workload(&name, None)?;
            Ok((name, workload))
        };
        Ok(Cases {
            workloads: named.into_iter().map(workload).collect::<Result<_>>()?,
            distributions: match &arguments.distribution[..] {
                [] => vec![Distribution::Uniform, Distribution::Local],
                chosen => chosen.to_vec(),
            },
        })
    }

    /// One after another.
    fn each(&self) -> impl Iterator<Item = (&Workload, Distribution)> {
        let workloads = self.workloads.iter();
        workloads.flat_map(|(_, workload)| {
            let distributions = self.distributions.iter();
            distributions.map(move |&distribution| (workload, distribution))
        })
    }

    /// As typed, to be typed again, with the first so many workloads.
    fn words(&self, workloads: usize) -> Vec<String> {
        let names = self.workloads.iter().take(workloads);
        let names: Vec<String> = names.map(|(path, _)| path.display().to_string()).collect();
        let distributions: Vec<_> = self.distributions.iter().map(|one| one.name()).collect();
        let words = [
            "--workload",
            &names.join(","),
            "--distribution",
            &distributions.join(","),
        ];
        words.map(str::to_string).to_vec()
    }
}

/// A climb of chosen rungs.
struct Ladder<'a> {
    arguments: &'a LadderArgs,
    counter: Option<Counter>,
    cases: Cases,
    device: Device,
    ordinal: u32,
    sink: Sink,
    records: Vec<RungRecord>,
}

impl Ladder<'_> {
    fn climb(mut self, chosen: &[Contender]) -> Result<ExitCode> {
        let ceilings = self.ceilings()?;
        let findings = match self.arguments.no_sanitizer {
            true => Findings::none("not asked for"),
            false => sanitized(chosen, &self.again()?, self.limit())?,
        };
        for words in &findings.notes {
            note(&format!("note: {words}"));
        }
        let bar = progress(chosen.len() as u64);
        for contender in chosen {
            bar.set_message(contender.name());
            let found = findings.of(contender.name());
            let fault = found.values().find(|words| !sanitizer::is_clean(words));
            let mut records = match fault {
                Some(words) => {
                    let words = format!("compute-sanitizer: {words}");
                    self.without_time(contender, Outcome::Failed, &words)?
                }
                None => self.measured(contender)?,
            };
            for record in &mut records {
                record.sanitizer = found.clone();
                complete(record, &ceilings);
            }
            let timed = records.iter().any(|record| record.hot.is_some());
            if let (Some(counter), true) = (&self.counter, timed) {
                let mut words = self.words(contender, Errand::Launch)?;
                // What a sweep found best is what counts.
                let best = records.iter().find(|record| record.hot.is_some());
                words.extend(best.into_iter().flat_map(settings));
                let first = self.cases.distributions.len().min(records.len());
                counter.count(&mut records[..first], self.again()?.args(words));
            }
            for record in records {
                self.sink.put(&Line::Rung(Box::new(record.clone())))?;
                self.records.push(record);
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        if !matches!(self.sink, Sink::Stdout) {
            print(table::ladder(&self.records, &self.device))?;
        }
        Ok(ended(&self.records))
    }

    fn limit(&self) -> Duration {
        let usual = match self.arguments.sweep {
            true => SWEEP_LIMIT,
            false => LIMIT,
        };
        self.arguments.limit.unwrap_or(usual)
    }

    fn again(&self) -> Result<Command> {
        program::again().map_err(Error::Start)
    }

    /// What this run's shares are of; recorded too.
    fn ceilings(&mut self) -> Result<BTreeMap<String, f64>> {
        let words = ["--device".to_string(), format!("cuda:{}", self.ordinal)];
        let mut rates = BTreeMap::new();
        for name in [GATHER, DRAM] {
            for record in super::probe::measured(name, &self.device, &words)? {
                let ProbeRecord { name, rate, .. } = &record;
                if let Some(rate) = rate {
                    rates.insert(name.clone(), *rate);
                }
                self.sink.put(&Line::Probe(Box::new(record.clone())))?;
            }
        }
        Ok(rates)
    }

    /// The words that do an errand with a rung.
    fn words(&self, contender: &Contender, errand: Errand) -> Result<Vec<String>> {
        let mut words: Vec<String> = ["ladder", contender.name(), "--in-this-process"]
            .map(str::to_string)
            .to_vec();
        words.push(errand.name().to_string());
        // Counting takes its time: the first workload tells.
        let workloads = match errand {
            Errand::Launch => 1,
            _ => self.cases.workloads.len(),
        };
        words.extend(self.cases.words(workloads));
        words.extend(["--device".to_string(), format!("cuda:{}", self.ordinal)]);
        words.extend(["--seed".to_string(), self.arguments.seed.to_string()]);
        for (name, value) in &self.arguments.set {
            words.extend(["--set".to_string(), format!("{name}={value}")]);
        }
        if self.arguments.sweep && errand == Errand::Measure {
            words.push("--sweep".to_string());
        }
        Ok(words)
    }

    /// What becomes of a rung in a process of its own.
    fn measured(&self, contender: &Contender) -> Result<Vec<RungRecord>> {
        let mut command = self.again()?;
        command.args(self.words(contender, Errand::Measure)?);
        let limit = self.limit();
        let ended = run(&mut command, limit)?;
        let (mut records, unreadable) = match Run::parse(Path::new("its output"), &ended.stdout) {
            Ok(run) => (run.rungs, None),
            Err(error) => (Vec::new(), Some((Outcome::Failed, error.to_string()))),
        };
        if let Some((outcome, words)) = ended.trouble(limit).or(unreadable) {
            let mut missing = self.without_time(contender, outcome, &words)?;
            let known = |one: &RungRecord| {
                let same = |other: &RungRecord| {
                    other.workload == one.workload && other.distribution == one.distribution
                };
                records.iter().any(same)
            };
            missing.retain(|one| !known(one));
            records.extend(missing);
        }
        Ok(records)
    }

    /// A record for each case, of a rung that has no time.
    fn without_time(
        &self,
        contender: &Contender,
        outcome: Outcome,
        words: &str,
    ) -> Result<Vec<RungRecord>> {
        let case = |(workload, distribution)| -> Result<RungRecord> {
            Ok(RungRecord {
                outcome,
                words: words.to_string(),
                ..blank(
                    contender,
                    &self.device,
                    workload,
                    distribution,
                    self.arguments.seed,
                )?
            })
        };
        self.cases.each().map(case).collect()
    }
}

/// A record of a case before anything is known.
fn blank(
    contender: &Contender,
    device: &Device,
    workload: &Workload,
    distribution: Distribution,
    seed: u64,
) -> Result<RungRecord> {
    let levels = workload.levels()?;
    let sizes = workload.sizes(&levels);
    let (expected, builds_on, approximate, claim) = match contender {
        Contender::Rung(rung) => (rung.expected, rung.builds_on, rung.approximate, rung.claim),
        Contender::Shipped => ("", None, None, None),
    };
    Ok(RungRecord {
        origin: Origin::here(),
        device: device.clone(),
        rung: contender.name().to_string(),
        title: contender.title().to_string(),
        expected: expected.to_string(),
        builds_on: builds_on.map(str::to_string),
        workload: workload.name.clone(),
        distribution: distribution.name().to_string(),
        seed,
        problem: ProblemSizes::new(&sizes, &levels),
        traffic: crate::ladder::traffic(&sizes),
        parameters: BTreeMap::new(),
        outcome: Outcome::Failed,
        words: String::new(),
        sanitizer: BTreeMap::new(),
        small: None,
        verification: None,
        approximate,
        hot: None,
        prepared: None,
        against: None,
        conditions: None,
        launches: Vec::new(),
        scratch_bytes: 0,
        of_gather: None,
        of_dram: None,
        binding: None,
        claim: claim.map(|claim| RungClaim {
            words: claim.words.to_string(),
            why: claim.why.to_string(),
        }),
    })
}

/// With its shares of the ceilings.
fn complete(record: &mut RungRecord, ceilings: &BTreeMap<String, f64>) {
    let Some(time) = record.median_ms() else {
        return;
    };
    let share = |bytes: u64, ceiling: &str| {
        let ceiling = ceilings.get(ceiling)?;
        Some(billions_a_second(bytes, time) / ceiling)
    };
    record.of_gather = share(record.traffic.gathered_bytes, GATHER);
    record.of_dram = share(record.traffic.compulsory_bytes, DRAM);
}

/// The words that choose a record's parameters again.
fn settings(record: &RungRecord) -> Vec<String> {
    let each = record.parameters.iter();
    each.flat_map(|(name, value)| ["--set".to_string(), format!("{name}={value}")])
        .collect()
}

/// The rungs named, each by its name or the beginning of one.
fn selected(names: &[String]) -> Result<Vec<Contender>> {
    let all = contenders();
    if names.is_empty() {
        return Ok(all);
    }
    let mut chosen: Vec<Contender> = Vec::new();
    for name in names {
        let exact: Vec<_> = all.iter().filter(|one| one.name() == name).collect();
        let found = match exact.is_empty() {
            true => all
                .iter()
                .filter(|one| one.name().starts_with(name))
                .collect(),
            false => exact,
        };
        if found.is_empty() {
            return Err(Error::UnknownRung {
                name: name.clone(),
                near: nearest(name, all.iter().map(Contender::name)).map(str::to_string),
            });
        }
        for contender in found {
            if !chosen.iter().any(|known| known.name() == contender.name()) {
                chosen.push(*contender);
            }
        }
    }
    Ok(chosen)
}

/// A parameter that no chosen rung has, or a value none declares, is a slip.
fn check_settings(chosen: &[Contender], settings: &[(String, u32)]) -> Result<()> {
    for (name, value) in settings {
        let parameters = chosen.iter().flat_map(|one| one.parameters());
        let named: Vec<_> = parameters.filter(|one| one.name == name).collect();
        if named.is_empty() {
            let all = chosen.iter().flat_map(|one| one.parameters());
            let mut known: Vec<&str> = all.map(|one| one.name).collect();
            known.sort_unstable();
            known.dedup();
            return Err(Error::Setting {
                setting: format!("{name}={value}"),
                expected: match known.is_empty() {
                    true => "no setting, since the rungs have no parameters".to_string(),
                    false => format!("one of {}", known.join(", ")),
                },
            });
        }
        if !named.iter().any(|one| one.values.contains(value)) {
            return Err(Error::Setting {
                setting: format!("{name}={value}"),
                expected: format!("one of {:?}", named[0].values),
            });
        }
    }
    Ok(())
}

/// What a run ends with: a wrong result outweighs one that failed. Each is named once.
fn ended(records: &[RungRecord]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let mut told: Vec<(&str, &str)> = Vec::new();
    for record in records {
        let word = match record.outcome {
            Outcome::Wrong => "computed wrongly",
            Outcome::Failed => "failed",
            Outcome::Hung => "hung",
            Outcome::Crashed => "crashed",
            _ => continue,
        };
        if !told.contains(&(&record.rung, &record.words)) {
            told.push((&record.rung, &record.words));
            note(&format!("{} {word}: {}", record.rung, record.words));
        }
        if record.outcome == Outcome::Wrong {
            code = ExitCode::from(EXIT_MISMATCH);
        } else if code == ExitCode::SUCCESS {
            code = ExitCode::FAILURE;
        }
    }
    code
}
