//! The rungs of a case as tables.

use std::collections::BTreeMap;

use super::{Case, chosen, error};
use crate::record::RungOperator;
use crate::record::{RungRecord, billions_a_second};
use crate::report::counters::limit;
use crate::report::number::{self, counted, milliseconds, or_dash, percent, times};
use crate::report::page::{Block, Cell, Table};
use crate::report::probes::outcome;
use crate::{table, units};

/// All that is known of every rung.
pub fn all_about(case: &Case<'_>) -> Block {
    let (all, timed) = (case.ranked.len(), case.timed());
    let rungs = counted(all, "rung");
    let summary = match all - timed {
        0 => format!("{}: details of {rungs}", case.name),
        without => format!(
            "{}: details of {rungs}, {without} without a time",
            case.name
        ),
    };
    folded(summary, everything(case))
}

fn folded(summary: String, table: Table) -> Block {
    Block::Folded {
        summary,
        open: false,
        blocks: vec![Block::Table { table }],
    }
}

fn everything(case: &Case<'_>) -> Table {
    let times_heading = format!("#× {}", case.operator().plainest());
    let heads = [
        "rung",
        "#place",
        "#hot ms",
        "#kept ms",
        &times_heading,
        "~against its base rung",
        "#operations",
        "#tensor",
        "#gather",
        "#DRAM",
        "#registers",
        "#shared",
        "#spilled",
        "#scratch",
        "#error",
        "bottleneck",
        "~checked",
        "~chosen",
    ];
    let mut table = Table::new(&format!("{}, every rung", case.name), &heads);
    table.searchable = true;
    table.example = match case.operator() {
        RungOperator::Msda => "faster a03",
        RungOperator::Dense => "faster d06",
    };
    let fastest = case.ranked.first().and_then(|it| it.median_ms());
    for (index, record) in case.ranked.iter().enumerate() {
        let time = record.median_ms();
        let against = case.times_plainest(record);
        let mut times_plainest = Cell::number(or_dash(against, times), against);
        if let Some((fastest, time)) = fastest.zip(time) {
            times_plainest = times_plainest.with_share(fastest / time);
        }
        let kept = record.prepared.as_ref().map(|it| it.median_ms);
        let share = |share: Option<f64>| Cell::number(or_dash(share, percent), share);
        let bytes = |bytes: Option<u64>, write: fn(u64) -> String| {
            let bytes = bytes.filter(|bytes| *bytes > 0);
            Cell::number(or_dash(bytes, write), bytes.map(|it| it as f64))
        };
        let resources = record.resources();
        let registers = resources.map(|(registers, _)| f64::from(registers));
        let spilled = record.launches.iter().map(|it| it.local_bytes).max();
        let shared = resources.map(|(_, shared)| shared);
        let place = time.map(|_| (index + 1) as f64);
        table.rows.push(vec![
            name(record),
            Cell::number(or_dash(place, number::grouped), place),
            hot(record),
            Cell::number(or_dash(kept, milliseconds), kept),
            times_plainest,
            standing(case, record),
            operations(record),
            share(record.of_tensor),
            share(record.of_gather),
            share(record.of_dram),
            Cell::number(or_dash(registers, number::grouped), registers),
            bytes(shared.map(u64::from), kibibytes),
            bytes(spilled.map(u64::from), units::bytes),
            bytes(Some(record.scratch_bytes), units::bytes),
            approximation(record),
            binds(record),
            checked(record),
            Cell::words(chosen(record)),
        ]);
    }
    table.without_empty_columns()
}

/// A second, of dense attention; of the other what is gathered says more.
fn operations(record: &RungRecord) -> Cell {
    let time = record
        .median_ms()
        .filter(|_| record.operator() == RungOperator::Dense);
    let speed = time.map(|time| billions_a_second(record.traffic.flop, time));
    Cell::number(or_dash(speed, number::operations), speed)
}

/// Shared memory is dealt out in these.
fn kibibytes(bytes: u64) -> String {
    format!("{} KiB", bytes.div_ceil(1024))
}

/// Bottlenecks of those whose counters were read, in sentences too long for the other table.
pub fn bottlenecks(case: &Case<'_>) -> Option<Block> {
    let heads = ["rung", "#hot ms", "bottleneck", "~by its counters"];
    let mut table = Table::new(&format!("{}: bottlenecks", case.name), &heads);
    table.searchable = true;
    table.example = "L1";
    for record in &case.ranked {
        let Some(binding) = &record.binding else {
            continue;
        };
        table.rows.push(vec![
            name(record),
            hot(record),
            binds(record).with_share(binding.busy),
            Cell::words(&binding.words),
        ]);
    }
    let summary = format!("{}: bottlenecks", case.name);
    (!table.rows.is_empty()).then(|| folded(summary, table))
}

/// What a rung is called.
pub fn name(record: &RungRecord) -> Cell {
    Cell::words(&record.rung)
        .with_detail(&record.title)
        .strong()
}

/// The time, or in a word why there is none.
pub fn hot(record: &RungRecord) -> Cell {
    match &record.hot {
        Some(hot) => Cell::number(milliseconds(hot.median_ms), Some(hot.median_ms))
            .with_detail(format!("± {}", percent(hot.uncertainty())))
            .strong(),
        None => Cell::words(outcome(record.outcome)).strong(),
    }
}

/// How it does against what it changes, or why there is no time.
fn standing(case: &Case<'_>, record: &RungRecord) -> Cell {
    let words = match record.hot {
        Some(_) => table::standing(record, &case.ranked),
        None => table::verdict(record, &case.ranked),
    };
    Cell::words(match words.is_empty() {
        true => "–".to_string(),
        false => words,
    })
}

fn approximation(record: &RungRecord) -> Cell {
    let error = error(record);
    let cell = Cell::number(or_dash(error, number::error), error);
    match record.approximate {
        Some(stated) => cell.with_detail(format!("≤\u{a0}{}", number::error(stated))),
        None => cell,
    }
}

fn binds(record: &RungRecord) -> Cell {
    let binding = record.binding.as_ref();
    let words = or_dash(binding, |it| {
        format!("{} {}", limit(&it.limit), percent(it.busy))
    });
    Cell::words(words)
}

fn checked(record: &RungRecord) -> Cell {
    let small = record.small.as_ref();
    let mut details: Vec<String> = small
        .map(|it| counted(it.elements, "element"))
        .into_iter()
        .collect();
    details.push(sanitizer(record));
    if let Some(small) = small.filter(|it| !it.refused.is_empty()) {
        details.push(format!("refused: {}", small.refused.join("; ")));
    }
    if let Some(library) = &record.library {
        details = vec![format!("other library: {library}; sampled rows")];
    }
    let text = or_dash(small, |it| counted(it.right, "small problem"));
    Cell::number(text, small.map(|it| it.right as f64)).with_detail(details.join(", "))
}

/// What the sanitizer's tools said; mostly the same, which need not be read four times.
fn sanitizer(record: &RungRecord) -> String {
    let mut said: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tool, words) in &record.sanitizer {
        said.entry(words).or_default().push(tool);
    }
    if said.is_empty() {
        return "sanitizer not run".to_string();
    }
    let all = record.sanitizer.len();
    let said = said.iter().map(|(words, tools)| match tools.len() == all {
        true => format!("sanitizer {words}"),
        false => format!("{} {words}", tools.join(" and ")),
    });
    said.collect::<Vec<_>>().join(", ")
}
