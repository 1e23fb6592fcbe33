//! Rungs of the ladder: a table a case, the fastest first.

use comfy_table::{ContentArrangement, Table};

use super::{align_right, milliseconds, or_dash, with_header};
use crate::record::RungOperator;
use crate::record::{Outcome, RungRecord, billions_a_second};
use crate::target::Device;

const WIDTH: u16 = 100;

/// Differences smaller than this are called none.
const SAME: f64 = 0.015;

const CAPTION: &str = "\
Every time is of a verified result. x a01: speed against one thread per channel. gather: bandwidth
the samples read, as a share of L1's peak; DRAM: what must move, as a share of DRAM's. regs:
registers per thread; shared: shared memory per block. bottleneck: by hardware counters.
~: an approximation, with its stated error. kept: time without what depends on value alone.";

const DENSE_CAPTION: &str = "\
Every time is of a verified result. x d01: speed against one query per block. TFLOP/s: 4 FLOP per
channel and pair of query and key; tensor: as a share of the peak of tensor cores by mma.sync. regs:
registers per thread; shared: shared memory per block. bottleneck: by hardware counters. d09 is
PyTorch.";

/// One table per case.
pub fn rungs(records: &[RungRecord], device: &Device) -> String {
    let mut text = String::new();
    for (case, ranked) in cases(records) {
        let operator = ranked[0].operator();
        let times_heading = format!("x {}", operator.plainest());
        let shares = match operator {
            RungOperator::Msda => ["gather", "DRAM"],
            RungOperator::Dense => ["TFLOP/s", "tensor"],
        };
        let mut table = wrapped(&[
            "",
            "rung",
            "ms",
            &times_heading,
            shares[0],
            shares[1],
            "regs",
            "shared",
            "bottleneck",
            "verdict",
        ]);
        for (place, record) in ranked.iter().enumerate() {
            let share =
                |share: Option<f64>| or_dash(share.map(|one| format!("{:.0} %", 100.0 * one)));
            let resources = record.resources();
            let approximate = if record.approximate.is_some() {
                "~"
            } else {
                ""
            };
            let shares = match operator {
                RungOperator::Msda => [share(record.of_gather), share(record.of_dram)],
                RungOperator::Dense => [or_dash(teraflops(record)), share(record.of_tensor)],
            };
            let against = times(record, &ranked, operator.plainest());
            let [first_share, second_share] = shares;
            table.add_row([
                record
                    .hot
                    .as_ref()
                    .map_or(String::new(), |_| (place + 1).to_string()),
                format!("{}{approximate}", record.rung),
                or_dash(record.median_ms().map(milliseconds)),
                or_dash(against.map(|times| format!("{times:.1}"))),
                first_share,
                second_share,
                or_dash(resources.map(|(registers, _)| registers.to_string())),
                or_dash(resources.map(|(_, shared)| format!("{} K", shared.div_ceil(1024)))),
                or_dash(
                    record
                        .binding
                        .as_ref()
                        .map(|one| format!("{} {:.0} %", one.limit, 100.0 * one.busy)),
                ),
                verdict(record, &ranked),
            ]);
        }
        align_right(&mut table, 2..8);
        text += &format!("{case}\n{table}\n\n");
    }
    text += &format!("On {}.\n", device.in_words());
    for (operator, caption) in [
        (RungOperator::Msda, CAPTION),
        (RungOperator::Dense, DENSE_CAPTION),
    ] {
        if records.iter().any(|record| record.operator() == operator) {
            text += &format!("{caption}\n");
        }
    }
    text
}

/// 10^12 operations per second.
fn teraflops(record: &RungRecord) -> Option<String> {
    let speed = billions_a_second(record.traffic.flop, record.median_ms()?) / 1e3;
    Some(match speed {
        speed if speed < 10.0 => format!("{speed:.1}"),
        speed => format!("{speed:.0}"),
    })
}

/// The cases in the order measured, each with its records, the fastest first.
pub fn cases<'a>(
    records: impl IntoIterator<Item = &'a RungRecord>,
) -> Vec<(String, Vec<&'a RungRecord>)> {
    let mut cases: Vec<(String, Vec<&RungRecord>)> = Vec::new();
    for record in records {
        let name = format!("{}, {}", record.workload, record.distribution);
        match cases.iter_mut().find(|(known, _)| *known == name) {
            Some((_, of_case)) => of_case.push(record),
            None => cases.push((name, vec![record])),
        }
    }
    for (_, of_case) in &mut cases {
        let time = |record: &RungRecord| record.median_ms().unwrap_or(f64::INFINITY);
        of_case.sort_by(|a, b| time(a).total_cmp(&time(b)));
    }
    cases
}

/// How many times as fast as another rung of its case.
pub fn times(record: &RungRecord, of_case: &[&RungRecord], other: &str) -> Option<f64> {
    let other = of_case.iter().find(|one| one.rung == other)?;
    Some(other.median_ms()? / record.median_ms()?)
}

/// What to think of it, in a line.
pub fn verdict(record: &RungRecord, of_case: &[&RungRecord]) -> String {
    match record.outcome {
        Outcome::Measured => {}
        Outcome::Refused => return format!("refused: {}", record.words),
        Outcome::Unavailable => return format!("unavailable: {}", record.words),
        Outcome::Wrong => return format!("WRONG: {}", record.words),
        Outcome::Hung => return "HUNG".to_string(),
        Outcome::Crashed => return format!("CRASHED: {}", record.words),
        Outcome::Failed | Outcome::Works => return format!("FAILED: {}", record.words),
    }
    let mut words = standing(record, of_case);
    if let Some(prepared) = &record.prepared {
        words += &format!("; kept {}", milliseconds(prepared.median_ms));
    }
    if let (Some(_), Some(verification)) = (record.approximate, &record.verification) {
        words += &format!("; error {:.1e}", verification.relative_error());
    }
    words
}

/// How a rung that has a time does against the one it changes.
pub fn standing(record: &RungRecord, of_case: &[&RungRecord]) -> String {
    match &record.against {
        Some(against) => {
            let percent = |ratio: f64| 100.0 * (1.0 / ratio - 1.0);
            let (low, high) = (percent(against.high), percent(against.low));
            format!(
                "{:+.1} % speed on {} ({low:+.1} to {high:+.1})",
                percent(against.ratio),
                against.rung
            )
        }
        None => {
            let operator = record.operator();
            let base = match (&record.builds_on, operator) {
                (Some(base), _) => base,
                (None, RungOperator::Msda) if record.rung == operator.shipped() => "a03",
                (None, RungOperator::Dense) if record.rung != operator.plainest() => "d06",
                (None, _) => "",
            };
            match times(record, of_case, base) {
                Some(times) => compared(times, base),
                None => String::new(),
            }
        }
    }
}

fn compared(times: f64, base: &str) -> String {
    match times {
        times if times >= 2.0 => format!("{times:.1} times as fast as {base}"),
        times if times > 1.0 + SAME => format!("{:.0} % faster than {base}", 100.0 * (times - 1.0)),
        times if times >= 1.0 - SAME => format!("as fast as {base}"),
        times if times > 0.5 => format!("{:.0} % slower than {base}", 100.0 * (1.0 / times - 1.0)),
        times => format!("{:.1} times slower than {base}", 1.0 / times),
    }
}

fn wrapped(header: &[&str]) -> Table {
    let mut table = with_header(header);
    table
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH);
    table
}
