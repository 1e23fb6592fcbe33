//! What changed between runs.

use super::chart::{Chart, Mark, Row as ChartRow, Shape};
use super::number::{counted, milliseconds, percent, ratio};
use super::page::{Block, Cell, Holds, Section, Table};
use super::part::devices;
use crate::comparison::{Comparison, LEAST_NOISE, Row, Verdict, compare};
use crate::record::Run;

/// Verdicts, how they are drawn, and their words.
const VERDICTS: [(Verdict, Shape, &str); 4] = [
    (Verdict::Faster, Shape::Faster, "faster"),
    (Verdict::Same, Shape::Same, "same"),
    (Verdict::Slower, Shape::Slower, "slower"),
    (Verdict::Unclear, Shape::Unclear, "unclear"),
];

/// The section: every later run against the first, and builds timed in turns; none where there is neither.
pub fn section(runs: &[Run]) -> Option<Section> {
    let (first, others) = runs.split_first()?;
    let mut blocks = vec![];
    for run in others {
        let (name, before) = (run.name(), first.name());
        let comparison = compare(first, run);
        if comparison.rows.is_empty() {
            let words = format!("{before} and {name} have no benchmark in common.");
            blocks.push(Block::Words(words));
            continue;
        }
        let noise = percent(comparison.noise);
        let caption = format!(
            "Time of {name} over time of {before}, with its confidence interval; to the left is faster. The noise \
             between two runs of the same code is taken to be {noise}."
        );
        let heading = format!("{name}, compared with {before}");
        let notes = notes(&comparison, first, run);
        blocks.extend(compared(heading, &comparison, &notes, caption));
    }
    for run in runs.iter().filter(|run| !run.turns.is_empty()) {
        let rows = run.turns.iter().map(Row::from).collect();
        let comparison = Comparison::in_turns(rows, vec![], LEAST_NOISE);
        let caption = "Time of this build over time of the other, timed in turns, with its confidence interval; to the \
                       left is faster.";
        let heading = format!("{}: two builds in turns", run.name());
        blocks.extend(compared(heading, &comparison, &[], caption.to_string()));
    }
    Section::of("differences", "Differences", "", blocks)
}

/// What to know before comparing these runs.
fn notes(comparison: &Comparison, first: &Run, run: &Run) -> Vec<String> {
    let models = |run| devices(run).into_iter().map(|device| &device.model);
    let mut notes = comparison.notes.clone();
    if notes.is_empty() && !models(first).eq(models(run)) {
        notes.push("the runs were made on different devices".to_string());
    }
    for (names, whose) in [
        (&comparison.only_before, first.name()),
        (&comparison.only_after, run.name()),
    ] {
        let benchmarks = counted(names.len(), "benchmark");
        match names.len() {
            0 => {}
            1 => notes.push(format!("{benchmarks} is only in {whose}")),
            _ => notes.push(format!("{benchmarks} are only in {whose}")),
        }
    }
    notes
}

fn compared(
    heading: String,
    comparison: &Comparison,
    notes: &[String],
    caption: String,
) -> Vec<Block> {
    let rows = &comparison.rows;
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let summary = format!(
        "Of {}: {} slower, {} faster, {} the same, {} unclear. {}",
        counted(rows.len(), "benchmark"),
        count(Verdict::Slower),
        count(Verdict::Faster),
        count(Verdict::Same),
        count(Verdict::Unclear),
        match notes.is_empty() {
            true => String::new(),
            false => format!("To know: {}.", notes.join("; ")),
        }
    );
    let table = Table::of("Every benchmark of both runs", rows)
        .words("workload", |row| split(row).0.to_string())
        .words("benchmark", |row| split(row).1.replace('/', " "))
        .words("verdict", |row| {
            Cell::from(look(row).1).strong_if(row.verdict != Verdict::Same)
        })
        .numbers("before ms", milliseconds, |row| Some(row.before_ms))
        .numbers("after ms", milliseconds, |row| Some(row.after_ms))
        .column("ratio", Holds::Numbers, |row| {
            Cell::number(Some(row.ratio), ratio).strong()
        })
        .numbers("from", ratio, |row| Some(row.ratio_low))
        .numbers("to", ratio, |row| Some(row.ratio_high))
        .words("samples", |row| {
            format!("{}, {}", row.samples_before, row.samples_after)
        })
        .table()
        .searched_as("local f16")
        .drawn(chart(rows, caption));
    vec![
        Block::Heading(heading),
        Block::Words(summary),
        Block::Table(table),
    ]
}

/// The workload and the rest of a benchmark's name.
fn split(row: &Row) -> (&str, &str) {
    row.name.split_once('/').unwrap_or((&row.name, ""))
}

fn look(row: &Row) -> (Shape, &'static str) {
    let look = VERDICTS.iter().find(|it| it.0 == row.verdict);
    look.map_or((Shape::Unclear, ""), |it| (it.1, it.2))
}

fn chart(rows: &[Row], caption: String) -> Chart {
    let chart_row = |(of, row): (usize, &Row)| {
        ChartRow::of(
            of,
            vec![Mark::new(look(row).0, row.ratio).between(row.ratio_low, row.ratio_high)],
        )
    };
    let chart = Chart {
        title: "How times differ".to_string(),
        caption,
        axis: "time after over time before".to_string(),
        reference: Some((1.0, "as before".to_string())),
        group: "workload",
        labels: &["benchmark"],
        values: vec![("verdict".to_string(), ""), ("ratio".to_string(), "")],
        rows: rows.iter().enumerate().map(chart_row).collect(),
        ..Chart::default()
    };
    chart.with_legend(&VERDICTS.map(|(_, shape, words)| (shape, words)))
}
