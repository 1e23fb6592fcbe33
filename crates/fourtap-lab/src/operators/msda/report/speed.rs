//! How fast, against the baseline and against others.

use super::peers::peers;
use crate::cli::Direction;
use crate::operators::msda::Msda;
use crate::record::BenchRecord;
use crate::report::chart::{Chart, Mark, Row, Shape};
use crate::report::number::{self, milliseconds, times};
use crate::report::{
    Block, Part, Section, Table, data_label, hot_mark, strips, times_best_peer, with_standing,
    with_times,
};

const LEGEND: [(Shape, &str); 4] = [
    (Shape::Ours, "fourtap, hot"),
    (Shape::Second, "fourtap, other variants"),
    (Shape::BestPeer, "fastest peer, measured separately"),
    (Shape::Peer, "other peers, measured separately"),
];

/// The section; none without benchmarks.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts {
        let benches = part.of(&Msda);
        if benches.is_empty() {
            continue;
        }
        blocks.extend(part.title.clone().map(Block::Heading));
        for direction in Direction::ALL {
            let of_pass = benches.iter().copied();
            let records: Vec<_> = of_pass.filter(|it| it.direction == direction).collect();
            if !records.is_empty() {
                blocks.push(Block::Table(of_pass_table(direction, &records)));
            }
        }
    }
    Section::of("speed", "Speed", "", blocks)
}

fn of_pass_table(direction: Direction, records: &[&BenchRecord]) -> Table {
    let pass = direction.title();
    let records = &by_workload(records);
    let table = Table::of(format!("{pass}, every result"), records)
        .words("workload", |it| it.workload.as_str())
        .words("points, types", |it| data_label(it));
    with_standing(with_times(table).numbers("GB/s", number::rate, |it| it.gathered_gb_s()))
        .numbers("× peer", times, |it| times_best_peer(it))
        .words("beside it, ms", |it| beside(it))
        .words("kernels", |it| it.kernel.words.as_str())
        .table()
        .searched_as("local f16")
        .drawn(chart(pass, records))
        .drawn(strips(records, &["workload", "points, types"]))
}

/// Those of one workload together, in the order their workloads were met.
fn by_workload<'a>(records: &[&'a BenchRecord]) -> Vec<&'a BenchRecord> {
    let mut sorted = records.to_vec();
    let first = |record: &BenchRecord| {
        let mut all = records.iter();
        all.position(|it| it.workload == record.workload)
    };
    sorted.sort_by_key(|record| first(record));
    sorted
}

/// Other kernels and other projects that computed the same.
fn beside(record: &BenchRecord) -> String {
    let variants = record.beside.iter().map(|beside| {
        let time = beside.hot.as_ref().map(|hot| milliseconds(hot.median_ms));
        let time = time.unwrap_or("wrong".to_string());
        format!("{} {time}", beside.role)
    });
    let peers = peers(record).into_iter();
    let peers = peers.map(|peer| format!("{} {}", peer.name, milliseconds(peer.ms)));
    variants.chain(peers).collect::<Vec<_>>().join(", ")
}

fn chart(pass: &str, records: &[&BenchRecord]) -> Option<Chart> {
    let timed = || records.iter().filter(|it| it.hot.is_some());
    timed().next()?;
    let has_baseline = timed().any(|it| it.times_baseline().is_some());
    let rows = records.iter().enumerate().filter_map(|(of, record)| {
        let marks = match has_baseline {
            true => against_baseline(record)?,
            false => vec![hot_mark(Shape::Ours, record.hot.as_ref()?)],
        };
        Some(Row::of(of, marks))
    });
    let rows: Vec<Row> = rows.collect();
    let (title, axis, compared) = match has_baseline {
        true => (
            "speedup over the baseline",
            "speedup over the baseline",
            ("× baseline", " ×"),
        ),
        false => ("time", "milliseconds", ("±", "")),
    };
    let mut caption = match has_baseline {
        true => "Hot medians on a logarithmic axis; to the right is faster. The baseline is one thread per channel, \
                 timed in the same run."
            .to_string(),
        false => "Hot medians on a logarithmic axis, with their 95 % confidence intervals; to the left is faster."
            .to_string(),
    };
    match timed().count() - rows.len() {
        0 => {}
        count => caption += &format!(" Only in the table: {count} without a baseline."),
    }
    if let Some(peer) = timed().find_map(|it| peers(it).first().copied()) {
        caption += " Peers: measured separately, not in this run, ";
        caption += &format!("{}.", peer.measured);
    }
    let chart = Chart {
        title: format!("{pass}: {title}"),
        caption,
        axis: axis.to_string(),
        reference: has_baseline.then(|| (1.0, "the baseline".to_string())),
        group: "workload",
        labels: &["points, types"],
        values: vec![
            ("hot ms".to_string(), " ms"),
            (compared.0.to_string(), compared.1),
        ],
        rows,
        ..Chart::default()
    };
    Some(chart.with_legend(&LEGEND))
}

/// How many times as fast as the baseline everybody is; this project lies on top, the slowest peer at the bottom.
fn against_baseline(record: &BenchRecord) -> Option<Vec<Mark>> {
    let baseline = record.beside("baseline")?.hot.as_ref()?.median_ms;
    let hot = record.hot.as_ref()?;
    let at = |shape: Shape, time: f64| Mark::new(shape, baseline / time);
    let mut marks = vec![at(Shape::Ours, hot.median_ms)];
    let others = record.beside.iter().filter(|it| it.role != "baseline");
    let others = others.filter_map(|it| it.hot.as_ref());
    marks.extend(others.map(|it| at(Shape::Second, it.median_ms)));
    let peers = peers(record).into_iter().enumerate();
    marks.extend(peers.map(|(place, peer)| match place {
        0 => at(Shape::BestPeer, peer.ms),
        _ => at(Shape::Peer, peer.ms),
    }));
    marks.reverse();
    Some(marks)
}
