//! `fourtap-ladder ladder`: every kernel idea, verified, timed and ranked.

mod cases;
mod counters;
mod place;
mod sanitizer;
mod worker;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use fourtap_lab::extension::devices::{lock, on_each};
use fourtap_lab::extension::isolation::{again, recorded};
use fourtap_lab::extension::record::{
    Line, Origin, Outcome, RungClaim, RungOperator, RungRecord, billions_a_second,
};
use fourtap_lab::extension::table::rungs;
use fourtap_lab::extension::{
    Device, Error, ExitCode, PartialRecord, Result, Sink, nearest, note, print, probed, progress,
};

use self::cases::Cases;
use self::counters::Counter;
use self::place::{Place, places};
use self::sanitizer::{Findings, sanitized};
use crate::case::Case;
use crate::cli::{LadderArgs, WorkerTask};
use crate::error::LadderError;
use crate::rung::{Contender, contenders};
use crate::table;

/// What a rung may take, all workloads together.
const LIMIT: Duration = Duration::from_secs(60);
const SWEEP_LIMIT: Duration = Duration::from_secs(600);

/// PyTorch takes a while to get ready.
const LIBRARY_LIMIT: Duration = Duration::from_secs(300);

/// What a rung's speed is shown as a share of.
const GATHER: &str = "gather-64-l1";
const DRAM: &str = "dram-read";
const TENSOR: &str = "tensor-mma-f16";

pub fn execute(arguments: &LadderArgs) -> Result<ExitCode> {
    let chosen = selected(&arguments.rungs)?;
    if arguments.list {
        print(table::list(&chosen))?;
        return Ok(ExitCode::SUCCESS);
    }
    check_settings(&chosen, &arguments.set)?;
    let cases = Cases::of(arguments)?;
    let chosen = cases.climbable(chosen)?;
    if let Some(task) = arguments.in_this_process {
        return worker::run(task, &chosen, &cases, arguments);
    }
    let places = places(arguments)?;
    let counter = arguments.counters.then(Counter::new).transpose()?;
    let sink = Sink::open(arguments.json.as_deref(), PartialRecord::Refuse)?;
    Ladder {
        arguments,
        counter,
        cases,
        sink: Mutex::new(sink),
    }
    .run(&chosen, &places)
}

/// A run of chosen rungs.
struct Ladder<'a> {
    arguments: &'a LadderArgs,
    counter: Option<Counter>,
    cases: Cases,
    sink: Mutex<Sink>,
}

impl Ladder<'_> {
    fn run(self, chosen: &[Contender], places: &[Place]) -> Result<ExitCode> {
        // Of each device its own: devices of one model differ by some percent.
        let with_ceilings = |place| Ok((place, self.ceilings(chosen, place)?));
        let places: Vec<_> = places.iter().map(with_ceilings).collect::<Result<_>>()?;
        let findings = match self.arguments.no_sanitizer {
            true => Findings::none("not asked for"),
            false => {
                let limit = self.limit(None);
                sanitized(chosen, &self.again()?, limit)?
            }
        };
        for words in &findings.notes {
            note(&format!("note: {words}"));
        }
        let bar = progress(chosen.len() as u64);
        let records = on_each(
            &places,
            chosen.iter().collect(),
            |(place, ceilings), contender: &Contender| {
                bar.set_message(contender.name());
                let records = self.climbed(place, ceilings, contender, &findings)?;
                for record in &records {
                    lock(&self.sink).put(&Line::Rung(Box::new(record.clone())))?;
                }
                bar.inc(1);
                Ok(records)
            },
        )?;
        bar.finish_and_clear();
        let records: Vec<_> = records.into_iter().flatten().collect();
        if !matches!(*lock(&self.sink), Sink::Stdout) {
            print(rungs(&records, &places[0].0.device))?;
        }
        Ok(ended(&records))
    }

    /// The records of a rung, complete.
    fn climbed(
        &self,
        place: &Place,
        ceilings: &BTreeMap<String, f64>,
        contender: &Contender,
        findings: &Findings,
    ) -> Result<Vec<RungRecord>> {
        let found = findings.of(contender.name());
        let fault = found.values().find(|words| !sanitizer::is_clean(words));
        let mut records = match fault {
            Some(words) => {
                let words = format!("compute-sanitizer: {words}");
                self.without_time(place, contender, Outcome::Failed, &words)?
            }
            None => self.measured(place, contender)?,
        };
        for record in &mut records {
            record.sanitizer = found.clone();
            complete(record, ceilings);
        }
        let timed = records.iter().any(|record| record.hot.is_some());
        let is_ours = !matches!(contender, Contender::Library(_));
        if let (Some(counter), true) = (&self.counter, timed && is_ours) {
            let mut words = self.words(place, contender, WorkerTask::Launch)?;
            // What a sweep found best is what counts.
            let best = records.iter().find(|record| record.hot.is_some());
            words.extend(best.into_iter().flat_map(settings));
            let first = self.cases.of_first_workload(contender.operator());
            let first = first.min(records.len());
            counter.count(&mut records[..first], self.again()?.args(words));
        }
        Ok(records)
    }

    fn limit(&self, contender: Option<&Contender>) -> Duration {
        let usual = match (contender, self.arguments.sweep) {
            (Some(Contender::Library(_)), _) => LIBRARY_LIMIT,
            (_, true) => SWEEP_LIMIT,
            (_, false) => LIMIT,
        };
        self.arguments.limit.unwrap_or(usual)
    }

    fn again(&self) -> Result<Command> {
        again().map_err(Error::Start)
    }

    /// What this run's shares are of; recorded too.
    fn ceilings(&self, chosen: &[Contender], place: &Place) -> Result<BTreeMap<String, f64>> {
        let computes = |operator| chosen.iter().any(|one| one.operator() == operator);
        let of_operators = [(RungOperator::Msda, GATHER), (RungOperator::Dense, TENSOR)];
        let names = of_operators.into_iter().filter(|(it, _)| computes(*it));
        let names = names.map(|(_, name)| name).chain([DRAM]);
        let words = ["--device".to_string(), format!("cuda:{}", place.ordinal)];
        let mut rates = BTreeMap::new();
        for name in names {
            let record = probed(name, &place.device, &words)?;
            rates.extend(record.rate.map(|rate| (record.name.clone(), rate)));
            lock(&self.sink).put(&Line::Probe(Box::new(record)))?;
        }
        Ok(rates)
    }

    /// The words that run a task for a rung.
    fn words(&self, place: &Place, contender: &Contender, task: WorkerTask) -> Result<Vec<String>> {
        let mut words: Vec<String> = ["ladder", contender.name(), "--in-this-process"]
            .map(str::to_string)
            .to_vec();
        words.push(task.name().to_string());
        // Counting takes its time: the first workload tells.
        let workloads = match task {
            WorkerTask::Launch => 1,
            _ => usize::MAX,
        };
        words.extend(self.cases.words(contender.operator(), workloads));
        words.extend(["--device".to_string(), format!("cuda:{}", place.ordinal)]);
        words.extend(["--seed".to_string(), self.arguments.seed.to_string()]);
        if matches!(contender, Contender::Library(_)) {
            let python = self.arguments.python.display().to_string();
            words.extend(["--python".to_string(), python]);
        }
        for (name, value) in &self.arguments.set {
            words.extend(["--set".to_string(), format!("{name}={value}")]);
        }
        if self.arguments.sweep && task == WorkerTask::Measure {
            words.push("--sweep".to_string());
        }
        Ok(words)
    }

    /// What becomes of a rung in a process of its own.
    fn measured(&self, place: &Place, contender: &Contender) -> Result<Vec<RungRecord>> {
        let mut command = self.again()?;
        command.args(self.words(place, contender, WorkerTask::Measure)?);
        let limit = self.limit(Some(contender));
        let (run, trouble) = recorded(&mut command, limit)?;
        let mut records = run.rungs;
        if let Some((outcome, words)) = trouble {
            let mut missing = self.without_time(place, contender, outcome, &words)?;
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
        place: &Place,
        contender: &Contender,
        outcome: Outcome,
        words: &str,
    ) -> Result<Vec<RungRecord>> {
        let case = |case: Case| -> Result<RungRecord> {
            Ok(RungRecord {
                outcome,
                words: words.to_string(),
                ..blank(contender, &place.device, &case, self.arguments.seed)?
            })
        };
        self.cases.each(contender.operator()).map(case).collect()
    }
}

/// A record of a case before anything is known.
fn blank(contender: &Contender, device: &Device, case: &Case, seed: u64) -> Result<RungRecord> {
    let (expected, builds_on, approximate) = match contender {
        Contender::Rung(rung) => (rung.expected, rung.builds_on, rung.approximate),
        Contender::Shipped(_) | Contender::Library(_) => ("", None, None),
    };
    let traffic = match (contender, case) {
        (Contender::Library(library), Case::Dense(workload, _)) => {
            library.traffic(&workload.sizes(), workload.dtype, case.traffic()?)
        }
        _ => case.traffic()?,
    };
    Ok(RungRecord {
        origin: Origin::here(),
        device: device.clone(),
        rung: contender.name().to_string(),
        title: contender.title().to_string(),
        expected: expected.to_string(),
        builds_on: builds_on.map(str::to_string),
        library: None,
        workload: case.workload().to_string(),
        distribution: case.distribution().to_string(),
        seed,
        problem: case.problem()?,
        traffic,
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
        of_tensor: None,
        binding: None,
        claim: contender.claim().map(|claim| RungClaim {
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
    match record.operator() {
        RungOperator::Msda => record.of_gather = share(record.traffic.gathered_bytes, GATHER),
        RungOperator::Dense => record.of_tensor = share(record.traffic.flop, TENSOR),
    }
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
    for typed in names {
        let name = &canonical(typed);
        let exact: Vec<_> = all.iter().filter(|one| one.name() == name).collect();
        let found = match exact.is_empty() {
            true => all
                .iter()
                .filter(|one| one.name().starts_with(name))
                .collect(),
            false => exact,
        };
        if found.is_empty() {
            let near = nearest(name, all.iter().map(Contender::name));
            let near = near.map(str::to_string);
            let name = typed.clone();
            return Err(LadderError::UnknownRung { name, near }.into());
        }
        for contender in found {
            if !chosen.iter().any(|known| known.name() == contender.name()) {
                chosen.push(*contender);
            }
        }
    }
    Ok(chosen)
}

/// "D6" as "d06".
fn canonical(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    match name.as_bytes() {
        [b'a' | b'd', digit, rest @ ..]
            if digit.is_ascii_digit() && !rest.first().is_some_and(u8::is_ascii_digit) =>
        {
            format!("{}0{}", &name[..1], &name[1..])
        }
        _ => name,
    }
}

/// A parameter that no chosen rung has, or a value none declares, is a slip.
fn check_settings(chosen: &[Contender], settings: &[(String, u32)]) -> Result<()> {
    for (name, value) in settings {
        let setting = format!("{name}={value}");
        let parameters = chosen.iter().flat_map(|one| one.parameters());
        let named: Vec<_> = parameters.filter(|one| one.name == name).collect();
        if named.is_empty() {
            let all = chosen.iter().flat_map(|one| one.parameters());
            let mut known: Vec<&str> = all.map(|one| one.name).collect();
            known.sort_unstable();
            known.dedup();
            let expected = match known.is_empty() {
                true => "no setting, since the rungs have no parameters".to_string(),
                false => format!("one of {}", known.join(", ")),
            };
            return Err(LadderError::Setting { setting, expected }.into());
        }
        if !named.iter().any(|one| one.values.contains(value)) {
            let expected = format!("one of {:?}", named[0].values);
            return Err(LadderError::Setting { setting, expected }.into());
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
            code = ExitCode::MISMATCH;
        } else if code == ExitCode::SUCCESS {
            code = ExitCode::FAILURE;
        }
    }
    code
}
