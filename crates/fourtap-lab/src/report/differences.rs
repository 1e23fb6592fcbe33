//! What changed between runs.

use super::chart::{Chart, DotChart, DotRow, Mark, Shape};
use super::number::{counted, milliseconds, percent, ratio};
use super::page::{Block, Cell, Section, Table};
use super::part::devices;
use crate::comparison::{Comparison, LEAST_NOISE, Row, Verdict, compare};
use crate::record::Run;

/// The section: every later run against the first; none for a single run or runs that share no benchmark.
pub fn section(runs: &[Run]) -> Option<Section> {
    let (first, others) = runs.split_first()?;
    let mut blocks = vec![];
    for (index, run) in others.iter().enumerate() {
        let comparison = compare(first, run);
        if comparison.rows.is_empty() {
            blocks.push(Block::words(format!(
                "{} and {} have no benchmark in common.",
                first.name(),
                run.name()
            )));
            continue;
        }
        blocks.push(Block::heading(format!(
            "{}, compared with {}",
            run.name(),
            first.name()
        )));
        add(&mut blocks, &comparison, first, run, index + 2);
    }
    for (index, run) in runs.iter().filter(|run| !run.turns.is_empty()).enumerate() {
        let rows = run.turns.iter().map(Row::from).collect();
        let comparison = Comparison::in_turns(rows, vec![], LEAST_NOISE);
        blocks.push(Block::heading(format!(
            "{}: two builds in turns",
            run.name()
        )));
        blocks.push(Block::words(summary(&comparison)));
        let chart = chart(&comparison.rows);
        let caption = "Time of this build over time of the other, timed in turns, with its confidence interval; to the \
                       left is faster.";
        let slug = format!("turns-{}", index + 1);
        blocks.push(Block::Chart {
            chart: Chart::new(&slug, "How times differ", caption, |layout| {
                chart.draw(layout)
            }),
        });
        blocks.push(Block::Table {
            table: table(&comparison.rows),
        });
    }
    (!blocks.is_empty()).then_some(Section {
        id: "differences",
        title: "Differences",
        blocks,
    })
}

fn add(blocks: &mut Vec<Block>, comparison: &Comparison, first: &Run, run: &Run, number: usize) {
    blocks.push(Block::words(summary(comparison)));
    let models = |run: &Run| -> Vec<_> {
        let devices = devices(run).into_iter();
        devices.map(|device| device.model.clone()).collect()
    };
    let mut notes = comparison.notes.clone();
    if models(first) != models(run) && notes.is_empty() {
        notes.push("The runs were made on different devices.".to_string());
    }
    for (names, whose) in [
        (&comparison.only_before, first.name()),
        (&comparison.only_after, run.name()),
    ] {
        if !names.is_empty() {
            let benchmarks = counted(names.len(), "benchmark");
            let verb = if names.len() == 1 { "is" } else { "are" };
            notes.push(format!("{benchmarks} {verb} only in {whose}."));
        }
    }
    if !notes.is_empty() {
        blocks.push(Block::words(notes.join(" ")));
    }
    let chart = chart(&comparison.rows);
    let caption = format!(
        "Time of {} over time of {}, with its confidence interval; to the left is faster. The noise between two runs \
         of the same code is taken to be {}.",
        run.name(),
        first.name(),
        percent(comparison.noise)
    );
    let title = "Changes in time";
    blocks.push(Block::Chart {
        chart: Chart::new(
            &format!("differences-{number}"),
            title,
            &caption,
            |layout| chart.draw(layout),
        ),
    });
    blocks.push(Block::Table {
        table: table(&comparison.rows),
    });
}

fn summary(comparison: &Comparison) -> String {
    let count = |verdict| {
        let rows = comparison.rows.iter();
        rows.filter(|row| row.verdict == verdict).count()
    };
    format!(
        "Of {}: {} slower, {} faster, {} the same, {} unclear.",
        counted(comparison.rows.len(), "benchmark"),
        count(Verdict::Slower),
        count(Verdict::Faster),
        count(Verdict::Same),
        count(Verdict::Unclear),
    )
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Same => "same",
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::Unclear => "unclear",
    }
}

fn shape(verdict: Verdict) -> Shape {
    match verdict {
        Verdict::Same => Shape::Same,
        Verdict::Faster => Shape::Faster,
        Verdict::Slower => Shape::Slower,
        Verdict::Unclear => Shape::Unclear,
    }
}

fn chart(rows: &[Row]) -> DotChart {
    let row = |row: &Row| {
        let (group, label) = row.name.split_once('/').unwrap_or((&row.name, ""));
        let words = format!(
            "{}\n{}\nbefore: {} ms\nafter: {} ms\nratio: {}, from {} to {}",
            row.name,
            word(row.verdict),
            milliseconds(row.before_ms),
            milliseconds(row.after_ms),
            ratio(row.ratio),
            ratio(row.ratio_low),
            ratio(row.ratio_high)
        );
        DotRow {
            group: group.to_string(),
            label: label.replace('/', " "),
            detail: String::new(),
            values: [word(row.verdict).to_string(), ratio(row.ratio)],
            marks: vec![Mark {
                shape: shape(row.verdict),
                at: row.ratio,
                interval: Some((row.ratio_low, row.ratio_high)),
                words: word(row.verdict).to_string(),
            }],
            words,
        }
    };
    let verdicts = [
        Verdict::Faster,
        Verdict::Same,
        Verdict::Slower,
        Verdict::Unclear,
    ];
    DotChart {
        axis: "time after over time before".to_string(),
        reference: Some((1.0, "as before".to_string())),
        heads: ["verdict".to_string(), "ratio".to_string()],
        rows: rows.iter().map(row).collect(),
        legend: verdicts
            .map(|verdict| (shape(verdict), word(verdict).to_string()))
            .to_vec(),
    }
}

fn table(rows: &[Row]) -> Table {
    let heads = [
        "benchmark",
        "verdict",
        "#before ms",
        "#after ms",
        "#ratio",
        "#from",
        "#to",
        "#samples",
    ];
    let mut table = Table::new("Every benchmark of both runs", &heads);
    table.searchable = true;
    for row in rows {
        let verdict = Cell::words(word(row.verdict));
        table.rows.push(vec![
            Cell::words(&row.name),
            match row.verdict {
                Verdict::Same => verdict,
                _ => verdict.strong(),
            },
            Cell::number(milliseconds(row.before_ms), Some(row.before_ms)),
            Cell::number(milliseconds(row.after_ms), Some(row.after_ms)),
            Cell::number(ratio(row.ratio), Some(row.ratio)).strong(),
            Cell::number(ratio(row.ratio_low), Some(row.ratio_low)),
            Cell::number(ratio(row.ratio_high), Some(row.ratio_high)),
            Cell::words(format!("{}, {}", row.samples_before, row.samples_after)),
        ]);
    }
    table
}
