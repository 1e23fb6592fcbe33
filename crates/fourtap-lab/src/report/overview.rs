//! What was measured, on what, by what.

use std::collections::BTreeSet;

use super::number::{self, counted, times};
use super::page::{Block, Figure, Section};
use super::part::{Part, devices};
use super::peer::times_best_peer;
use super::warnings::warnings;
use super::{date, part, rungs, tuning};
use crate::cli::Direction;
use crate::operators::{OPERATORS, Operator};
use crate::record::{BenchRecord, Origin, Outcome, Run, RungRecord};
use crate::table;
use crate::target::Device;

/// The section.
pub fn section(runs: &[Run]) -> Section {
    let mut blocks = vec![];
    for run in runs {
        if runs.len() > 1 {
            blocks.push(Block::heading(run.name()));
        }
        let figures = figures(run);
        if !figures.is_empty() {
            blocks.push(Block::Figures { figures });
        }
        let warnings = warnings(run);
        if !warnings.is_empty() {
            blocks.push(Block::Warnings { warnings });
        }
        blocks.push(Block::Facts { facts: facts(run) });
    }
    Section {
        id: "overview",
        title: "Overview",
        blocks,
    }
}

fn figures(run: &Run) -> Vec<Figure> {
    let mut figures = vec![];
    if !run.benches.is_empty() {
        let total = run.benches.len();
        let verified = run.benches.iter().filter(|it| it.verification.passed);
        let verified = verified.count();
        figures.push(Figure {
            number: number::grouped(total as f64),
            what: if total == 1 {
                "benchmark"
            } else {
                "benchmarks"
            }
            .to_string(),
            detail: match total - verified {
                0 => "all verified against the f64 oracle".to_string(),
                failed => format!("{failed} failed verification and have no time"),
            },
        });
    }
    for direction in Direction::ALL {
        let of_pass = || run.benches.iter().filter(|it| it.direction == direction);
        let baseline = of_pass().filter_map(BenchRecord::times_baseline).collect();
        let pass = direction.name();
        figures.extend(spread(
            baseline,
            &format!("{pass} against the baseline"),
            "results",
        ));
    }
    for direction in Direction::ALL {
        let of_pass = || run.benches.iter().filter(|it| it.direction == direction);
        let peers = of_pass().filter_map(times_best_peer).collect();
        let pass = direction.name();
        figures.extend(spread(
            peers,
            &format!("{pass} against the fastest peer"),
            "with peers",
        ));
    }
    figures.extend(of_rungs(run));
    figures.extend(tuning::figures(run));
    if figures.is_empty() && !run.probes.is_empty() {
        figures.push(Figure {
            number: number::grouped(run.probes.len() as f64),
            what: "probes of the hardware".to_string(),
            detail: String::new(),
        });
    }
    figures
}

/// How many ideas were tried, and whether one of them beats what ships.
fn of_rungs(run: &Run) -> Vec<Figure> {
    let names = rung_names(run);
    if names.is_empty() {
        return vec![];
    }
    let broken = run.rungs.iter().filter(|it| is_broken(it));
    let broken: BTreeSet<_> = broken.map(|it| it.rung.as_str()).collect();
    let mut figures = vec![Figure {
        number: number::grouped(names.len() as f64),
        what: if names.len() == 1 { "rung" } else { "rungs" }.to_string(),
        detail: match broken.len() {
            0 => "kernel ideas, all correct where they apply".to_string(),
            1 => "kernel ideas, 1 of them broken on some problem".to_string(),
            count => format!("kernel ideas, {count} of them broken on some problem"),
        },
    }];
    let large = run.rungs.iter().filter(|it| rungs::is_large(it));
    let ratios = table::cases(large).into_iter().filter_map(|(_, ranked)| {
        let is_rival = |it: &&&RungRecord| is_idea(it) && it.approximate.is_none();
        let fastest = ranked.iter().find(is_rival)?;
        table::times(fastest, &ranked, fastest.operator().shipped())
    });
    figures.extend(spread(
        ratios.collect(),
        "the fastest exact rung against what ships",
        "problems",
    ));
    figures
}

/// The rungs by name, without what ships and other libraries.
fn rung_names(run: &Run) -> BTreeSet<&str> {
    let ideas = run.rungs.iter().filter(|it| is_idea(it));
    ideas.map(|it| it.rung.as_str()).collect()
}

fn is_idea(record: &RungRecord) -> bool {
    record.rung != record.operator().shipped() && record.library.is_none()
}

/// Whether a rung has no time though it took the problem on.
pub(super) fn is_broken(record: &RungRecord) -> bool {
    matches!(
        record.outcome,
        Outcome::Wrong | Outcome::Hung | Outcome::Crashed | Outcome::Failed
    )
}

fn spread(ratios: Vec<f64>, what: &str, of: &str) -> Option<Figure> {
    let middle = number::median(ratios.clone())?;
    let finite = || ratios.iter().copied().filter(|ratio| ratio.is_finite());
    let (low, high) = (
        finite().fold(f64::INFINITY, f64::min),
        finite().fold(0.0, f64::max),
    );
    Some(Figure {
        number: format!("{}×", times(middle)),
        what: what.to_string(),
        detail: match ratios.len() {
            1 => "1 result".to_string(),
            count => format!("median of {count} {of}; {} to {}", times(low), times(high)),
        },
    })
}

fn facts(run: &Run) -> Vec<(String, String)> {
    let origins: Vec<&Origin> = origins(run).collect();
    let joined = |words: BTreeSet<String>| words.into_iter().collect::<Vec<_>>().join(", ");
    let mut facts = vec![];
    let mut add = |name: &str, words: String| {
        if !words.is_empty() {
            facts.push((name.to_string(), words));
        }
    };
    let first = origins.iter().map(|origin| origin.unix_time).min();
    let last = origins.iter().map(|origin| origin.unix_time).max();
    if let (Some(first), Some(last)) = (first, last) {
        add("Measured", date::period(first, last));
    }
    let devices = devices(run);
    for device in &devices {
        add(
            "Device",
            format!("{}{}", device.in_words(), details(device)),
        );
    }
    if devices.is_empty() {
        let dates = run.peers.iter().map(|it| it.date.clone());
        add("Measured", joined(dates.collect()));
        add("Device", machines(run).join(", "));
    }
    let versions = origins.iter().map(|origin| origin.version.clone());
    add("fourtap", joined(versions.collect()));
    let commits = origins.iter().filter_map(|origin| origin.commit.clone());
    let commits = joined(commits.collect());
    add(
        "Commit",
        if origins.is_empty() {
            String::new()
        } else if commits.is_empty() {
            "not recorded".to_string()
        } else {
            commits
        },
    );
    let hashes = origins.iter().filter_map(|origin| {
        let hash = origin.source_hash.as_ref()?;
        Some(hash.chars().take(16).collect())
    });
    add("Sources", joined(hashes.collect()));
    let workloads = run.benches.iter().map(|it| it.workload.clone());
    let workloads = workloads.chain(run.rungs.iter().map(|it| it.workload.clone()));
    let workloads = workloads.chain(run.tuned.iter().map(|it| it.subject.workload.clone()));
    let workloads = workloads.chain(run.peers.iter().map(|it| it.workload.clone()));
    add("Workloads", joined(workloads.collect()));
    let mut counts = vec![];
    for (count, noun) in [
        (run.benches.len(), "benchmark"),
        (run.probes.len(), "probe"),
        (run.counters.len(), "kernel with counters"),
        (run.attempts.len(), "attempt"),
        (run.turns.len(), "comparison in turns"),
        (run.peers.len(), "timing of an implementation"),
        (run.python.len(), "benchmark from Python"),
    ] {
        if count > 0 {
            counts.push(match noun {
                "kernel with counters" if count > 1 => format!("{count} kernels with counters"),
                "comparison in turns" if count > 1 => format!("{count} comparisons in turns"),
                "benchmark from Python" if count > 1 => format!("{count} benchmarks from Python"),
                "timing of an implementation" if count > 1 => {
                    format!("{count} timings of implementations")
                }
                noun => counted(count, noun),
            });
        }
    }
    if !run.rungs.is_empty() {
        let names = rung_names(run).len();
        counts.push(format!(
            "{} of {}",
            counted(run.rungs.len(), "result"),
            counted(names, "rung")
        ));
    }
    add("Records", counts.join(", "));
    facts
}

fn details(device: &Device) -> String {
    let Some(cuda) = &device.cuda else {
        return String::new();
    };
    format!(
        "; compute capability {}, {} multiprocessors, {} of L2, {} of memory",
        cuda.compute_capability,
        cuda.multiprocessors,
        crate::units::bytes(u64::from(cuda.l2_bytes)),
        crate::units::bytes(cuda.memory_bytes as u64),
    )
}

pub(super) fn origins(run: &Run) -> impl Iterator<Item = &Origin> {
    let benches = run.benches.iter().map(|it| &it.origin);
    let probes = run.probes.iter().map(|it| &it.origin);
    let counters = run.counters.iter().map(|it| &it.origin);
    let rungs = run.rungs.iter().map(|it| &it.origin);
    let attempts = run.attempts.iter().map(|it| &it.origin);
    let tuned = run.tuned.iter().map(|it| &it.origin);
    let measured = benches.chain(probes).chain(counters).chain(rungs);
    measured.chain(attempts).chain(tuned)
}

/// What a page about these runs is called: what was measured, on what and when; and where the results are from.
pub fn title(runs: &[Run]) -> (String, String) {
    let mut models: Vec<String> = vec![];
    for part in part::parts(runs) {
        let Part { device, .. } = part;
        let model = device.model.clone();
        let model = model.unwrap_or_else(|| "an unknown processor".to_string());
        if !models.contains(&model) {
            models.push(model);
        }
    }
    for machine in runs.iter().flat_map(machines) {
        // Its words may go on with the number of threads.
        if !models.iter().any(|model| machine.starts_with(model)) {
            models.push(machine);
        }
    }
    let is_there = |operator: &&'static dyn Operator| runs.iter().any(|run| has(run, *operator));
    let there: Vec<_> = OPERATORS.into_iter().filter(is_there).collect();
    let only_probes = |run: &Run| {
        let others = run.peers.len() + run.python.len() + run.turns.len();
        !run.probes.is_empty() && others == 0
    };
    let what = match there[..] {
        [] if runs.iter().all(only_probes) => "Hardware ceilings".to_string(),
        [] => OPERATORS[0].title().to_string(),
        [operator] => operator.title().to_string(),
        _ => together(&there),
    };
    let mut title = what;
    if !models.is_empty() {
        title += &format!(" on {}", models.join(" and "));
    }
    if let Some(days) = days(runs) {
        title += &format!(", {days}");
    }
    let names: Vec<String> = runs.iter().map(Run::name).collect();
    (title, format!("Results of {}", names.join(" and ")))
}

/// The first day on which something was measured, and the last if that is another.
fn days(runs: &[Run]) -> Option<String> {
    let times = runs
        .iter()
        .flat_map(origins)
        .map(|origin| date(origin.unix_time));
    let told = runs
        .iter()
        .flat_map(|run| run.peers.iter().map(|it| it.date.clone()));
    let day = |moment: String| moment.split([' ', 'T']).next().map(str::to_string);
    let days = times.chain(told).filter_map(day);
    let days: BTreeSet<String> = days.filter(|day| !day.is_empty()).collect();
    let (first, last) = (days.first()?, days.last()?);
    Some(match first == last {
        true => first.clone(),
        false => format!("{first} to {last}"),
    })
}

/// The machines on which implementations were timed beside others, or from Python, in the order met.
fn machines(run: &Run) -> Vec<String> {
    let mut machines: Vec<String> = vec![];
    let peers = run.peers.iter().map(|it| &it.machine);
    for machine in peers.chain(run.python.iter().map(|it| &it.device)) {
        if !machines.contains(machine) {
            machines.push(machine.clone());
        }
    }
    machines
}

/// Whether a run is about an operator.
fn has(run: &Run, operator: &'static dyn Operator) -> bool {
    let mut tuned = run.tuned.iter();
    let mut counters = run.counters.iter();
    run.benches.iter().any(|it| it.operator() == operator)
        || run
            .rungs
            .iter()
            .any(|it| it.operator().operator() == operator)
        || tuned.any(|it| it.subject.problem.operator() == operator)
        || counters.any(|it| it.problem.operator() == operator)
}

/// Several operators in a few words, as in "Deformable and dense attention".
fn together(operators: &[&'static dyn Operator]) -> String {
    const ALL: &str = " attention";
    let short = |it: &&'static dyn Operator| {
        let words = it.in_words();
        words.strip_suffix(ALL).unwrap_or(words)
    };
    let words: Vec<_> = operators.iter().map(short).collect();
    let (last, others) = words.split_last().unwrap_or((&"", &[]));
    let text = format!("{} and {last}{ALL}", others.join(", "));
    let first = text.chars().next().map(|it| it.to_ascii_uppercase());
    first.into_iter().chain(text.chars().skip(1)).collect()
}
