//! A comparison for people.

use comfy_table::Table;

use super::{align_right, milliseconds, shortened, with_header};
use crate::comparison::{Comparison, Row, SAME_WITHIN, Verdict};

/// Letters of a benchmark's name that fit a table of 100 columns.
const NAME_WIDTH: usize = 41;

/// Benchmarks of one run only that are listed, unless all are wanted.
const MOST_NAMES: usize = 6;

/// What changed first; what did not only if `all` is wanted, else as a number.
pub fn comparison(comparison: &Comparison, all: bool) -> String {
    let mut text = String::new();
    let rows = comparison.rows.iter();
    let shown: Vec<&Row> = rows
        .filter(|row| all || row.verdict != Verdict::Same)
        .collect();
    if !shown.is_empty() {
        text += &format!("{}\n", table(&shown));
        text += &format!(
            "B/A: ratio of the hot medians. interval: its confidence interval, 99 % for all benchmarks together.\n\
             Noise: {:.1} %; smaller differences are not reported.\n",
            100.0 * comparison.noise
        );
    }
    for (side, names) in [
        ("A", &comparison.only_before),
        ("B", &comparison.only_after),
    ] {
        let most = if all { names.len() } else { MOST_NAMES };
        for name in names.iter().take(most) {
            text += &format!("Only in {side}: {name}\n");
        }
        if names.len() > most {
            let more = names.len() - most;
            text += &format!("Only in {side}: {more} more; --all shows them\n");
        }
    }
    let hidden = comparison.rows.len() - shown.len();
    if hidden > 0 {
        let within = 100.0 * SAME_WITHIN;
        text += &format!("Not shown: {hidden} the same within {within} %; --all shows them.\n");
    }
    text
}

fn table(rows: &[&Row]) -> Table {
    let mut table = with_header(&[
        "benchmark",
        "verdict",
        "A ms",
        "B ms",
        "B/A",
        "interval",
        "samples",
    ]);
    for row in rows {
        table.add_row([
            shortened(&row.name, NAME_WIDTH),
            row.verdict.name().to_string(),
            milliseconds(row.before_ms),
            milliseconds(row.after_ms),
            ratio(row.ratio),
            format!("{} {}", ratio(row.ratio_low), ratio(row.ratio_high)),
            format!("{} {}", row.samples_before, row.samples_after),
        ]);
    }
    align_right(&mut table, 2..7);
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    table
}

/// Four digits, or as many as stand before the point.
fn ratio(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 1e4 => ">9999".to_string(),
        ratio if ratio >= 1000.0 => format!("{ratio:.0}"),
        ratio if ratio >= 100.0 => format!("{ratio:.1}"),
        ratio if ratio >= 10.0 => format!("{ratio:.2}"),
        ratio => format!("{ratio:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(verdict: Verdict) -> Row {
        Row {
            name: "folder/of/inputs.safetensors/uniform/bf16/backward/deterministic".to_string(),
            verdict,
            before_ms: 0.01234,
            after_ms: 0.02345,
            ratio: 1.9,
            ratio_low: 12.34567,
            ratio_high: f64::INFINITY,
            samples_before: 1000,
            samples_after: 1000,
        }
    }

    fn shown(all: bool) -> String {
        let comparison = Comparison {
            rows: vec![row(Verdict::Unclear), row(Verdict::Same)],
            only_before: vec!["gone".to_string()],
            only_after: Vec::new(),
            notes: Vec::new(),
            noise: 0.01,
        };
        super::comparison(&comparison, all)
    }

    #[test]
    fn fits_100_columns_and_keeps_the_end_of_names() {
        let text = shown(true);
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{text}");
        }
        for part in [
            "/bf16/backward/deterministic",
            "UNCLEAR",
            "SAME",
            "12.35 >9999",
            "1000 1000",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn what_is_the_same_is_a_number() {
        let text = shown(false);
        assert!(!text.contains(" SAME "), "{text}");
        assert!(text.contains("Not shown: 1 "), "{text}");
        assert!(text.contains("Only in A: gone"), "{text}");
    }
}
