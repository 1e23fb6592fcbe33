//! What tuning tried, and what it found.

use std::collections::BTreeMap;

use super::chart::{Chart, Mark, Row, Shape};
use super::number::{self, counted, milliseconds};
use super::page::{Block, Cell, Figure, Holds, Section, Table};
use super::part::Part;
use super::probes::outcome;
use crate::record::{AttemptRecord, Finalist, Run, TunedRecord};
use crate::tune::{BuildResult, CandidateOrigin, sensitivities};

/// The section; none without a search that ended.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts.iter().filter(|part| !part.tuned.is_empty()) {
        blocks.extend(part.title.clone().map(Block::Heading));
        if part.tuned.len() > 1 {
            blocks.push(Block::Table(overview(&part.tuned)));
        }
        for tuned in &part.tuned {
            let attempts = part.attempts.iter().copied();
            let attempts: Vec<_> = attempts.filter(|it| it.subject == tuned.subject).collect();
            blocks.extend(search(tuned, &attempts));
        }
    }
    Section::of("tuning", "Tuning", "", blocks)
}

/// How much was tried, and what it gained.
pub fn figure(run: &Run) -> Option<Figure> {
    let count = run.tuned.len();
    let gains: Vec<f64> = run
        .tuned
        .iter()
        .filter_map(|it| Some(gain(it)?.speed))
        .collect();
    let most = gains.iter().copied().reduce(f64::max);
    let most = most.map(|most| format!("; at most {} times as fast", speed(most)));
    let searches = if count == 1 { "search" } else { "searches" };
    (count > 0).then(|| Figure {
        number: format!("{} of {count}", gains.len()),
        what: format!("{searches} found something faster than the defaults"),
        detail: counted(run.attempts.len(), "attempt") + &most.unwrap_or_default(),
    })
}

/// What was kept, if that is not the defaults.
fn gain(tuned: &TunedRecord) -> Option<&Finalist> {
    tuned.kept().filter(|_| tuned.winner > 0)
}

fn speed(speed: f64) -> String {
    format!("{speed:.3}")
}

fn choice(parameters: &BTreeMap<String, u32>) -> String {
    let words = parameters.iter();
    let words = words.map(|(name, value)| format!("{name}={value}"));
    words.collect::<Vec<_>>().join(" ")
}

/// One row per search.
fn overview(all: &[&TunedRecord]) -> Table {
    Table::of("Every search", all)
        .words("kernel", |it| it.subject.kernel.as_str())
        .words("workload", |it| {
            Cell::from(&it.subject.workload).with_detail(&it.subject.distribution)
        })
        .words("type", |it| it.subject.dtype.as_str())
        .numbers("attempts", number::grouped, |it| Some(it.attempts as f64))
        .column("× defaults", Holds::Numbers, |it| {
            Cell::number(gain(it).map(|it| it.speed), speed).strong()
        })
        .numbers("at least", speed, |it| Some(gain(it)?.speed_low))
        .sentences("kept", |it| {
            it.kept().map_or(String::new(), |kept| it.differences(kept))
        })
        .table()
}

fn search(tuned: &TunedRecord, attempts: &[&AttemptRecord]) -> Vec<Block> {
    let words = format!(
        "Result: {}. {} fit, {} were tried, {} were correct; it ended because {}. What was kept serves problems of \
         class {} on this device.",
        tuned.verdict,
        counted(tuned.points, "choice"),
        tuned.attempts,
        tuned.right,
        tuned.ended,
        tuned.subject.class,
    );
    vec![
        Block::Heading(tuned.subject.name()),
        Block::Words(words),
        Block::Table(finals(tuned)),
        Block::Table(effects(attempts)),
        Block::Table(everything(attempts)),
    ]
}

fn finals(tuned: &TunedRecord) -> Table {
    let finals: Vec<_> = tuned.finals.iter().enumerate().collect();
    Table::of("The fastest, timed alternately with the defaults", &finals)
        .numbers("attempt", number::grouped, |(_, it)| {
            Some(f64::from(it.number))
        })
        .sentences("choice", |(_, it)| tuned.differences(it))
        .numbers("ms", milliseconds, |(_, it)| Some(it.hot.median_ms))
        .numbers("× defaults", speed, |(_, it)| Some(it.speed))
        .words("between", |(_, it)| {
            format!("{} to {}", speed(it.speed_low), speed(it.speed_high))
        })
        .words("verdict", |(index, it)| match it.equals_fastest {
            _ if *index == tuned.winner => Cell::from("kept").strong(),
            true => Cell::from("as fast"),
            false => Cell::from("slower"),
        })
        .table()
}

/// The fastest attempt with one value of a parameter.
struct Effect {
    parameter: String,
    value: u32,
    is_default: bool,
    attempts: usize,
    ms: f64,
    /// Against the defaults.
    speed: Option<f64>,
}

fn effects_of(attempts: &[&AttemptRecord]) -> Vec<Effect> {
    let mut all = attempts.iter();
    let default = all.find(|it| it.how == CandidateOrigin::Default);
    let default_ms = default.and_then(|it| it.median_ms());
    let timed = attempts.iter();
    let timed = timed.filter_map(|it| Some((&it.parameters, it.median_ms()?)));
    let mut effects = vec![];
    for one in sensitivities(timed) {
        let default = default.and_then(|it| it.parameters.get(&one.parameter));
        for (value, attempts, ms) in one.values {
            effects.push(Effect {
                parameter: one.parameter.clone(),
                value,
                is_default: default == Some(&value),
                attempts,
                ms,
                speed: default_ms.map(|default_ms| default_ms / ms),
            });
        }
    }
    effects
}

/// What each value of each parameter makes possible.
fn effects(attempts: &[&AttemptRecord]) -> Table {
    let effects = effects_of(attempts);
    let row = |(of, effect): (usize, &Effect)| {
        let mark = Mark::new(Shape::Ours, effect.speed?);
        Some(Row::of(of, vec![mark]))
    };
    let rows: Vec<Row> = effects.iter().enumerate().filter_map(row).collect();
    let chart = Chart {
        title: "Effect of each parameter".to_string(),
        caption: "For each value, the fastest attempt that has it, whatever else it has. Where the discs of a \
                  parameter lie at one speed, it has no effect."
            .to_string(),
        axis: "speedup over the defaults".to_string(),
        reference: Some((1.0, "the defaults".to_string())),
        group: "parameter",
        labels: &["value"],
        values: vec![("fastest ms".to_string(), " ms"), ("× defaults".to_string(), " ×")],
        legend: vec![(Shape::Ours, "the fastest attempt with this value".to_string())],
        rows,
        ..Chart::default()
    };
    Table::of("Effect of each parameter", &effects)
        .words("parameter", |it| it.parameter.as_str())
        .words("value", |it| {
            let value = Cell::number(Some(f64::from(it.value)), number::grouped);
            value.with_detail(if it.is_default { "default" } else { "" })
        })
        .numbers("attempts", number::grouped, |it| Some(it.attempts as f64))
        .numbers("fastest ms", milliseconds, |it| Some(it.ms))
        .numbers("× defaults", speed, |it| it.speed)
        .table()
        .folded("Effect of each parameter in figures")
        .drawn(chart.if_any())
}

fn everything(attempts: &[&AttemptRecord]) -> Table {
    let built = |it: &AttemptRecord, of: fn(&BuildResult) -> Option<u32>| {
        it.built.as_ref().and_then(of).map(f64::from)
    };
    Table::of("Every attempt", attempts)
        .numbers("attempt", number::grouped, |it| Some(f64::from(it.number)))
        .words("found by", |it| it.how.name())
        .numbers("registers", number::grouped, |it| {
            built(it, BuildResult::registers)
        })
        .numbers("bytes of stack", number::grouped, |it| {
            built(it, |it| Some(it.stack_bytes()).filter(|bytes| *bytes > 0))
        })
        .numbers("ms", milliseconds, |it| it.median_ms())
        .numbers("× defaults", speed, |it| it.speed)
        .words("outcome", |it| outcome(it.outcome))
        .sentences("choice", |it| {
            Cell::from(choice(&it.parameters)).with_detail(&it.words)
        })
        .table()
        .folded(format!("All {}", counted(attempts.len(), "attempt")))
        .searched_as("mutation")
}
