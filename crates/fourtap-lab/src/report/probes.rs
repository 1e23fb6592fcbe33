//! What the hardware can do at most, and what others said it could.

use serde_json::Value;

use super::number::{self, percent};
use super::page::{Block, Cell, Holds, Section, Table};
use super::part::Part;
use crate::record::{Outcome, ProbeRecord, Unit};
use crate::units;

/// Groups in the order shown, and what they are called; others come after them.
const GROUPS: [(&str, &str); 6] = [
    ("device", "The device"),
    ("ceiling", "Ceilings"),
    ("tma", "Tensor memory accelerator"),
    ("cluster", "Clusters of blocks"),
    ("tile-copy", "Copying tiles of 2 x 2 pixels"),
    ("slice-copy", "Copying slices of channels"),
];

/// The section; none without probes.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts.iter().filter(|part| !part.probes.is_empty()) {
        blocks.extend(part.title.clone().map(Block::Heading));
        let mut groups = GROUPS.to_vec();
        for probe in &part.probes {
            if !groups.iter().any(|(group, _)| *group == probe.group) {
                groups.push((&probe.group, &probe.group));
            }
        }
        for (group, title) in groups {
            let probes = part.probes.iter().copied();
            let probes: Vec<_> = probes.filter(|probe| probe.group == group).collect();
            if !probes.is_empty() {
                blocks.push(Block::Heading(title.to_string()));
                blocks.push(Block::Table(table(title, &probes)));
            }
        }
    }
    Section::of("probes", "Probes", "", blocks)
}

fn table(title: &str, probes: &[&ProbeRecord]) -> Table {
    let rate = |it: &&ProbeRecord| it.rate.filter(|_| it.is_measured());
    Table::of(title, probes)
        .words("probe", |it| match it.what == it.name {
            true => Cell::from(&it.name),
            false => Cell::from(&it.name).with_detail(&it.what),
        })
        .words("outcome", |it| {
            let expected = matches!(it.outcome, Outcome::Measured | Outcome::Works);
            Cell::from(outcome(it.outcome)).strong_if(!expected)
        })
        .column("measured", Holds::Numbers, |it| {
            Cell::number(rate(it), |rate| in_words(rate, it.unit)).strong()
        })
        .numbers("±", percent, |it| Some(it.timing.as_ref()?.uncertainty()))
        .sentences("others claim", |it| match &it.claim {
            Some(claim) => Cell::from(in_words(claim.rate, it.unit)).with_detail(&claim.words),
            None => Cell::number(None, number::rate),
        })
        .sentences("what was seen", |it| {
            Cell::from(&it.words).with_detail(parameters(it))
        })
        .table()
}

fn in_words(rate: f64, unit: Option<Unit>) -> String {
    match unit {
        Some(Unit::GigabytesASecond) => number::bandwidth(rate),
        Some(Unit::GigaflopASecond) => number::operations(rate),
        Some(Unit::GigaASecond) => format!("{} G/s", number::rate(rate)),
        Some(Unit::Microseconds) => format!("{} µs", number::rate(rate)),
        None => number::rate(rate),
    }
}

/// How something ended, in a word.
pub fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Measured => "measured",
        Outcome::Works => "works",
        Outcome::Refused => "refused",
        Outcome::Unavailable => "not there",
        Outcome::Wrong => "wrong",
        Outcome::Failed => "failed",
        Outcome::Hung => "hung",
        Outcome::Crashed => "crashed",
    }
}

fn parameters(probe: &ProbeRecord) -> String {
    let written = probe.parameters.iter().map(|(name, value)| {
        let name = name.replace('_', " ");
        match (value, value.as_u64()) {
            (_, Some(bytes)) if name.ends_with("bytes") => {
                let what = name.trim_end_matches("bytes").trim_end();
                let what = if what.is_empty() { "size" } else { what };
                format!("{what}: {}", units::bytes(bytes))
            }
            (_, Some(count)) => format!("{name}: {}", number::grouped(count as f64)),
            (Value::String(words), _) => format!("{name}: {words}"),
            _ => format!("{name}: {value}"),
        }
    });
    written.collect::<Vec<_>>().join("; ")
}
