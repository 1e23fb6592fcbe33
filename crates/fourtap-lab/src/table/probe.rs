//! What probes found: a table a group, because what is worth knowing differs.

use comfy_table::{ContentArrangement, Table};
use serde_json::Value;

use super::{align_right, or_dash, with_header};
use crate::probe::Probe;
use crate::record::{Outcome, ProbeRecord};
use crate::target::Device;

const WIDTH: u16 = 100;

const CAPTION: &str = "\
G/s: billions of additions per second. Tiles and slices: their bytes, counted once.
±: half the 95 % confidence interval of the median. claim: what others published for the same.
verified: what was compared before it was timed.";

/// The probes there are.
pub fn probes(probes: &[Probe]) -> String {
    let mut table = wrapped(&["name", "group", "what it does"]);
    for probe in probes {
        table.add_row([&probe.name, probe.group, &probe.what]);
    }
    format!("{table}\n")
}

/// One row per record.
pub fn probe_results(records: &[ProbeRecord], device: &Device) -> String {
    let mut groups: Vec<&str> = Vec::new();
    for record in records {
        if !groups.contains(&record.group.as_str()) {
            groups.push(&record.group);
        }
    }
    let mut text = String::new();
    for group in groups {
        let of_group: Vec<_> = records
            .iter()
            .filter(|record| record.group == group)
            .collect();
        let timed = of_group.iter().any(|record| record.timing.is_some());
        let table = match group {
            "device" if of_group[0].outcome == Outcome::Works => facts(of_group[0]),
            _ if timed => rates(&of_group),
            _ => outcomes(&of_group),
        };
        text += &format!("{}\n{table}\n", title(group));
    }
    let caption = match records.iter().any(|record| record.timing.is_some()) {
        true => format!("{CAPTION}\n"),
        false => String::new(),
    };
    format!("{text}On {}.\n{caption}", device.in_words())
}

fn title(group: &str) -> &str {
    match group {
        "device" => "Device",
        "ceiling" => "Ceilings",
        "tma" => "Boxes by tensor maps",
        "cluster" => "Clusters",
        "tile-copy" => "Copies of tiles of 2x2x32",
        "slice-copy" => "Copies of slices of channels",
        other => other,
    }
}

fn facts(record: &ProbeRecord) -> Table {
    let mut table = wrapped(&["fact", "value"]);
    for (name, value) in &record.parameters {
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        table.add_row([name.replace('_', " "), value]);
    }
    table
}

fn rates(records: &[&ProbeRecord]) -> Table {
    let mut table = wrapped(&["name", "rate", "unit", "±", "claim", "verified"]);
    for record in records {
        let unit = record.unit.map(|unit| unit.name().to_string());
        let uncertainty = record.timing.as_ref().map(|timing| timing.uncertainty());
        table.add_row([
            record.name.clone(),
            or_dash(record.rate.map(rate)),
            or_dash(unit),
            or_dash(uncertainty.map(|share| format!("{:.1} %", 100.0 * share))),
            or_dash(record.claim.as_ref().map(|claim| rate(claim.rate))),
            match record.outcome {
                Outcome::Measured => record.words.clone(),
                other => format!("{}: {}", word(other), record.words),
            },
        ]);
    }
    align_right(&mut table, 1..2);
    align_right(&mut table, 3..5);
    table
}

fn outcomes(records: &[&ProbeRecord]) -> Table {
    let mut table = wrapped(&["name", "outcome", "in words"]);
    for record in records {
        table.add_row([&record.name, word(record.outcome), &record.words]);
    }
    table
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Measured => "measured",
        Outcome::Works => "works",
        Outcome::Refused => "refused",
        Outcome::Unavailable => "unavailable",
        Outcome::Wrong => "WRONG",
        Outcome::Failed => "FAILED",
        Outcome::Hung => "HUNG",
        Outcome::Crashed => "CRASHED",
    }
}

/// Four digits that matter.
fn rate(rate: f64) -> String {
    let decimals = match rate {
        rate if rate >= 1000.0 => 0,
        rate if rate >= 100.0 => 1,
        rate if rate >= 10.0 => 2,
        _ => 3,
    };
    format!("{rate:.decimals$}")
}

fn wrapped(header: &[&str]) -> Table {
    let mut table = with_header(header);
    table
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH);
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Claim, Timing, Unit};
    use serde_json::json;

    fn device() -> Device {
        serde_json::from_value(json!({"kind": "cpu", "model": "a processor", "threads": 2}))
            .unwrap()
    }

    fn record(name: &str, group: &str, outcome: Outcome, words: &str) -> ProbeRecord {
        ProbeRecord::new(name, group, "what", &device(), outcome).verified(words)
    }

    fn shown(records: &[ProbeRecord]) -> String {
        let text = probe_results(records, &device());
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{text}");
        text
    }

    #[test]
    fn rates_claims_and_troubles_fit_100_columns() {
        let timing = || Timing::of(vec![1.0, 1.1, 1.2]);
        let mut claimed = record(
            "tile-plain-l2-f32",
            "tile-copy",
            Outcome::Works,
            "every sum",
        )
        .measured(Unit::GigabytesASecond, 4_321_000_000, timing());
        claimed.claim = Some(Claim {
            rate: 311.0,
            words: "by others".to_string(),
        });
        let long =
            "expected 0x1 as word 7 of the box at [1, 2, 3, 4, 5] of thread 12345, found 0x2, "
                .repeat(3);
        let text = shown(&[
            claimed,
            record("tile-tma-dram", "tile-copy", Outcome::Wrong, &long),
            record("cluster-16-many-80kb", "cluster", Outcome::Hung, &long),
            record("cluster-2-one-1kb", "cluster", Outcome::Works, "all words"),
            record("device", "device", Outcome::Works, "").with("l2_bytes", 62_914_560),
        ]);
        for part in [
            "3928",
            "311.0",
            "GB/s",
            "every sum",
            "WRONG: expected",
            "HUNG",
            "l2 bytes",
            "62914560",
            "Clusters",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn groups_stand_in_the_order_they_were_found() {
        let text = shown(&[
            record("a", "tma", Outcome::Works, ""),
            record("b", "cluster", Outcome::Works, ""),
            record("c", "tma", Outcome::Refused, "a rule"),
        ]);
        assert_eq!(text.matches("Boxes by tensor maps").count(), 1);
        assert!(text.find("Boxes") < text.find("Clusters"), "{text}");
        assert!(!text.contains("claim"), "{text}");
    }

    #[test]
    fn a_device_that_could_not_be_asked_is_no_list_of_facts() {
        let text = shown(&[record("device", "device", Outcome::Crashed, "by signal 6")]);
        assert!(
            text.contains("CRASHED") && text.contains("by signal 6"),
            "{text}"
        );
    }
}
