//! What was measured, on what, by what.

use std::collections::BTreeSet;

use super::benches::times_best_peer;
use super::number::{self, counted, counted_as, times};
use super::page::{Block, Figure, Section};
use super::part::{devices, measured};
use super::warnings::warnings;
use super::{date, tuning};
use crate::cli::Direction;
use crate::operators::{OPERATORS, Operator};
use crate::record::{BenchRecord, Outcome, Run, RungRecord};
use crate::target::Device;

/// The section.
pub fn section(runs: &[Run]) -> Section {
    let mut blocks = vec![];
    for run in runs {
        if runs.len() > 1 {
            blocks.push(Block::Heading(run.name()));
        }
        blocks.push(Block::Figures(figures(run)));
        blocks.push(Block::Warnings(warnings(run)));
        blocks.push(Block::Facts(facts(run)));
    }
    Section {
        id: "overview",
        title: "Overview",
        blocks,
    }
}

/// How many times as fast as something else.
type Ratio = fn(&BenchRecord) -> Option<f64>;

fn figures(run: &Run) -> Vec<Figure> {
    let mut figures = vec![];
    let benches = run.benches.len();
    if benches > 0 {
        let verified = run.benches.iter().filter(|it| it.verification.passed);
        figures.push(Figure {
            number: number::grouped(benches as f64),
            what: if benches == 1 {
                "benchmark"
            } else {
                "benchmarks"
            }
            .to_string(),
            detail: match benches - verified.count() {
                0 => "all verified against the f64 oracle".to_string(),
                failed => format!("{failed} failed verification and have no time"),
            },
        });
    }
    let ratios: [(Ratio, &str); 2] = [
        (BenchRecord::times_baseline, "the baseline"),
        (times_best_peer, "the fastest peer"),
    ];
    for (ratio, other) in ratios {
        for direction in Direction::ALL {
            let of_pass = run.benches.iter().filter(|it| it.direction == direction);
            let ratios = of_pass.filter_map(ratio).collect();
            let what = format!("{} against {other}", direction.name());
            figures.extend(spread(ratios, what));
        }
    }
    figures.extend(of_rungs(run));
    figures.extend(tuning::figure(run));
    figures
}

fn spread(ratios: Vec<f64>, what: String) -> Option<Figure> {
    let middle = number::median(ratios.clone())?;
    let (low, high) = (
        ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratios.iter().copied().fold(0.0, f64::max),
    );
    Some(Figure {
        number: format!("{}×", times(middle)),
        what,
        detail: match ratios.len() {
            1 => "1 result".to_string(),
            count => format!(
                "median of {count} results; {} to {}",
                times(low),
                times(high)
            ),
        },
    })
}

/// How many ideas were tried, and how many of them do not work.
fn of_rungs(run: &Run) -> Option<Figure> {
    let names = rung_names(run);
    let broken = run.rungs.iter().filter(|it| is_broken(it));
    let broken: BTreeSet<&str> = broken.map(|it| it.rung.as_str()).collect();
    (!names.is_empty()).then(|| Figure {
        number: number::grouped(names.len() as f64),
        what: if names.len() == 1 { "rung" } else { "rungs" }.to_string(),
        detail: match broken.len() {
            0 => "kernel ideas, all correct where they apply".to_string(),
            count => format!("kernel ideas, {count} of them broken on some problem"),
        },
    })
}

/// The rungs by name, without what ships and other libraries.
fn rung_names(run: &Run) -> BTreeSet<&str> {
    let is_idea = |it: &&RungRecord| it.rung != it.operator().shipped() && it.library.is_none();
    let ideas = run.rungs.iter().filter(is_idea);
    ideas.map(|it| it.rung.as_str()).collect()
}

/// Whether a rung has no time though it took the problem on.
pub fn is_broken(record: &RungRecord) -> bool {
    matches!(
        record.outcome,
        Outcome::Wrong | Outcome::Hung | Outcome::Crashed | Outcome::Failed
    )
}

fn facts(run: &Run) -> Vec<(&'static str, String)> {
    let measured = measured(run);
    let times = || measured.iter().map(|it| it.origin.unix_time);
    let period = times().min().zip(times().max());
    let period = period.map(|(first, last)| date::period(first, last));
    let dates = run.peers.iter().map(|it| it.date.clone());
    let mut facts = vec![("Measured", period.unwrap_or_else(|| joined(dates)))];
    let devices = devices(run);
    facts.extend(devices.iter().map(|device| ("Device", details(device))));
    if devices.is_empty() {
        facts.push(("Device", joined(machines(run).into_iter())));
    }
    let versions = measured.iter().map(|it| it.origin.version.clone());
    let commits = measured.iter().map(|it| it.origin.commit.clone());
    let commits = commits.map(|commit| commit.unwrap_or("not recorded".to_string()));
    let hashes = measured
        .iter()
        .filter_map(|it| it.origin.source_hash.as_ref());
    let workloads = measured.iter().map(|it| it.workload);
    let workloads = workloads.chain(run.peers.iter().map(|it| it.workload.as_str()));
    let workloads = workloads.filter(|it| !it.is_empty());
    facts.extend([
        ("fourtap", joined(versions)),
        ("Commit", joined(commits)),
        (
            "Sources",
            joined(hashes.map(|hash| hash.chars().take(16).collect())),
        ),
        ("Workloads", joined(workloads.map(str::to_string))),
        ("Records", records(run)),
    ]);
    facts.retain(|(_, words)| !words.is_empty());
    facts
}

/// All that differ, each once.
fn joined(words: impl Iterator<Item = String>) -> String {
    let words: BTreeSet<String> = words.collect();
    words.into_iter().collect::<Vec<_>>().join(", ")
}

fn records(run: &Run) -> String {
    let mut counts = vec![];
    for (count, one, several) in [
        (run.benches.len(), "benchmark", "benchmarks"),
        (run.probes.len(), "probe", "probes"),
        (
            run.counters.len(),
            "kernel with counters",
            "kernels with counters",
        ),
        (run.attempts.len(), "attempt", "attempts"),
        (
            run.turns.len(),
            "comparison in turns",
            "comparisons in turns",
        ),
        (
            run.peers.len(),
            "timing of an implementation",
            "timings of implementations",
        ),
        (
            run.python.len(),
            "benchmark from Python",
            "benchmarks from Python",
        ),
    ] {
        if count > 0 {
            counts.push(counted_as(count, one, several));
        }
    }
    if !run.rungs.is_empty() {
        let rungs = counted(rung_names(run).len(), "rung");
        counts.push(format!("{} of {rungs}", counted(run.rungs.len(), "result")));
    }
    counts.join(", ")
}

fn details(device: &Device) -> String {
    let words = device.in_words();
    let Some(cuda) = &device.cuda else {
        return words;
    };
    format!(
        "{words}; compute capability {}, {} multiprocessors, {} of L2, {} of memory",
        cuda.compute_capability,
        cuda.multiprocessors,
        crate::units::bytes(u64::from(cuda.l2_bytes)),
        crate::units::bytes(cuda.memory_bytes as u64),
    )
}

/// What a page about these runs is called: what was measured, on what and when.
pub fn title(runs: &[Run]) -> String {
    let mut models: Vec<String> = vec![];
    for device in runs.iter().flat_map(devices) {
        let model = device.model.clone();
        models.push(model.unwrap_or_else(|| "an unknown processor".to_string()));
    }
    for machine in runs.iter().flat_map(machines) {
        // Its words may go on with the number of threads.
        if !models.iter().any(|model| machine.starts_with(model)) {
            models.push(machine);
        }
    }
    let mut known = BTreeSet::new();
    models.retain(|model| known.insert(model.clone()));
    let mut title = subject(runs);
    if !models.is_empty() {
        title += &format!(" on {}", models.join(" and "));
    }
    if let Some(days) = days(runs) {
        title += &format!(", {days}");
    }
    title
}

/// The operators that the runs are about.
fn subject(runs: &[Run]) -> String {
    let measured: Vec<_> = runs.iter().flat_map(measured).collect();
    let is_there =
        |operator: &&'static dyn Operator| measured.iter().any(|it| it.operator == Some(*operator));
    let titles = OPERATORS.into_iter().filter(is_there);
    let titles: Vec<&str> = titles.map(|operator| operator.title()).collect();
    let only_probes = |run: &Run| {
        let others = run.peers.len() + run.python.len() + run.turns.len();
        !run.probes.is_empty() && others == 0
    };
    match titles.is_empty() {
        true if runs.iter().all(only_probes) => "Hardware ceilings".to_string(),
        true => OPERATORS[0].title().to_string(),
        false => titles.join(" and "),
    }
}

/// The first day on which something was measured, and the last if that is another.
fn days(runs: &[Run]) -> Option<String> {
    let times = runs.iter().flat_map(measured);
    let times = times.map(|it| date(it.origin.unix_time));
    let told = runs.iter().flat_map(|run| &run.peers);
    let told = told.map(|it| it.date.clone());
    let day = |moment: String| moment.split([' ', 'T']).next().map(str::to_string);
    let days = times.chain(told).filter_map(day);
    let days: BTreeSet<String> = days.filter(|day| !day.is_empty()).collect();
    let (first, last) = (days.first()?, days.last()?);
    Some(match first == last {
        true => first.clone(),
        false => format!("{first} to {last}"),
    })
}

/// The machines on which implementations were timed beside others, or from Python.
fn machines(run: &Run) -> BTreeSet<String> {
    let peers = run.peers.iter().map(|it| it.machine.clone());
    let python = run.python.iter().map(|it| it.device.clone());
    peers.chain(python).collect()
}
