//! The rungs of a case as a chart.

use std::collections::BTreeMap;

use super::{Case, chosen, error};
use crate::record::{RungProblem, RungRecord};
use crate::report::chart::{Chart, DotChart, DotRow, Mark, Shape};
use crate::report::counters::limit;
use crate::report::hot_in_words;
use crate::report::number::{self, counted, milliseconds, or_dash, percent, times};
use crate::report::probes::outcome;
use crate::table;

/// Names in a caption before the rest is counted.
const MOST_NAMES: usize = 6;

/// Every rung that has a time, the fastest first.
pub fn chart(case: &Case<'_>, slug: &str) -> Chart {
    let operator = case.operator();
    let shipped = case.of(operator.shipped());
    let shipped = shipped.and_then(RungRecord::median_ms);
    let rows: Vec<DotRow> = case.ranked.iter().filter_map(|it| row(case, it)).collect();
    let has = |shape: Shape| {
        let mut marks = rows.iter().flat_map(|row| &row.marks);
        marks.any(|mark| mark.shape == shape)
    };
    let legend = [
        (Shape::Ours, "all steps, hot"),
        (Shape::Approximate, "an approximation, hot"),
        (Shape::Second, "kept: without what depends on value alone"),
    ];
    let legend = legend.into_iter().filter(|(shape, _)| has(*shape));
    let legend = legend.map(|(shape, words)| (shape, words.to_string()));
    let chart = DotChart {
        axis: "milliseconds".to_string(),
        reference: shipped.map(|time| {
            (
                time,
                format!("{}, {} ms", operator.shipped(), milliseconds(time)),
            )
        }),
        heads: ["hot".to_string(), format!("× {}", operator.plainest())],
        legend: legend.collect(),
        rows,
    };
    let mut caption = format!(
        "{}. Hot medians with their 95 % confidence intervals on a logarithmic axis; to the left is faster.",
        in_words(&case.ranked[0].problem)
    );
    if shipped.is_some() {
        caption += " Lines lead to the time of what the library ships.";
    }
    let untimed = case.ranked.iter().filter(|it| it.hot.is_none());
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for record in untimed {
        let names = reasons.entry(outcome(record.outcome)).or_default();
        names.push(&record.rung);
    }
    if !reasons.is_empty() {
        let reasons = reasons.iter();
        let reasons = reasons.map(|(reason, names)| format!("{reason}: {}", listed(names)));
        let reasons: Vec<_> = reasons.collect();
        caption += &format!(" Without a time, {}.", reasons.join("; "));
    }
    let title = format!("{}: every rung by time", case.name);
    Chart::new(slug, &title, &caption, |layout| chart.draw(layout))
}

fn listed(names: &[&str]) -> String {
    let shown = names[..names.len().min(MOST_NAMES)].join(", ");
    match names.len().saturating_sub(MOST_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn in_words(problem: &RungProblem) -> String {
    let queries = |queries: usize| match queries {
        1 => "1 query".to_string(),
        queries => format!("{} queries", number::grouped(queries as f64)),
    };
    match problem {
        RungProblem::Msda(problem) => format!(
            "{}, {} each, {}, {}, {}, {} per level",
            counted(problem.images, "image"),
            queries(problem.queries),
            counted(problem.heads, "head"),
            counted(problem.channels, "channel"),
            counted(problem.levels.len(), "level"),
            counted(problem.points, "point"),
        ),
        RungProblem::Dense(problem) => format!(
            "{}, {} and {} each, {}, {}, {}",
            counted(problem.batch, "sequence"),
            queries(problem.queries),
            counted(problem.keys, "key"),
            counted(problem.heads, "head"),
            counted(problem.channels, "channel"),
            problem.dtype,
        ),
    }
}

fn row(case: &Case<'_>, record: &RungRecord) -> Option<DotRow> {
    let hot = record.hot.as_ref()?;
    let mut marks = vec![];
    if let Some(prepared) = &record.prepared {
        marks.push(Mark {
            shape: Shape::Second,
            at: prepared.median_ms,
            interval: Some((prepared.ci_low_ms, prepared.ci_high_ms)),
            words: format!("kept: {} ms", milliseconds(prepared.median_ms)),
        });
    }
    marks.push(Mark {
        shape: match record.approximate {
            Some(_) => Shape::Approximate,
            None => Shape::Ours,
        },
        at: hot.median_ms,
        interval: Some((hot.ci_low_ms, hot.ci_high_ms)),
        words: hot_in_words(hot),
    });
    let against = case.times_plainest(record);
    Some(DotRow {
        group: String::new(),
        label: record.rung.clone(),
        detail: record.title.clone(),
        values: [
            format!("{} ms", milliseconds(hot.median_ms)),
            format!("{} ×", or_dash(against, times)),
        ],
        words: card(case, record).join("\n"),
        marks,
    })
}

/// What to know of a rung that has a time, a line a fact.
fn card(case: &Case<'_>, record: &RungRecord) -> Vec<String> {
    let mut words = vec![format!("{}: {}", record.rung, record.title)];
    words.extend(record.hot.as_ref().map(hot_in_words));
    let prepared = record.prepared.as_ref();
    words.extend(prepared.map(|it| format!("kept: {} ms", milliseconds(it.median_ms))));
    words.push(table::standing(record, &case.ranked));
    let operator = case.operator();
    for other in [operator.plainest(), operator.shipped()]
        .into_iter()
        .filter(|it| *it != record.rung)
    {
        let against = table::times(record, &case.ranked, other);
        words.extend(against.map(|ratio| format!("against {other}: {} ×", times(ratio))));
    }
    if let Some((gather, dram)) = record.of_gather.zip(record.of_dram) {
        words.push(format!(
            "gather: {}, DRAM: {}",
            percent(gather),
            percent(dram)
        ));
    }
    words.extend(
        record
            .of_tensor
            .map(|tensor| format!("tensor: {}", percent(tensor))),
    );
    words.extend(
        record
            .library
            .as_ref()
            .map(|it| format!("other library: {it}")),
    );
    words.extend(error(record).map(|it| format!("error: {}", number::error(it))));
    words.extend(record.binding.as_ref().map(|binding| {
        let busy = percent(binding.busy);
        format!("bottleneck: {}, busy {busy}", limit(&binding.limit))
    }));
    words.push(chosen(record));
    words.retain(|line| !line.is_empty());
    words
}
