//! What calls from Python take.

use super::chart::{Chart, Kind, Mark, Row, Shape};
use super::implementations::grouped;
use super::number::{self, rate};
use super::page::{Block, Section, Table};
use crate::record::{PythonRecord, Run};

const LEAD: &str = "Microseconds of a call as a Python program sees it: medians. Bars of a group begin at zero and \
                    share a scale.";

/// The section; none without such records.
pub fn section(runs: &[Run]) -> Option<Section> {
    let records = runs.iter().flat_map(|run| &run.python);
    let kinds = grouped(records, |it| (it.benchmark.clone(), it.device.clone()));
    let tables = kinds.into_iter().map(|records| {
        // What was called the same way stands together.
        let calls = grouped(records.into_iter(), call);
        Block::Table(table(&calls.concat()))
    });
    Section::of("python", "Calls from Python", LEAD, tables.collect())
}

fn table(records: &[&PythonRecord]) -> Table {
    let has_files = records.iter().any(|it| it.file != records[0].file);
    let title = format!(
        "{} on {}",
        records[0].benchmark.replace('_', " "),
        records[0].device
    );
    Table::of(&title, records)
        .words("call", |it| call(it))
        .words("whose", |it| whose(it, has_files))
        .numbers("us", rate, |it| Some(it.median_us))
        .numbers("from", rate, |it| Some(it.low_us))
        .numbers("to", rate, |it| Some(it.high_us))
        .numbers("error", number::error, |it| it.verified)
        .table()
        .folded(format!("{title} in figures"))
        .drawn(Chart {
            title,
            caption: "Shorter is faster.".to_string(),
            kind: Kind::Bars,
            group: "call",
            labels: &["whose"],
            rows: records.iter().enumerate().map(bar).collect(),
            ..Chart::default()
        })
}

/// What was called.
fn call(record: &PythonRecord) -> String {
    let mut words = vec![record.what.clone()];
    words.extend(record.positions.map(|it| format!("{it} positions")));
    words.extend(record.channels.map(|it| format!("{it} channels")));
    words.extend(record.dtype.clone());
    words.extend((record.causal == Some(true)).then(|| "causal".to_string()));
    words.join(", ")
}

/// Whose implementation, and where there are several files in which one.
fn whose(record: &PythonRecord, has_files: bool) -> String {
    let levels = record.levels.as_ref();
    let levels = levels.map(|it| format!("levels as {it}"));
    let file = has_files.then(|| record.file.clone());
    let words = record.implementation.clone().into_iter();
    words
        .chain(levels)
        .chain(file)
        .collect::<Vec<_>>()
        .join(", ")
}

fn bar((of, record): (usize, &&PythonRecord)) -> Row {
    let mut implementation = record.implementation.iter();
    let shape = match implementation.all(|it| it.starts_with("fourtap")) {
        true => Shape::BarOurs,
        false => Shape::BarOther,
    };
    Row {
        of,
        marks: vec![Mark::new(shape, record.median_us)],
        text: format!("{} us", rate(record.median_us)),
    }
}
