//! What was measured, on what, by what; and what a reader must know before believing it.

use std::collections::BTreeSet;

use super::number::{self, counted, times};
use super::page::{Block, Figure, Section};
use super::part::{Part, devices};
use super::peer::times_best_peer;
use super::probes::outcome;
use super::{date, part, rungs, tuning};
use crate::cli::Direction;
use crate::operators::{OPERATORS, Operator};
use crate::record::{BenchRecord, Conditions, Origin, Outcome, Run, RungRecord, Timing};
use crate::table;
use crate::target::Device;

/// A median less certain than this is worth a warning; half its confidence interval, as a share.
const UNCERTAIN: f64 = 0.02;

/// Names in a warning before the rest is counted.
const MOST_NAMES: usize = 3;

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
fn is_broken(record: &RungRecord) -> bool {
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

fn origins(run: &Run) -> impl Iterator<Item = &Origin> {
    let benches = run.benches.iter().map(|it| &it.origin);
    let probes = run.probes.iter().map(|it| &it.origin);
    let counters = run.counters.iter().map(|it| &it.origin);
    let rungs = run.rungs.iter().map(|it| &it.origin);
    let attempts = run.attempts.iter().map(|it| &it.origin);
    let tuned = run.tuned.iter().map(|it| &it.origin);
    let measured = benches.chain(probes).chain(counters).chain(rungs);
    measured.chain(attempts).chain(tuned)
}

/// What is doubtful in a run, in sentences.
pub fn warnings(run: &Run) -> Vec<String> {
    let mut warnings = vec![];
    let named = |test: &dyn Fn(&BenchRecord) -> bool| -> Vec<String> {
        let found = run.benches.iter().filter(|record| test(record));
        found.map(BenchRecord::name).collect()
    };
    for record in &run.benches {
        let found = record.verification.found.as_deref();
        if !record.verification.passed {
            warnings.push(format!(
                "{} failed its verification, so it has no time: {}.",
                record.name(),
                found.unwrap_or("no reason was recorded")
            ));
        }
        for beside in record.beside.iter().filter(|it| !it.verification.passed) {
            warnings.push(format!(
                "{}: the variant {} failed its verification, so it has no time: {}.",
                record.name(),
                beside.role,
                beside
                    .verification
                    .found
                    .as_deref()
                    .unwrap_or("no reason was recorded")
            ));
        }
    }
    warnings.extend(broken(run));
    let timed = timed(run);
    let uncertainty = |it: &TimedResult<'_>| it.hot.map(Timing::uncertainty);
    let is_uncertain =
        |it: &&TimedResult<'_>| uncertainty(it).is_some_and(|share| share > UNCERTAIN);
    let uncertain = timed.iter().filter(is_uncertain);
    let uncertain: Vec<String> = uncertain.map(|it| it.name.clone()).collect();
    let widest = timed.iter().filter_map(uncertainty).fold(0.0, f64::max);
    if !uncertain.is_empty() {
        warnings.push(format!(
            "{} uncertain by more than {}, the worst by {}: {}.",
            is_or_are(uncertain.len(), "median"),
            number::percent(UNCERTAIN),
            number::percent(widest),
            listed(&uncertain)
        ));
    }
    let slowed = timed.iter().filter(|it| !it.throttled_by.is_empty());
    let slowed: Vec<String> = slowed.map(|it| it.name.clone()).collect();
    if !slowed.is_empty() {
        let reasons: BTreeSet<_> = timed
            .iter()
            .flat_map(|it| &it.throttled_by)
            .copied()
            .collect();
        let reasons: Vec<_> = reasons.into_iter().collect();
        let noun = match run.rungs.is_empty() {
            true => "benchmark",
            false => "result",
        };
        warnings.push(format!(
            "Clocks were throttled ({}) around {}: {}.",
            reasons.join(", "),
            counted(slowed.len(), noun),
            listed(&slowed)
        ));
    }
    let suspicious = named(&|record| record.roof.as_ref().is_some_and(|roof| roof.suspicious));
    if !suspicious.is_empty() {
        warnings.push(format!(
            "{} suspicious: faster than the measured ceilings allow, so a ceiling, the count of bytes or the result \
             is wrong: {}.",
            is_or_are(suspicious.len(), "result"),
            listed(&suspicious)
        ));
    }
    if run.cut_short {
        warnings
            .push("The file ends in the middle of a line: the run was interrupted.".to_string());
    }
    let dirty = origins(run).filter_map(|origin| origin.commit.as_ref());
    let dirty: BTreeSet<_> = dirty.filter(|commit| commit.ends_with('+')).collect();
    for commit in dirty {
        warnings.push(format!(
            "The code was built from {} with changes that are not committed.",
            commit.trim_end_matches('+')
        ));
    }
    let hashes: BTreeSet<_> = origins(run)
        .filter_map(|it| it.source_hash.as_ref())
        .collect();
    if hashes.len() > 1 {
        warnings.push(format!(
            "The results come from {} versions of the code.",
            hashes.len()
        ));
    }
    warnings
}

/// A result that may have a time, whatever kind of record it is.
struct TimedResult<'a> {
    name: String,
    hot: Option<&'a Timing>,
    throttled_by: Vec<&'a str>,
}

fn timed(run: &Run) -> Vec<TimedResult<'_>> {
    let benches = run.benches.iter().map(|record| TimedResult {
        name: record.name(),
        hot: record.hot.as_ref(),
        throttled_by: throttled_by(record.conditions.as_ref()),
    });
    let rungs = run.rungs.iter().map(|record| TimedResult {
        name: rung_name(record),
        hot: record.hot.as_ref(),
        throttled_by: throttled_by(record.conditions.as_ref()),
    });
    benches.chain(rungs).collect()
}

fn throttled_by(conditions: Option<&Conditions>) -> Vec<&str> {
    conditions.map_or(vec![], Conditions::throttled_by)
}

fn rung_name(record: &RungRecord) -> String {
    format!(
        "{}/{}/{}",
        record.workload, record.distribution, record.rung
    )
}

/// Rungs that are broken, in a sentence each: mostly the reason is the same on every problem.
fn broken(run: &Run) -> Vec<String> {
    let mut found: Vec<(&RungRecord, Vec<String>)> = vec![];
    for record in run.rungs.iter().filter(|it| is_broken(it)) {
        let same = |known: &RungRecord| {
            known.rung == record.rung
                && known.outcome == record.outcome
                && known.words == record.words
        };
        let problem = format!("{}/{}", record.workload, record.distribution);
        match found.iter_mut().find(|(known, _)| same(known)) {
            Some((_, problems)) => problems.push(problem),
            None => found.push((record, vec![problem])),
        }
    }
    let sentence = |(record, problems): (&RungRecord, Vec<String>)| {
        let ended = match record.outcome {
            Outcome::Wrong => "was wrong",
            other => outcome(other),
        };
        format!(
            "Rung {} {ended} on {}, so it has no time there: {}.",
            record.rung,
            listed(&problems),
            match record.words.trim_end_matches('.') {
                "" => "no reason was recorded",
                words => words,
            }
        )
    };
    found.into_iter().map(sentence).collect()
}

fn is_or_are(count: usize, noun: &str) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    format!("{} {verb}", counted(count, noun))
}

fn listed(names: &[String]) -> String {
    let shown = names[..names.len().min(MOST_NAMES)].join(", ");
    match names.len() - names.len().min(MOST_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// What a page about these runs is called, and in a sentence about what it is.
pub fn title(runs: &[Run]) -> (String, String) {
    let names: Vec<String> = runs.iter().map(Run::name).collect();
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
        if !models.contains(&machine) {
            models.push(machine);
        }
    }
    let is_there = |operator: &&'static dyn Operator| runs.iter().any(|run| has(run, *operator));
    let there: Vec<_> = OPERATORS.into_iter().filter(is_there).collect();
    let what = match there[..] {
        [] => OPERATORS[0].title().to_string(),
        [operator] => operator.title().to_string(),
        _ => together(&there),
    };
    (
        names.join(" and "),
        format!("{what} on {}", models.join(" and ")),
    )
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
