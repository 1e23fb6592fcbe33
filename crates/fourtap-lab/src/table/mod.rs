//! Records as text tables.

mod comparison;
mod probe;
mod rungs;
mod tune;

use crate::error::Result;
use crate::operators::{OPERATORS, Operator};
use crate::record::{BenchRecord, ProbeRecord};

pub use fourtap_admin::table::{align_right, shortened, with_header};

pub use self::comparison::comparison;
pub use self::probe::{probe_results, probes};
pub use self::rungs::{cases, rungs, standing, times, verdict};
pub use self::tune::{spaces, tuned};

/// What every table of results says.
pub const VERIFIED: &str = "Every result was verified against the f64 oracle.";

/// Letters of a workload's name that fit a table of 100 columns.
pub const NAME_WIDTH: usize = 28;

/// Columns a terminal has at least.
const COLUMNS: usize = 100;

/// Every result of `fourtap bench` a row, in a table for each operator and what it was computed from.
pub fn bench_results(records: &[BenchRecord], ceilings: &[ProbeRecord], on_cuda: bool) -> String {
    let timed = || records.iter().filter(|record| record.hot.is_some());
    let mut variants: Vec<Option<&'static str>> = timed().map(|it| it.problem.variant()).collect();
    variants.sort_unstable();
    variants.dedup();
    let table = |operator: &'static dyn Operator, variant: Option<&'static str>| {
        let is_of_it =
            |it: &&BenchRecord| it.operator() == operator && it.problem.variant() == variant;
        let of_it: Vec<_> = timed().filter(is_of_it).collect();
        let heading = variant.map_or(String::new(), |variant| format!("From {variant}\n"));
        let table = || heading + &operator.table(&of_it, ceilings, on_cuda);
        (!of_it.is_empty()).then(table)
    };
    let all = OPERATORS.into_iter().flat_map(|operator| {
        let of_variant = |&variant: &_| table(operator, variant);
        variants.iter().filter_map(of_variant).collect::<Vec<_>>()
    });
    all.collect::<Vec<String>>().join("\n")
}

/// The built-in workloads, in a table for each operator.
pub fn workloads() -> Result<String> {
    let tables = OPERATORS.iter().map(|operator| operator.list());
    Ok(tables.collect::<Result<Vec<_>>>()?.join("\n"))
}

/// What a table of results is of.
pub fn on_device(records: &[&BenchRecord]) -> String {
    let device = records.first().map(|record| record.device.in_words());
    device.map_or(String::new(), |device| format!("On {device}.\n"))
}

/// "1 thread", "2 threads".
pub fn threads(count: usize) -> String {
    format!("{count} thread{}", if count == 1 { "" } else { "s" })
}

/// The text, or a dash where there is none.
pub fn or_dash(text: Option<String>) -> String {
    text.unwrap_or("-".to_string())
}

/// Three digits that matter, or more, whatever the scale.
pub fn milliseconds(milliseconds: f64) -> String {
    let decimals = match milliseconds {
        time if time >= 1000.0 => 0,
        time if time >= 100.0 => 1,
        time if time >= 10.0 => 2,
        time if time >= 0.1 => 3,
        _ => 5,
    };
    format!("{milliseconds:.decimals$}")
}

/// Lines of at most [`COLUMNS`], all but the first indented.
pub fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > COLUMNS {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            width = indent;
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        let text = wrapped(&"word ".repeat(60), 2);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS));
        assert!(text.lines().skip(1).all(|line| line.starts_with("  word")));
        assert_eq!(text.split_whitespace().count(), 60);
        assert_eq!(wrapped("one", 4), "one\n");
    }

    #[test]
    fn times_keep_at_least_three_digits() {
        let times = [0.00456, 0.456, 12.3456, 123.456, 4321.0].map(milliseconds);
        assert_eq!(times, ["0.00456", "0.456", "12.35", "123.5", "4321"]);
    }
}
