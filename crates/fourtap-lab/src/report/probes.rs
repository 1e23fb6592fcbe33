//! What the hardware can do at most, and what others said it could.

use serde_json::Value;

use super::number::{self, or_dash, percent};
use super::page::{Block, Cell, Section, Table};
use super::part::Part;
use crate::record::{Outcome, ProbeRecord, Unit};
use crate::units;

/// Groups in the order shown, and what they are called.
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
        blocks.extend(part.title.as_ref().map(Block::heading));
        let known = GROUPS.map(|(group, title)| (group.to_string(), title.to_string()));
        let mut groups = known.to_vec();
        for probe in &part.probes {
            if !groups.iter().any(|(group, _)| *group == probe.group) {
                groups.push((probe.group.clone(), probe.group.clone()));
            }
        }
        for (group, title) in groups {
            let probes = part.probes.iter().copied();
            let probes: Vec<_> = probes.filter(|probe| probe.group == group).collect();
            if !probes.is_empty() {
                blocks.push(Block::heading(&title));
                blocks.push(Block::Table {
                    table: table(&title, &probes),
                });
            }
        }
    }
    (!blocks.is_empty()).then_some(Section {
        id: "probes",
        title: "Probes",
        blocks,
    })
}

fn table(title: &str, probes: &[&ProbeRecord]) -> Table {
    let heads = [
        "probe",
        "outcome",
        "#measured",
        "#±",
        "~others claim",
        "~what was seen",
    ];
    let mut table = Table::new(title, &heads);
    for probe in probes {
        let with_unit = |rate: f64| in_words(rate, probe.unit);
        let rate = probe.rate.filter(|_| probe.is_measured());
        let uncertainty = probe.timing.as_ref().map(|timing| timing.uncertainty());
        let mut name = Cell::words(&probe.name);
        if probe.what != probe.name {
            name = name.with_detail(&probe.what);
        }
        let claim = probe.claim.as_ref();
        let mut claimed = Cell::number(
            or_dash(claim.map(|claim| claim.rate), with_unit),
            claim.map(|claim| claim.rate),
        );
        if let Some(claim) = claim {
            claimed = claimed.with_detail(&claim.words);
        }
        let outcome = Cell::words(outcome(probe.outcome));
        let mut seen = Cell::words(&probe.words);
        let parameters = parameters(probe);
        if !parameters.is_empty() {
            seen = seen.with_detail(parameters);
        }
        table.rows.push(vec![
            name,
            match probe.outcome {
                Outcome::Measured | Outcome::Works => outcome,
                _ => outcome.strong(),
            },
            Cell::number(or_dash(rate, with_unit), rate).strong(),
            Cell::number(or_dash(uncertainty, percent), uncertainty),
            claimed,
            seen,
        ]);
    }
    table.without_empty_columns()
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
    let written: Vec<_> = probe
        .parameters
        .iter()
        .map(|(name, value)| {
            let name = name.replace('_', " ");
            match (value, value.as_f64()) {
                (Value::String(words), _) => format!("{name}: {words}"),
                (Value::Number(count), _) if name.ends_with("bytes") && count.is_u64() => {
                    let bytes = units::bytes(count.as_u64().unwrap_or(0));
                    let what = name.trim_end_matches("bytes").trim_end();
                    format!("{}: {bytes}", if what.is_empty() { "size" } else { what })
                }
                (_, Some(number)) if number.fract() == 0.0 => {
                    format!("{name}: {}", number::grouped(number))
                }
                _ => format!("{name}: {value}"),
            }
        })
        .collect();
    written.join("; ")
}
