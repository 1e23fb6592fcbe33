//! How fast, against the baseline and against others.

use super::peers::peers;
use crate::cli::Direction;
use crate::operators::msda::Msda;
use crate::record::{BenchRecord, Timing};
use crate::report::chart::{Chart, DotChart, DotRow, Layout, Mark, Shape};
use crate::report::number::{self, milliseconds, or_dash, percent, times};
use crate::report::{
    Block, Cell, Part, Section, Table, data_label, hot_in_words, strips, times_best_peer,
};

/// The section; none without benchmarks.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts {
        let benches = part.of(&Msda);
        if benches.is_empty() {
            continue;
        }
        blocks.extend(part.title.as_ref().map(Block::heading));
        for direction in Direction::ALL {
            let of_pass = benches.iter().copied();
            let records: Vec<_> = of_pass.filter(|it| it.direction == direction).collect();
            if !records.is_empty() {
                add_pass(&mut blocks, part, direction, &records);
            }
        }
        let slug = format!("{}samples", part.prefix);
        blocks.extend(strips(&benches, &slug).map(|chart| Block::Chart { chart }));
    }
    (!blocks.is_empty()).then_some(Section {
        id: "speed",
        title: "Speed",
        blocks,
    })
}

fn add_pass(
    blocks: &mut Vec<Block>,
    part: &Part<'_>,
    direction: Direction,
    records: &[&BenchRecord],
) {
    let pass = match direction {
        Direction::Forward => "Forward",
        Direction::Backward => "Backward",
    };
    let timed: Vec<_> = records
        .iter()
        .copied()
        .filter_map(|record| Some((record, record.hot.as_ref()?)))
        .collect();
    let has_baseline = timed.iter().any(|(it, _)| it.times_baseline().is_some());
    let peer = timed.iter().find_map(|(it, _)| peers(it).first().copied());
    if timed.is_empty() {
        blocks.push(Block::heading(pass));
    } else {
        let chart = match has_baseline {
            true => against_baseline(&timed),
            false => in_milliseconds(&timed),
        };
        let title = match has_baseline {
            true => format!("{pass}: speedup over the baseline"),
            false => format!("{pass}: time"),
        };
        let mut caption = match has_baseline {
            true => "Hot medians on a logarithmic axis; to the right is faster. The baseline is one thread per \
                     channel, timed in the same run."
                .to_string(),
            false => "Hot medians on a logarithmic axis, with their 95 % confidence intervals; to the left is faster."
                .to_string(),
        };
        let without = timed.iter().filter(|(it, _)| it.times_baseline().is_none());
        match without.count() {
            0 => {}
            count if has_baseline => {
                caption += &format!(" Only in the table: {count} without a baseline.");
            }
            _ => {}
        }
        if let Some(peer) = peer {
            caption += &format!(
                " Peers: measured separately, not in this run, {}.",
                peer.measured
            );
        }
        let slug = format!("{}speed-{}", part.prefix, direction.name());
        let draw = |layout: Layout| chart.draw(layout);
        blocks.push(Block::Chart {
            chart: Chart::new(&slug, &title, &caption, draw),
        });
    }
    blocks.push(Block::Table {
        table: table(pass, records),
    });
}

/// Benchmarks with those of one workload together, in the order their workloads were met.
fn by_workload<'a>(timed: &[(&'a BenchRecord, &'a Timing)]) -> Vec<(&'a BenchRecord, &'a Timing)> {
    let mut workloads: Vec<&str> = vec![];
    for (record, _) in timed {
        if !workloads.contains(&record.workload.as_str()) {
            workloads.push(&record.workload);
        }
    }
    let mut sorted = timed.to_vec();
    let place = |record: &BenchRecord| workloads.iter().position(|it| **it == record.workload);
    sorted.sort_by_key(|(record, _)| place(record));
    sorted
}

fn against_baseline(timed: &[(&BenchRecord, &Timing)]) -> DotChart {
    let mut rows = vec![];
    let mut has_peers = false;
    let mut seconds: Vec<&str> = vec![];
    for (record, hot) in by_workload(timed) {
        let baseline = record.beside("baseline").and_then(|it| it.hot.as_ref());
        let Some(baseline) = baseline.map(|baseline| baseline.median_ms) else {
            continue;
        };
        let mut words = vec![
            record.name(),
            hot_in_words(hot),
            format!("baseline: {} ms", milliseconds(baseline)),
            format!(
                "against the baseline: {} ×",
                times(baseline / hot.median_ms)
            ),
        ];
        let mut marks = vec![];
        let found = peers(record);
        has_peers |= !found.is_empty();
        for (place, peer) in found.iter().enumerate().rev() {
            let said = format!("{}: {} ms", peer.name, milliseconds(peer.ms));
            marks.push(Mark {
                shape: if place == 0 {
                    Shape::BestPeer
                } else {
                    Shape::Peer
                },
                at: baseline / peer.ms,
                interval: None,
                words: said,
            });
        }
        for peer in &found {
            let against = times(peer.ms / hot.median_ms);
            words.push(format!(
                "{}: {} ms, {against} × as long",
                peer.name,
                milliseconds(peer.ms)
            ));
        }
        for beside in record.beside.iter().filter(|it| it.role != "baseline") {
            let Some(other) = &beside.hot else { continue };
            if !seconds.contains(&beside.role.as_str()) {
                seconds.push(&beside.role);
            }
            let said = format!("{}: {} ms", beside.role, milliseconds(other.median_ms));
            words.push(said.clone());
            marks.push(Mark {
                shape: Shape::Second,
                at: baseline / other.median_ms,
                interval: None,
                words: said,
            });
        }
        marks.push(Mark {
            shape: Shape::Ours,
            at: baseline / hot.median_ms,
            interval: None,
            words: hot_in_words(hot),
        });
        rows.push(DotRow {
            group: record.workload.clone(),
            label: data_label(record),
            detail: String::new(),
            values: [
                format!("{} ms", milliseconds(hot.median_ms)),
                format!("{} ×", times(baseline / hot.median_ms)),
            ],
            marks,
            words: words.join("\n"),
        });
    }
    let mut legend = vec![(Shape::Ours, "fourtap, hot".to_string())];
    match seconds.as_slice() {
        [] => {}
        [role] => legend.push((Shape::Second, format!("fourtap, {role}"))),
        _ => legend.push((Shape::Second, "fourtap, other variants".to_string())),
    }
    if has_peers {
        legend.push((
            Shape::BestPeer,
            "fastest peer, measured separately".to_string(),
        ));
        legend.push((Shape::Peer, "other peers, measured separately".to_string()));
    }
    DotChart {
        axis: "speedup over the baseline".to_string(),
        reference: Some((1.0, "the baseline".to_string())),
        heads: ["hot".to_string(), "× baseline".to_string()],
        rows,
        legend,
    }
}

fn in_milliseconds(timed: &[(&BenchRecord, &Timing)]) -> DotChart {
    let row = |(record, hot): (&BenchRecord, &Timing)| DotRow {
        group: record.workload.clone(),
        label: data_label(record),
        detail: String::new(),
        values: [
            format!("{} ms", milliseconds(hot.median_ms)),
            format!("± {}", percent(hot.uncertainty())),
        ],
        marks: vec![Mark {
            shape: Shape::Ours,
            at: hot.median_ms,
            interval: Some((hot.ci_low_ms, hot.ci_high_ms)),
            words: hot_in_words(hot),
        }],
        words: format!("{}\n{}", record.name(), hot_in_words(hot)),
    };
    DotChart {
        axis: "milliseconds".to_string(),
        reference: None,
        heads: ["hot".to_string(), "±".to_string()],
        rows: by_workload(timed).into_iter().map(row).collect(),
        legend: vec![(Shape::Ours, "fourtap, hot".to_string())],
    }
}

fn table(pass: &str, records: &[&BenchRecord]) -> Table {
    let mut table = Table::new(
        &format!("{pass}, every result"),
        &[
            "workload",
            "points, types",
            "#hot ms",
            "#±",
            "#cold ms",
            "#GB/s",
            "#of roof",
            "roof",
            "#× baseline",
            "#error",
            "#× peer",
            "fastest peer",
        ],
    );
    table.searchable = true;
    for record in records {
        let hot = record.hot.as_ref();
        let median = record.median_ms();
        let cold = record.cold.as_ref().map(|cold| cold.median_ms);
        let roof = record.roof.as_ref();
        let share = roof.zip(median).map(|(roof, median)| roof.hot_ms / median);
        let peer = peers(record).first().copied();
        let against = times_best_peer(record);
        let limit = roof.map_or(String::new(), |roof| {
            let doubt = if roof.suspicious { ", suspicious" } else { "" };
            format!("{}{doubt}", roof.hot_limit)
        });
        let time = match record.verification.passed {
            true => Cell::number(or_dash(median, milliseconds), median).strong(),
            false => Cell::words("wrong")
                .with_detail("failed verification")
                .strong(),
        };
        let error = Some(record.verification.relative_error()).filter(|_| hot.is_some());
        table.rows.push(vec![
            Cell::words(&record.workload),
            Cell::words(data_label(record)),
            time,
            Cell::number(
                or_dash(hot, |hot| percent(hot.uncertainty())),
                hot.map(Timing::uncertainty),
            ),
            Cell::number(or_dash(cold, milliseconds), cold),
            Cell::number(
                or_dash(record.gathered_gb_s(), number::rate),
                record.gathered_gb_s(),
            ),
            Cell::number(or_dash(share, percent), share),
            Cell::words(limit),
            Cell::number(
                or_dash(record.times_baseline(), times),
                record.times_baseline(),
            ),
            Cell::number(or_dash(error, number::error), error),
            Cell::number(or_dash(against, times), against),
            Cell::words(peer.map_or("", |peer| peer.name)),
        ]);
    }
    table.without_empty_columns()
}
