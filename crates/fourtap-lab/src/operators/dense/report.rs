//! How fast dense attention is, and how near what the hardware allows.

use super::{Dense, ProblemSizes};
use crate::record::{BenchRecord, billions_a_second};
use crate::report::chart::{Chart, Mark, Row, Shape};
use crate::report::number;
use crate::report::{Block, Part, Section, Table, strips, with_standing, with_times};

const CAPTION: &str = "Performance (FLOP/s) of hot medians on a logarithmic axis; to the right is faster. Both products \
                       count, for pairs of a query and a key it sees; the softmax does not. The ceilings measured in \
                       the same run are marked.";

/// The section; none without benchmarks of dense attention.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts {
        let benches = part.of(&Dense);
        if benches.is_empty() {
            continue;
        }
        blocks.extend(part.title.clone().map(Block::Heading));
        blocks.push(Block::Table(table(&benches)));
    }
    Section::of("dense", "Dense attention", "", blocks)
}

fn table(records: &[&BenchRecord]) -> Table {
    let fastest = records.iter().filter_map(|it| it.gflop_s());
    let (unit, giga) = match fastest.fold(0.0, f64::max) {
        most if most >= 1e3 => ("TFLOP/s", 1e3),
        _ => ("GFLOP/s", 1.0),
    };
    let table = Table::of("Dense attention, every result", records)
        .words("size", |it| label(it).0)
        .words("type", |it| label(it).1);
    with_standing(with_times(table).numbers(unit, number::rate, |it| Some(it.gflop_s()? / giga)))
        .words("sizes", |it| sizes(it).map_or(String::new(), shown))
        .words("keys seen", |it| {
            sizes(it).map_or("all".to_string(), |sizes| sizes.seen_in_words("all"))
        })
        .table()
        .searched_as("causal bf16")
        .drawn(chart(records, unit, giga))
        .drawn(strips(records, &["size", "type"]))
}

fn sizes(record: &BenchRecord) -> Option<&ProblemSizes> {
    record.problem.of()
}

/// What a row belongs to, and what it is called there: masks of one size stand together.
fn label(record: &BenchRecord) -> (String, String) {
    let (name, dtype) = (record.workload.as_str(), &record.dtypes.value);
    let name = name.strip_prefix("dense-").unwrap_or(name);
    let is_masked = sizes(record).is_some_and(|it| it.mask.is_some());
    match name.strip_suffix("-causal") {
        Some(size) if is_masked => (size.to_string(), format!("{dtype}, causal")),
        _ => (name.to_string(), dtype.clone()),
    }
}

fn chart(records: &[&BenchRecord], unit: &'static str, giga: f64) -> Option<Chart> {
    let row = |(of, record): (usize, &&BenchRecord)| {
        let hot = record.hot.as_ref()?;
        let at = |time: f64| billions_a_second(record.traffic.flop, time) / giga;
        let roof = record.roof.iter();
        let roof = roof.map(|roof| Mark::new(Shape::Second, at(roof.hot_ms)));
        let ours = Mark::new(Shape::Ours, at(hot.median_ms));
        let ours = ours.between(at(hot.ci_high_ms), at(hot.ci_low_ms));
        Some(Row::of(of, roof.chain([ours]).collect()))
    };
    let rows: Vec<Row> = records.iter().enumerate().filter_map(row).collect();
    let chart = Chart {
        title: "Forward: performance".to_string(),
        caption: CAPTION.to_string(),
        axis: unit.to_string(),
        group: "size",
        labels: &["type"],
        values: vec![("hot ms".to_string(), " ms"), (unit.to_string(), "")],
        rows,
        ..Chart::default()
    };
    let legend = [
        (Shape::Ours, "fourtap, hot"),
        (Shape::Second, "allowed by the ceilings"),
    ];
    chart.with_legend(&legend).if_any()
}

/// As in "B 4, H 16, S 2048, D 64", with both numbers where queries and keys differ.
fn shown(sizes: &ProblemSizes) -> String {
    let pair = |letter: &str, of_query: usize, of_key: usize| match of_query == of_key {
        true => format!("{letter} {of_query}"),
        false => format!("{letter} {of_query} and {of_key}"),
    };
    [
        format!("B {}", sizes.batch),
        pair("H", sizes.query_heads, sizes.key_heads),
        pair("S", sizes.queries, sizes.keys),
        pair("D", sizes.channels, sizes.value_channels),
    ]
    .join(", ")
}
