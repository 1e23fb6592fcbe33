//! What can be tuned, and what tuning found.

use std::collections::BTreeMap;

use comfy_table::{ContentArrangement, Table};

use super::{align_right, milliseconds, with_header, wrapped};
use crate::record::{AttemptRecord, TunedRecord};
use crate::tune::{Tunable, sensitivities};

const WIDTH: u16 = 100;

/// Kernels that can be tuned, and how.
pub fn spaces(tunables: &[Tunable]) -> String {
    let mut text = String::new();
    for tunable in tunables {
        let space = tunable.space;
        let mut table = fitted(&["parameter", "values (the default first)", "what it is"]);
        for one in space.parameters {
            let others = one.values.iter().filter(|&&value| value != one.default);
            let values = [&one.default].into_iter().chain(others);
            let values: Vec<_> = values.map(u32::to_string).collect();
            let bits = if one.changes_bits {
                "; changes rounding"
            } else {
                ""
            };
            table.add_row([
                one.name.to_string(),
                values.join(" "),
                format!("{}{bits}", one.what),
            ]);
        }
        text += &format!("{}: {}\n{table}\n\n", space.kernel, space.what);
    }
    text
}

/// A search and its finals.
pub fn tuned(tuned: &TunedRecord, attempts: &[AttemptRecord]) -> String {
    let subject = &tuned.subject;
    let attempts: Vec<_> = attempts
        .iter()
        .filter(|it| it.subject == *subject)
        .collect();
    let mut text = format!("{}, class {}\n", subject.name(), subject.class);
    text += &wrapped(&summary(tuned, &attempts), 0);
    let mut table = fitted(&["attempt", "choice", "ms", "x defaults", "between", ""]);
    for (index, finalist) in tuned.finals.iter().enumerate() {
        let word = match (index == tuned.winner, finalist.equals_fastest) {
            (true, _) => "kept",
            (false, true) => "as fast",
            (false, false) => "slower",
        };
        table.add_row([
            finalist.number.to_string(),
            tuned.differences(finalist),
            milliseconds(finalist.hot.median_ms),
            format!("{:.3}", finalist.speed),
            format!("{:.3} to {:.3}", finalist.speed_low, finalist.speed_high),
            word.to_string(),
        ]);
    }
    align_right(&mut table, 2..4);
    text += &format!("{table}\n");
    let right = attempts.iter();
    let right = right.filter_map(|it| Some((&it.parameters, it.median_ms()?)));
    let matters: Vec<String> = sensitivities(right)
        .iter()
        .map(|one| format!("{} {:.2}", one.parameter, one.factor))
        .collect();
    if !matters.is_empty() {
        let words = format!(
            "Sensitivity, the slowest value's best time over the fastest's: {}.\n",
            matters.join(", ")
        );
        text += &wrapped(&words, 0);
    }
    text += &wrapped(&format!("So: {}.\n", tuned.verdict), 0);
    text + "\n"
}

/// How the search went, in words.
fn summary(tuned: &TunedRecord, attempts: &[&AttemptRecord]) -> String {
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for attempt in attempts.iter().filter(|it| it.hot.is_none()) {
        *ends.entry(&attempt.verdict).or_default() += 1;
    }
    let mut words = format!(
        "{} choices fit, {} tried in {} generations, {} correct",
        tuned.points, tuned.attempts, tuned.generations, tuned.right
    );
    for (verdict, count) in ends {
        words += &format!(", {count} {verdict}");
    }
    for (why, count) in &tuned.refused {
        words += &format!("; {count} do not fit ({why})");
    }
    format!("{words}. It ended because {}.\n", tuned.ended)
}

fn fitted(heads: &[&str]) -> Table {
    let mut table = with_header(heads);
    table
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH);
    table
}
