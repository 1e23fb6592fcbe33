//! What probes there are, and what they found.

use comfy_table::{ContentArrangement, Table};

use super::{align_right, or_dash, with_header};
use crate::probe::Probe;
use crate::record::{Outcome, ProbeRecord};
use crate::target::Device;

const WIDTH: u16 = 100;

const CAPTION: &str = "\
G/s: billions of additions per second. ±: half the 95 % confidence interval of the median.
verified: what was compared before it was timed.";

/// The probes there are.
pub fn probes(probes: &[Probe]) -> String {
    let mut table = wrapped(&["name", "what it does"]);
    for probe in probes {
        table.add_row([probe.name, &probe.what]);
    }
    format!("{table}\n")
}

/// One row per record.
pub fn probe_results(records: &[ProbeRecord], device: &Device) -> String {
    let mut table = wrapped(&["name", "rate", "unit", "±", "verified"]);
    for record in records {
        let unit = record.unit.map(|unit| unit.name().to_string());
        let uncertainty = record.timing.as_ref().map(|timing| timing.uncertainty());
        table.add_row([
            record.name.clone(),
            or_dash(record.rate.map(rate)),
            or_dash(unit),
            or_dash(uncertainty.map(|share| format!("{:.1} %", 100.0 * share))),
            match trouble(record.outcome) {
                None => record.words.clone(),
                Some(trouble) => format!("{trouble}: {}", record.words),
            },
        ]);
    }
    align_right(&mut table, 1..2);
    align_right(&mut table, 3..4);
    format!("{table}\nOn {}.\n{CAPTION}\n", device.in_words())
}

fn trouble(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::Measured | Outcome::Works => None,
        Outcome::Refused => Some("refused"),
        Outcome::Unavailable => Some("unavailable"),
        Outcome::Wrong => Some("WRONG"),
        Outcome::Failed => Some("FAILED"),
        Outcome::Hung => Some("HUNG"),
        Outcome::Crashed => Some("CRASHED"),
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
    use crate::record::{Timing, Unit};
    use serde_json::json;

    #[test]
    fn rates_and_troubles_fit_100_columns() {
        let device =
            serde_json::from_value(json!({"kind": "cpu", "model": "a processor", "threads": 2}));
        let device: Device = device.unwrap();
        let long = "expected 0x1 as word 12345678 after 256 rounds, found 0x2, ".repeat(3);
        let ended = |name: &str, outcome| {
            ProbeRecord::new(name, "ceiling", "what", &device, outcome).verified(&long)
        };
        let timing = Timing::of(vec![1.0, 1.1, 1.2]);
        let measured = ended("launch-latency-graph", Outcome::Measured);
        let records = [
            measured.measured(Unit::GigabytesASecond, 4_321_000_000, timing),
            ended("atomic-v4f32-contended", Outcome::Wrong),
            ended("tensor-wgmma-f16", Outcome::Unavailable),
        ];
        let text = probe_results(&records, &device);
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
        for part in [
            "3928",
            "GB/s",
            "WRONG: expected",
            "unavailable: ",
            "a processor",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
