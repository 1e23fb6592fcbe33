//! What others published, and what single changes gain.

use std::collections::{BTreeMap, BTreeSet};

use super::Case;
use super::tables::{hot, name};
use crate::record::RungOperator;
use crate::record::{RungRecord, billions_a_second};
use crate::report::number::{self, or_dash, times};
use crate::report::page::{Block, Cell, Table};
use crate::report::probes::outcome;

/// Whether a rung is of a suite. One that has no time was never set against anything, but belongs there by its name.
fn is_single_change(record: &RungRecord) -> bool {
    record.against.is_some() || (record.builds_on.is_some() && record.rung.starts_with('s'))
}

/// The records a reader may take a rung's words from: the first of each, in the order of names.
fn distinct<'a>(
    records: &[&'a RungRecord],
    test: impl Fn(&RungRecord) -> bool,
) -> Vec<&'a RungRecord> {
    let mut rungs: BTreeMap<&str, &RungRecord> = BTreeMap::new();
    for record in records.iter().copied().filter(|it| test(it)) {
        rungs.entry(&record.rung).or_insert(record);
    }
    rungs.into_values().collect()
}

/// Every claim about a rung but those about single changes, beside what came out here.
pub fn add_published(blocks: &mut Vec<Block>, records: &[&RungRecord], case: &Case<'_>) {
    let times_plainest = format!("#× {}", case.operator().plainest());
    let heads = [
        "rung",
        "~published",
        "#ours, ms",
        "#operations",
        &times_plainest,
        "~why they differ",
    ];
    let mut table = Table::new("What was published, and what we found", &heads);
    for record in distinct(records, |it| it.claim.is_some() && !is_single_change(it)) {
        let Some(claim) = &record.claim else { continue };
        let ours = case.of(&record.rung);
        let speed = ours.and_then(|it| Some(billions_a_second(it.traffic.flop, it.median_ms()?)));
        let against = ours.and_then(|it| case.times_plainest(it));
        table.rows.push(vec![
            name(record),
            Cell::words(&claim.words),
            ours.map_or(Cell::words("–"), hot),
            Cell::number(or_dash(speed, number::operations), speed),
            Cell::number(or_dash(against, times), against),
            Cell::words(&claim.why),
        ]);
    }
    if table.rows.is_empty() {
        return;
    }
    blocks.push(Block::heading("What was published, and what we found"));
    let model = match case.operator() {
        RungOperator::Msda => "10 per channel and sample",
        RungOperator::Dense => "4 per channel and pair of query and key",
    };
    blocks.push(Block::words(format!(
        "Published figures of the same ideas next to ours, on {}. FLOP are counted by a model, {model}.",
        case.name
    )));
    blocks.push(Block::Table {
        table: table.without_empty_columns(),
    });
}

/// Rungs that were timed alternately with the one they change.
pub fn add_single_changes(blocks: &mut Vec<Block>, records: &[&RungRecord], cases: &[Case<'_>]) {
    let rungs = distinct(records, is_single_change);
    if rungs.is_empty() {
        return;
    }
    let columns: Vec<String> = cases.iter().map(|case| format!("#{}", case.name)).collect();
    let mut heads = vec!["rung", "changes"];
    heads.extend(columns.iter().map(String::as_str));
    heads.push("#published");
    let mut table = Table::new("What single changes gain", &heads);
    let mut whys = BTreeSet::new();
    for record in rungs {
        whys.extend(record.claim.as_ref().map(|it| it.why.as_str()));
        let changes = record.against.as_ref().map(|it| &it.rung);
        let changes = changes.or(record.builds_on.as_ref());
        let claim = record.claim.as_ref().map_or("–", |it| it.words.as_str());
        let mut row = vec![
            name(record),
            Cell::words(changes.map_or("–", String::as_str)),
        ];
        row.extend(cases.iter().map(|case| gain(case.of(&record.rung))));
        row.push(Cell::words(claim));
        table.rows.push(row);
    }
    blocks.push(Block::heading("What single changes gain"));
    let mut words = "Each of these changes one thing in another rung, and both were timed alternately, so that clock \
                     drift does not pass for a gain. In percent of speed: the median of all turns, below it the \
                     least and the most. Bold are those whose turns all agree on the sign."
        .to_string();
    if !whys.is_empty() {
        let whys: Vec<_> = whys.into_iter().collect();
        words += &format!(" Why the published gains differ: {}.", whys.join("; or "));
    }
    blocks.push(Block::words(words));
    blocks.push(Block::Table {
        table: table.without_empty_columns(),
    });
}

/// What a single change gains, in percent of speed, over all turns.
fn gain(record: Option<&RungRecord>) -> Cell {
    let Some(record) = record else {
        return Cell::words("–");
    };
    let Some(against) = &record.against else {
        return match record.hot {
            Some(_) => Cell::words("–"),
            None => Cell::words(outcome(record.outcome)),
        };
    };
    let gain = |ratio: f64| 1.0 / ratio - 1.0;
    let (low, high) = (gain(against.high), gain(against.low));
    let middle = gain(against.ratio);
    let cell = Cell::number(signed(middle), Some(middle)).with_detail(format!(
        "{} to {}",
        signed(low),
        signed(high)
    ));
    match low > 0.0 || high < 0.0 {
        true => cell.strong(),
        false => cell,
    }
}

fn signed(share: f64) -> String {
    match share.is_finite() && share.abs() < 1e4 {
        true => format!("{:+.1} %", 100.0 * share),
        false => "–".to_string(),
    }
}
