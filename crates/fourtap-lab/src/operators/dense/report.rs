//! How fast dense attention is, and how near what the hardware allows.

use super::{Dense, ProblemSizes};
use crate::record::{BenchRecord, Roof, Timing, billions_a_second};
use crate::report::chart::{Chart, DotChart, DotRow, Mark, Shape};
use crate::report::number::{self, milliseconds, or_dash, percent};
use crate::report::{Block, Cell, Part, Section, Table, hot_in_words, strips};

/// The section; none without benchmarks of dense attention.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts {
        let benches = part.of(&Dense);
        if benches.is_empty() {
            continue;
        }
        blocks.extend(part.title.as_ref().map(Block::heading));
        let timed: Vec<_> = benches
            .iter()
            .filter_map(|&record| Some((record, record.hot.as_ref()?)))
            .collect();
        if !timed.is_empty() {
            let chart = speed(&timed);
            let caption = "Performance (FLOP/s) of hot medians on a logarithmic axis; to the right is faster. Both \
                           products count, for pairs of a query and a key it sees; the softmax does not. The \
                           ceilings measured in the same run are marked.";
            let slug = format!("{}dense-speed", part.prefix);
            blocks.push(Block::Chart {
                chart: Chart::new(&slug, "Forward: performance", caption, |layout| {
                    chart.draw(layout)
                }),
            });
        }
        blocks.push(Block::Table {
            table: table(&benches),
        });
        let slug = format!("{}dense-samples", part.prefix);
        blocks.extend(strips(&benches, &slug).map(|chart| Block::Chart { chart }));
    }
    (!blocks.is_empty()).then_some(Section {
        id: "dense",
        title: "Dense attention",
        blocks,
    })
}

/// Billions of operations per second that the roof allows.
fn allowed(record: &BenchRecord, roof: &Roof) -> Option<f64> {
    let allowed = billions_a_second(record.traffic.flop, roof.hot_ms);
    Some(allowed).filter(|speed| speed.is_finite() && *speed > 0.0)
}

/// What a row belongs to, and what it is called there: masks of one size stand together.
fn label(record: &BenchRecord) -> (String, String) {
    let (name, dtype) = (record.workload.as_str(), &record.dtypes.value);
    let name = name.strip_prefix("dense-").unwrap_or(name);
    let mask = record.problem.of::<ProblemSizes>();
    let mask = mask.and_then(|it| it.mask.as_ref());
    match (mask, name.strip_suffix("-causal")) {
        (Some(_), Some(size)) => (size.to_string(), format!("{dtype}, causal")),
        _ => (name.to_string(), dtype.clone()),
    }
}

fn speed(timed: &[(&BenchRecord, &Timing)]) -> DotChart {
    let reached = |(record, _): &(&BenchRecord, &Timing)| record.gflop_s().unwrap_or(0.0);
    let fastest = timed.iter().map(reached).fold(0.0, f64::max);
    let (unit, giga) = match fastest >= 1e3 {
        true => ("TFLOP/s", 1e3),
        false => ("GFLOP/s", 1.0),
    };
    let mut has_roof = false;
    let mut rows = vec![];
    for &(record, hot) in timed {
        let at = |time: f64| billions_a_second(record.traffic.flop, time);
        let reached = at(hot.median_ms);
        let mut words = vec![
            record.name(),
            hot_in_words(hot),
            format!("speed: {}", number::operations(reached)),
        ];
        let mut marks = vec![];
        let roof = record.roof.as_ref();
        if let Some((roof, most)) = roof.and_then(|roof| Some((roof, allowed(record, roof)?))) {
            has_roof = true;
            let said = format!("{} allows {}", roof.hot_limit, number::operations(most));
            words.push(said.clone());
            marks.push(Mark {
                shape: Shape::Second,
                at: most / giga,
                interval: None,
                words: said,
            });
        }
        marks.push(Mark {
            shape: Shape::Ours,
            at: reached / giga,
            interval: Some((at(hot.ci_high_ms) / giga, at(hot.ci_low_ms) / giga)),
            words: hot_in_words(hot),
        });
        let (group, label) = label(record);
        rows.push(DotRow {
            group,
            label,
            detail: String::new(),
            values: [
                format!("{} ms", milliseconds(hot.median_ms)),
                number::rate(reached / giga),
            ],
            marks,
            words: words.join("\n"),
        });
    }
    let mut legend = vec![(Shape::Ours, "fourtap, hot".to_string())];
    if has_roof {
        legend.push((Shape::Second, "allowed by the ceilings".to_string()));
    }
    DotChart {
        axis: unit.to_string(),
        reference: None,
        heads: ["hot".to_string(), unit.to_string()],
        rows,
        legend,
    }
}

fn table(records: &[&BenchRecord]) -> Table {
    let heads = [
        "workload",
        "type",
        "#hot ms",
        "#±",
        "#cold ms",
        "#GFLOP/s",
        "#of roof",
        "roof",
        "#error",
        "sizes",
        "keys seen",
    ];
    let mut table = Table::new("Dense attention, every result", &heads);
    table.searchable = true;
    table.example = "causal bf16";
    for record in records {
        let hot = record.hot.as_ref();
        let median = record.median_ms();
        let cold = record.cold.as_ref().map(|cold| cold.median_ms);
        let roof = record.roof.as_ref();
        let share = roof.zip(median).map(|(roof, median)| roof.hot_ms / median);
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
        let sizes = record.problem.of::<ProblemSizes>();
        table.rows.push(vec![
            Cell::words(&record.workload),
            Cell::words(&record.dtypes.value),
            time,
            Cell::number(
                or_dash(hot, |hot| percent(hot.uncertainty())),
                hot.map(Timing::uncertainty),
            ),
            Cell::number(or_dash(cold, milliseconds), cold),
            Cell::number(or_dash(record.gflop_s(), number::rate), record.gflop_s()),
            Cell::number(or_dash(share, percent), share),
            Cell::words(limit),
            Cell::number(or_dash(error, number::error), error),
            Cell::words(sizes.map_or(String::new(), shown)),
            Cell::words(sizes.map_or("all".to_string(), |sizes| sizes.seen_in_words("all"))),
        ]);
    }
    table.without_empty_columns()
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
