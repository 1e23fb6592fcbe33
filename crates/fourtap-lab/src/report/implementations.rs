//! fourtap beside other implementations of the same operator, timed in turns on one machine.

use super::chart::{Bar, BarChart, BarGroup, BarLook, Chart};
use super::number::{self, milliseconds, or_dash, times};
use super::page::{Block, Cell, Section, Table};
use crate::cli::Direction;
use crate::record::{PeerVerdict, PeersRecord, Run};

/// The section; none without such records.
pub fn section(runs: &[Run]) -> Option<Section> {
    let cases = cases(runs);
    if cases.is_empty() {
        return None;
    }
    let lead = "Times of a call, the shortest first, of implementations that were timed in turns on one machine. Bars \
                begin at zero. A hatched bar is of a result that missed the error tolerance or was wrong: its time is \
                shown with its error, but it is no time of the same work.";
    let mut blocks = vec![Block::words(lead)];
    for case in &cases {
        blocks.push(Block::Chart {
            chart: case.chart(),
        });
        blocks.push(Block::Folded {
            summary: format!("{} in figures", case.title()),
            open: false,
            blocks: vec![Block::Table {
                table: case.table(),
            }],
        });
    }
    Some(Section {
        id: "implementations",
        title: "Against other implementations",
        blocks,
    })
}

/// One problem on one machine.
struct Case<'a> {
    slug: String,
    /// The fastest first, those without a time last.
    records: Vec<Timed<'a>>,
}

/// An implementation on that problem; of repeated measurements, the median.
struct Timed<'a> {
    record: &'a PeersRecord,
    milliseconds: Option<f64>,
    measurements: usize,
}

fn cases(runs: &[Run]) -> Vec<Case<'_>> {
    let all = || runs.iter().enumerate();
    let peers = all().flat_map(|(index, run)| run.peers.iter().map(move |it| (index, it)));
    let mut groups: Vec<Vec<(usize, &PeersRecord)>> = vec![];
    for (index, record) in peers {
        let key = |(index, it): (usize, &PeersRecord)| {
            let problem = (
                it.workload.clone(),
                it.distribution.clone(),
                it.dtype.clone(),
            );
            (index, it.machine.clone(), problem)
        };
        let found = groups
            .iter_mut()
            .find(|group| key(group[0]) == key((index, record)));
        match found {
            Some(group) => group.push((index, record)),
            None => groups.push(vec![(index, record)]),
        }
    }
    let mut places: Vec<(usize, &str)> = vec![];
    for &(index, record) in groups.iter().map(|group| &group[0]) {
        if !places.contains(&(index, record.machine.as_str())) {
            places.push((index, &record.machine));
        }
    }
    let named = |index: usize, first: &PeersRecord| {
        let mut words = vec!["peers", &first.workload, &first.distribution, &first.dtype];
        let place = places
            .iter()
            .position(|it| *it == (index, first.machine.as_str()));
        let place = place.map_or(String::new(), |place| (place + 1).to_string());
        if places.len() > 1 {
            words.insert(0, &place);
        }
        slug(&words.join("-"))
    };
    groups
        .into_iter()
        .map(|group| Case {
            slug: named(group[0].0, group[0].1),
            records: ranked(group.into_iter().map(|(_, record)| record)),
        })
        .collect()
}

/// Words as part of a file's name.
fn slug(words: &str) -> String {
    let lower = words.to_lowercase();
    let plain = |character: char| match character.is_ascii_alphanumeric() {
        true => character,
        false => '-',
    };
    let plain: String = lower.chars().map(plain).collect();
    let parts: Vec<&str> = plain.split('-').filter(|part| !part.is_empty()).collect();
    parts.join("-")
}

fn ranked<'a>(records: impl Iterator<Item = &'a PeersRecord>) -> Vec<Timed<'a>> {
    let mut groups: Vec<Vec<&PeersRecord>> = vec![];
    for record in records {
        let same = |it: &PeersRecord| {
            it.implementation == record.implementation && it.direction == record.direction
        };
        match groups.iter_mut().find(|group| same(group[0])) {
            Some(group) => group.push(record),
            None => groups.push(vec![record]),
        }
    }
    // The worst verdict of repeated measurements stands: a result that is wrong now and then is wrong.
    let worst = |group: &[&'a PeersRecord]| {
        let rank = |it: &&&PeersRecord| match it.verdict {
            PeerVerdict::Ok => 0,
            PeerVerdict::Unsupported => 1,
            PeerVerdict::Inaccurate => 2,
            PeerVerdict::Wrong => 3,
        };
        group.iter().max_by_key(rank).copied()
    };
    let timed = |group: Vec<&'a PeersRecord>| {
        let times = group.iter().filter_map(|it| it.milliseconds);
        Some(Timed {
            record: worst(&group)?,
            milliseconds: number::median(times.collect()),
            measurements: group.len(),
        })
    };
    let mut ranked: Vec<Timed<'_>> = groups.into_iter().filter_map(timed).collect();
    let time = |it: &Timed<'_>| it.milliseconds.unwrap_or(f64::INFINITY);
    ranked.sort_by(|a, b| time(a).total_cmp(&time(b)));
    ranked
}

impl Case<'_> {
    fn title(&self) -> String {
        let first = self.records[0].record;
        let mut words = vec![first.workload.clone()];
        if !first.distribution.is_empty() {
            words.push(format!("{} points", first.distribution));
        }
        words.push(first.dtype.clone());
        format!("{} on {}", words.join(", "), first.machine)
    }

    fn of(&self, direction: Direction) -> Vec<&Timed<'_>> {
        let records = self.records.iter();
        records
            .filter(|it| it.record.direction == direction)
            .collect()
    }

    /// The fastest of fourtap's own in this direction.
    fn ours(&self, direction: Direction) -> Option<f64> {
        let ours = self
            .of(direction)
            .into_iter()
            .filter(|it| it.record.is_ours());
        ours.filter_map(|it| it.milliseconds).reduce(f64::min)
    }

    fn chart(&self) -> Chart {
        let groups = Direction::ALL.into_iter().filter_map(|direction| {
            let ours = self.ours(direction);
            let bars: Vec<Bar> = self
                .of(direction)
                .into_iter()
                .map(|it| bar(it, ours))
                .collect();
            let title = match direction {
                Direction::Forward => "Forward",
                Direction::Backward => "Backward",
            };
            let title = title.to_string();
            (!bars.is_empty()).then_some(BarGroup { title, bars })
        });
        let chart = BarChart {
            groups: groups.collect(),
        };
        let caption = "Milliseconds per call, and in brackets how many times as long as fourtap. Shorter is faster.";
        Chart::new(&self.slug, &self.title(), caption, |layout| {
            chart.draw(layout)
        })
    }

    fn table(&self) -> Table {
        let heads = [
            "implementation",
            "pass",
            "#ms",
            "#× fourtap's time",
            "#from",
            "#to",
            "#us in a graph",
            "#error",
            "#tolerance",
            "verdict",
            "~note",
        ];
        let mut table = Table::new(&format!("Every timing of {}", self.title()), &heads);
        for direction in Direction::ALL {
            let ours = self.ours(direction);
            for timed in self.of(direction) {
                let Timed { record, .. } = timed;
                let number = |number: Option<f64>, format: fn(f64) -> String| {
                    Cell::number(or_dash(number, format), number)
                };
                let turns = || record.turns_ms.iter().copied();
                let label = Cell::words(name(&record.implementation));
                table.rows.push(vec![
                    match record.is_ours() {
                        true => label.strong(),
                        false => label,
                    },
                    Cell::words(direction.name()),
                    number(timed.milliseconds, milliseconds),
                    number(timed.against(ours), times),
                    number(turns().reduce(f64::min), milliseconds),
                    number(turns().reduce(f64::max), milliseconds),
                    number(record.graph_microseconds, number::rate),
                    number(record.error, number::error),
                    number(record.tolerance, number::error),
                    Cell::words(word(record.verdict)),
                    Cell::words(&record.note),
                ]);
            }
        }
        table.without_empty_columns()
    }
}

impl Timed<'_> {
    fn against(&self, ours: Option<f64>) -> Option<f64> {
        Some(self.milliseconds? / ours?)
    }
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
    let percent = 100.0 * error;
    match percent {
        10.0.. => format!("{percent:.0} %"),
        1.0.. => format!("{percent:.1} %"),
        _ => format!("{percent:.2} %"),
    }
}

fn word(verdict: PeerVerdict) -> &'static str {
    match verdict {
        PeerVerdict::Ok => "ok",
        PeerVerdict::Inaccurate => "inaccurate",
        PeerVerdict::Wrong => "wrong",
        PeerVerdict::Unsupported => "unsupported",
    }
}

fn bar(timed: &Timed<'_>, ours: Option<f64>) -> Bar {
    let Timed { record, .. } = timed;
    let against = timed.against(ours).filter(|_| !record.is_ours());
    let time = timed
        .milliseconds
        .map(|time| format!("{} ms", milliseconds(time)));
    let value = match (time, against) {
        (Some(time), Some(against)) => format!("{time} ({}×)", times(against)),
        (time, _) => time.unwrap_or_default(),
    };
    let doubt = match (record.verdict, record.error) {
        (PeerVerdict::Ok, _) => String::new(),
        (PeerVerdict::Unsupported, _) => "unsupported".to_string(),
        (PeerVerdict::Inaccurate, Some(error)) => format!("error {}", percent(error)),
        (verdict, Some(error)) => format!("{}: error {}", word(verdict), percent(error)),
        (verdict, None) => word(verdict).to_string(),
    };
    Bar {
        label: name(&record.implementation).to_string(),
        length: timed.milliseconds,
        value,
        doubt,
        look: match record.verdict {
            PeerVerdict::Inaccurate | PeerVerdict::Wrong => BarLook::Hatched,
            _ if record.is_ours() => BarLook::Ours,
            _ => BarLook::Other,
        },
        words: card(timed, against).join("\n"),
    }
}

/// What to know of a timing, a line a fact.
fn card(timed: &Timed<'_>, against: Option<f64>) -> Vec<String> {
    let Timed { record, .. } = timed;
    let mut words = vec![format!(
        "{}, {}: {}",
        name(&record.implementation),
        record.direction.name(),
        word(record.verdict)
    )];
    let time = timed.milliseconds;
    words.extend(time.map(|time| match timed.measurements {
        1 => format!("{} ms", milliseconds(time)),
        count => format!(
            "{} ms, the median of {count} measurements",
            milliseconds(time)
        ),
    }));
    words.extend(against.map(|ratio| format!("{} × the time of fourtap", times(ratio))));
    let turns = || record.turns_ms.iter().copied();
    if let Some((low, high)) = turns().reduce(f64::min).zip(turns().reduce(f64::max)) {
        words.push(format!(
            "turns: {} to {} ms",
            milliseconds(low),
            milliseconds(high)
        ));
    }
    let graph = record.graph_microseconds;
    words.extend(graph.map(|time| format!("in a CUDA graph: {} us", number::rate(time))));
    if let Some(error) = record.error {
        let tolerance = record.tolerance;
        let tolerance = tolerance.map(|it| format!(", tolerance {}", number::error(it)));
        let tolerance = tolerance.unwrap_or_default();
        words.push(format!("error: {}{tolerance}", number::error(error)));
    }
    words.push(record.note.clone());
    words.push(record.date.clone());
    words.retain(|line| !line.is_empty());
    words
}
