//! What tuning tried, and what it found.

use std::collections::BTreeMap;

use super::chart::{Chart, DotChart, DotRow, Mark, Shape};
use super::number::{self, counted, milliseconds, or_dash};
use super::page::{Block, Cell, Figure, Section, Table};
use super::part::Part;
use super::probes::outcome;
use super::samples::hot_in_words;
use crate::record::{AttemptRecord, Run, TunedRecord};
use crate::tune::{BuildResult, CandidateOrigin, sensitivities};

/// The section; none without a search that ended.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts.iter().filter(|part| !part.tuned.is_empty()) {
        blocks.extend(part.title.as_ref().map(Block::heading));
        if part.tuned.len() > 1 {
            blocks.push(Block::Table {
                table: overview(&part.tuned),
            });
        }
        for (index, tuned) in part.tuned.iter().enumerate() {
            let attempts = part.attempts.iter().copied();
            let attempts: Vec<_> = attempts.filter(|it| it.subject == tuned.subject).collect();
            let slug = format!("{}tuning-{}", part.prefix, index + 1);
            blocks.extend(search(tuned, &attempts, &slug));
        }
    }
    (!blocks.is_empty()).then_some(Section {
        id: "tuning",
        title: "Tuning",
        blocks,
    })
}

/// How much was tried, and what it gained.
pub fn figures(run: &Run) -> Option<Figure> {
    let count = run.tuned.len();
    if count == 0 {
        return None;
    }
    let gains: Vec<f64> = run
        .tuned
        .iter()
        .filter(|it| it.winner > 0)
        .filter_map(|it| Some(it.kept()?.speed))
        .collect();
    let most = gains.iter().copied().fold(1.0, f64::max);
    let searches = if count == 1 { "search" } else { "searches" };
    Some(Figure {
        number: format!("{} of {count}", gains.len()),
        what: format!("{searches} found something faster than the defaults"),
        detail: match gains.is_empty() {
            true => counted(run.attempts.len(), "attempt"),
            false => format!(
                "{}; at most {} times as fast",
                counted(run.attempts.len(), "attempt"),
                speed(most)
            ),
        },
    })
}

/// One row per search.
fn overview(all: &[&TunedRecord]) -> Table {
    let heads = [
        "kernel",
        "workload",
        "type",
        "#attempts",
        "#× defaults",
        "#at least",
        "~kept",
    ];
    let mut table = Table::new("Every search", &heads);
    for tuned in all {
        let subject = &tuned.subject;
        let kept = tuned.kept();
        let gain = kept.filter(|_| tuned.winner > 0);
        let speed = |number: Option<f64>| Cell::number(or_dash(number, speed), number);
        table.rows.push(vec![
            Cell::words(&subject.kernel),
            Cell::words(&subject.workload).with_detail(&subject.distribution),
            Cell::words(&subject.dtype),
            Cell::number(tuned.attempts.to_string(), Some(tuned.attempts as f64)),
            speed(gain.map(|it| it.speed)).strong(),
            speed(gain.map(|it| it.speed_low)),
            Cell::words(kept.map_or(String::new(), |it| tuned.differences(it))),
        ]);
    }
    table
}

fn search(tuned: &TunedRecord, attempts: &[&AttemptRecord], slug: &str) -> Vec<Block> {
    let subject = &tuned.subject;
    let mut blocks = vec![
        Block::heading(subject.name()),
        Block::words(format!(
            "Result: {}. {} fit, {} were tried in {}, {} were correct; it ended because {}. What was kept serves \
             problems of class {} on this device.",
            tuned.verdict,
            counted(tuned.points, "choice"),
            tuned.attempts,
            counted(tuned.generations as usize, "generation"),
            tuned.right,
            tuned.ended,
            subject.class,
        )),
    ];
    if let Some(chart) = progress(attempts) {
        let caption = "Every correct attempt, by generation: strokes are attempts, the disc is the fastest so far. \
                       Speed against the defaults on a logarithmic axis; to the right is faster. Attempts run one \
                       after another, so drift of the machine moves them all; only the finals below are timed \
                       alternately.";
        blocks.push(Block::Chart {
            chart: Chart::new(
                &format!("{slug}-progress"),
                "Progress over generations",
                caption,
                |layout| chart.draw(layout),
            ),
        });
    }
    blocks.push(Block::Table {
        table: finals(tuned),
    });
    if let Some(chart) = sensitivity(attempts) {
        let caption = "For each value, the fastest attempt that has it, whatever else it has. Where the discs of a \
                       parameter lie at one speed, it has no effect.";
        blocks.push(Block::Chart {
            chart: Chart::new(
                &format!("{slug}-sensitivity"),
                "Effect of each parameter",
                caption,
                |layout| chart.draw(layout),
            ),
        });
    }
    let losers: Vec<_> = attempts.iter().filter(|it| it.hot.is_none()).collect();
    if !losers.is_empty() {
        let heads = ["#attempt", "outcome", "~why", "~choice"];
        let mut table = Table::new("Attempts without a time", &heads);
        for loser in losers {
            table.rows.push(vec![
                number_of(loser),
                Cell::words(outcome(loser.outcome)),
                Cell::words(&loser.words),
                Cell::words(choice(&loser.parameters)),
            ]);
        }
        blocks.push(Block::Table { table });
    }
    blocks.push(Block::Folded {
        summary: format!("All {}", counted(attempts.len(), "attempt")),
        open: false,
        blocks: vec![Block::Table {
            table: everything(attempts),
        }],
    });
    blocks
}

fn speed(speed: f64) -> String {
    format!("{speed:.3}")
}

fn number_of(attempt: &AttemptRecord) -> Cell {
    Cell::number(attempt.number.to_string(), Some(f64::from(attempt.number)))
}

fn choice(parameters: &BTreeMap<String, u32>) -> String {
    let words = parameters.iter();
    let words: Vec<_> = words
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    words.join(" ")
}

fn progress(attempts: &[&AttemptRecord]) -> Option<DotChart> {
    let last = attempts.iter().map(|it| it.generation).max()?;
    let mut best: Option<&AttemptRecord> = None;
    let mut rows = vec![];
    for generation in 0..=last {
        let of_generation = attempts.iter().filter(|it| it.generation == generation);
        let timed: Vec<_> = of_generation
            .filter_map(|it| Some((*it, it.speed?)))
            .collect();
        for (attempt, speed) in &timed {
            if best.and_then(|it| it.speed).is_none_or(|it| it < *speed) {
                best = Some(attempt);
            }
        }
        let mut marks: Vec<Mark> = timed
            .iter()
            .map(|(attempt, at)| Mark {
                shape: Shape::Peer,
                at: *at,
                interval: None,
                words: format!(
                    "attempt {}: {}",
                    attempt.number,
                    choice(&attempt.parameters)
                ),
            })
            .collect();
        let (Some(best), Some(at)) = (best, best.and_then(|it| it.speed)) else {
            continue;
        };
        marks.push(Mark {
            shape: Shape::Ours,
            at,
            interval: None,
            words: format!("fastest so far: attempt {}", best.number),
        });
        rows.push(DotRow {
            group: String::new(),
            label: format!("generation {generation}"),
            detail: String::new(),
            values: [
                format!("{} ms", or_dash(best.median_ms(), milliseconds)),
                format!("{} ×", self::speed(at)),
            ],
            words: [
                format!("generation {generation}: {} with a time", timed.len()),
                format!("fastest so far: attempt {}", best.number),
                choice(&best.parameters),
                best.hot.as_ref().map_or(String::new(), hot_in_words),
            ]
            .join("\n"),
            marks,
        });
    }
    (!rows.is_empty()).then(|| DotChart {
        axis: "speedup over the defaults".to_string(),
        reference: Some((1.0, "the defaults".to_string())),
        heads: ["fastest".to_string(), "× defaults".to_string()],
        rows,
        legend: vec![
            (Shape::Ours, "the fastest so far".to_string()),
            (Shape::Peer, "an attempt".to_string()),
        ],
    })
}

fn sensitivity(attempts: &[&AttemptRecord]) -> Option<DotChart> {
    let usual = attempts
        .iter()
        .find(|it| it.how == CandidateOrigin::Default)?;
    let usual_ms = usual.median_ms()?;
    let timed = attempts.iter();
    let timed = timed.filter_map(|it| Some((&it.parameters, it.median_ms()?)));
    let mut rows = vec![];
    for one in sensitivities(timed) {
        for (value, count, time) in one.values {
            let at = usual_ms / time;
            let is_default = usual.parameters.get(&one.parameter) == Some(&value);
            let words = format!(
                "{} = {value}: {}, the fastest {} ms",
                one.parameter,
                counted(count, "attempt"),
                milliseconds(time)
            );
            rows.push(DotRow {
                group: one.parameter.clone(),
                label: number::grouped(f64::from(value)),
                detail: if is_default { "default" } else { "" }.to_string(),
                values: [
                    format!("{} ms", milliseconds(time)),
                    format!("{} ×", speed(at)),
                ],
                marks: vec![Mark {
                    shape: Shape::Ours,
                    at,
                    interval: None,
                    words: words.clone(),
                }],
                words,
            });
        }
    }
    (!rows.is_empty()).then(|| DotChart {
        axis: "speedup over the defaults".to_string(),
        reference: Some((1.0, "the defaults".to_string())),
        heads: ["fastest".to_string(), "× defaults".to_string()],
        rows,
        legend: vec![(
            Shape::Ours,
            "the fastest attempt with this value".to_string(),
        )],
    })
}

fn finals(tuned: &TunedRecord) -> Table {
    let heads = [
        "#attempt",
        "~choice",
        "#ms",
        "#× defaults",
        "between",
        "verdict",
    ];
    let mut table = Table::new("The fastest, timed alternately with the defaults", &heads);
    for (index, finalist) in tuned.finals.iter().enumerate() {
        let verdict = match (index == tuned.winner, finalist.equals_fastest) {
            (true, _) => Cell::words("kept").strong(),
            (false, true) => Cell::words("as fast"),
            (false, false) => Cell::words("slower"),
        };
        let median = finalist.hot.median_ms;
        table.rows.push(vec![
            Cell::number(
                finalist.number.to_string(),
                Some(f64::from(finalist.number)),
            ),
            Cell::words(tuned.differences(finalist)),
            Cell::number(milliseconds(median), Some(median)),
            Cell::number(speed(finalist.speed), Some(finalist.speed)),
            Cell::words(format!(
                "{} to {}",
                speed(finalist.speed_low),
                speed(finalist.speed_high)
            )),
            verdict,
        ]);
    }
    table
}

fn built(attempt: &AttemptRecord, number: fn(&BuildResult) -> Option<u32>) -> Cell {
    let number = attempt.built.as_ref().and_then(number);
    Cell::number(
        number.map_or(String::new(), |it| it.to_string()),
        number.map(f64::from),
    )
}

fn everything(attempts: &[&AttemptRecord]) -> Table {
    let heads = [
        "#attempt",
        "#generation",
        "found by",
        "parents",
        "#registers",
        "#bytes of stack",
        "#ms",
        "#× defaults",
        "outcome",
        "~choice",
    ];
    let mut table = Table::new("Every attempt", &heads);
    table.searchable = true;
    table.example = "mutation";
    for attempt in attempts {
        let median = attempt.median_ms();
        let parents: Vec<_> = attempt.parents.iter().map(u32::to_string).collect();
        table.rows.push(vec![
            number_of(attempt),
            Cell::number(
                attempt.generation.to_string(),
                Some(f64::from(attempt.generation)),
            ),
            Cell::words(attempt.how.name()),
            Cell::words(parents.join(" and ")),
            built(attempt, BuildResult::registers),
            built(attempt, |it| {
                Some(it.stack_bytes()).filter(|bytes| *bytes > 0)
            }),
            Cell::number(or_dash(median, milliseconds), median),
            Cell::number(or_dash(attempt.speed, speed), attempt.speed),
            Cell::words(outcome(attempt.outcome)),
            Cell::words(choice(&attempt.parameters)),
        ]);
    }
    table.without_empty_columns()
}
