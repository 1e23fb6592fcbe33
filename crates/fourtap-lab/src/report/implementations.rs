//! fourtap beside other implementations of the same operator, timed in turns on one machine.

use super::chart::{Chart, Kind, Mark, Row, Shape};
use super::number::{self, milliseconds, times};
use super::page::{Block, Cell, Section, Table};
use crate::cli::Direction;
use crate::record::{PeerVerdict, PeersRecord, Run};

const LEAD: &str = "Times of a call, the shortest first, of implementations that were timed in turns on one machine. \
                    Bars begin at zero. A hatched bar is of a result that missed the error tolerance or was wrong: its \
                    time is shown with its error, but it is no time of the same work.";

/// The section; none without such records.
pub fn section(runs: &[Run]) -> Option<Section> {
    let mut blocks = vec![];
    for run in runs {
        let problem = |it: &PeersRecord| {
            let machine = it.machine.clone();
            (
                machine,
                it.workload.clone(),
                it.distribution.clone(),
                it.dtype.clone(),
            )
        };
        for records in grouped(run.peers.iter(), problem) {
            blocks.push(Block::Table(table(&ranked(&records))));
        }
    }
    Section::of(
        "implementations",
        "Against other implementations",
        LEAD,
        blocks,
    )
}

/// Those of one key together, in the order their keys were met.
pub fn grouped<'a, R, K: PartialEq>(
    records: impl Iterator<Item = &'a R>,
    key: impl Fn(&R) -> K,
) -> Vec<Vec<&'a R>> {
    let mut groups: Vec<Vec<&R>> = vec![];
    for record in records {
        let same = |group: &&mut Vec<&R>| key(group[0]) == key(record);
        match groups.iter_mut().find(same) {
            Some(group) => group.push(record),
            None => groups.push(vec![record]),
        }
    }
    groups
}

/// An implementation on a problem; of repeated measurements, the median and the worst verdict.
struct Timed<'a> {
    record: &'a PeersRecord,
    milliseconds: Option<f64>,
    /// Over the time of fourtap's own fastest.
    ratio: Option<f64>,
}

/// Forward before backward, the fastest first, those without a time last.
fn ranked<'a>(records: &[&'a PeersRecord]) -> Vec<Timed<'a>> {
    let mut ranked = vec![];
    for direction in Direction::ALL {
        let of_pass = records.iter().copied();
        let of_pass = of_pass.filter(|it| it.direction == direction);
        let groups = grouped(of_pass, |it| it.implementation.clone());
        let timed = groups.into_iter().filter_map(|group| {
            let times = group.iter().filter_map(|it| it.milliseconds).collect();
            Some(Timed {
                // A result that is wrong now and then is wrong.
                record: group.into_iter().max_by_key(|it| gravity(it.verdict))?,
                milliseconds: number::median(times),
                ratio: None,
            })
        });
        let mut timed: Vec<Timed<'_>> = timed.collect();
        let time = |it: &Timed<'_>| it.milliseconds.unwrap_or(f64::INFINITY);
        timed.sort_by(|a, b| time(a).total_cmp(&time(b)));
        let ours = timed.iter().find(|it| it.record.is_ours());
        let ours = ours.and_then(|it| it.milliseconds);
        for it in &mut timed {
            it.ratio = it.milliseconds.zip(ours).map(|(time, ours)| time / ours);
        }
        ranked.extend(timed);
    }
    ranked
}

fn gravity(verdict: PeerVerdict) -> usize {
    match verdict {
        PeerVerdict::Ok => 0,
        PeerVerdict::Unsupported => 1,
        PeerVerdict::Inaccurate => 2,
        PeerVerdict::Wrong => 3,
    }
}

fn word(verdict: PeerVerdict) -> &'static str {
    ["ok", "unsupported", "inaccurate", "wrong"][gravity(verdict)]
}

fn table(ranked: &[Timed<'_>]) -> Table {
    let first = ranked[0].record;
    let mut problem = vec![first.workload.clone()];
    if !first.distribution.is_empty() {
        problem.push(format!("{} points", first.distribution));
    }
    problem.push(first.dtype.clone());
    let title = format!("{} on {}", problem.join(", "), first.machine);
    let turns = |it: &Timed<'_>| it.record.turns_ms.clone().into_iter();
    Table::of(format!("Every timing of {title}"), ranked)
        .words("implementation", |it| {
            let name = name(&it.record.implementation);
            Cell::from(name).strong_if(it.record.is_ours())
        })
        .words("pass", |it| it.record.direction.title())
        .numbers("ms", milliseconds, |it| it.milliseconds)
        .numbers("× fourtap's time", times, |it| it.ratio)
        .numbers("from", milliseconds, |it| turns(it).reduce(f64::min))
        .numbers("to", milliseconds, |it| turns(it).reduce(f64::max))
        .numbers("us in a graph", number::rate, |it| it.record.graph_microseconds)
        .numbers("error", number::error, |it| it.record.error)
        .numbers("tolerance", number::error, |it| it.record.tolerance)
        .words("verdict", |it| word(it.record.verdict))
        .words("date", |it| it.record.date.as_str())
        .sentences("note", |it| it.record.note.as_str())
        .table()
        .folded(format!("{title} in figures"))
        .drawn(Chart {
            title,
            caption: "Milliseconds per call, and in brackets how many times as long as fourtap. Shorter is faster."
                .to_string(),
            kind: Kind::Bars,
            group: "pass",
            labels: &["implementation"],
            rows: ranked.iter().enumerate().map(bar).collect(),
            ..Chart::default()
        })
}

/// An implementation as people call it.
fn name(implementation: &str) -> &str {
    match implementation {
        "fourtap-16" => "fourtap, 16-bit locations",
        "deformable-detr" => "Deformable DETR",
        "huggingface-kernels" => "Hugging Face kernel",
        "dcnv4" => "DCNv4",
        "dcnv4-fork" => "DCNv4, maintained fork",
        "pytorch" => "PyTorch, grid_sample",
        "pytorch-compiled" => "PyTorch, torch.compile",
        other => other,
    }
}

/// Two digits of a relative error.
fn percent(error: f64) -> String {
    match 100.0 * error {
        percent @ 10.0.. => format!("{percent:.0} %"),
        percent @ 1.0.. => format!("{percent:.1} %"),
        percent => format!("{percent:.2} %"),
    }
}

fn bar((of, timed): (usize, &Timed<'_>)) -> Row {
    let Timed { record, .. } = timed;
    let time = timed
        .milliseconds
        .map(|time| format!("{} ms", milliseconds(time)));
    let time = time.map(|time| match timed.ratio {
        Some(ratio) if !record.is_ours() => format!("{time} ({}×)", times(ratio)),
        _ => time,
    });
    let doubt = match (record.verdict, record.error) {
        (PeerVerdict::Ok, _) => None,
        (PeerVerdict::Inaccurate, Some(error)) => Some(format!("error {}", percent(error))),
        (PeerVerdict::Wrong, Some(error)) => Some(format!("wrong: error {}", percent(error))),
        (verdict, _) => Some(word(verdict).to_string()),
    };
    let shape = match record.verdict {
        PeerVerdict::Inaccurate | PeerVerdict::Wrong => Shape::BarHatched,
        _ if record.is_ours() => Shape::BarOurs,
        _ => Shape::BarOther,
    };
    let bar = timed.milliseconds.map(|time| Mark::new(shape, time));
    Row {
        of,
        marks: bar.into_iter().collect(),
        text: time.into_iter().chain(doubt).collect::<Vec<_>>().join(", "),
    }
}
