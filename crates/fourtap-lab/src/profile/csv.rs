//! What `ncu --csv` prints: the raw page (a column a metric) or the long form (a row a metric).

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use super::launches::Launch;
use crate::error::{Error, Result};

/// How the header of either form begins.
const HEADER: &str = "\"ID\",";

/// What the raw page says of the machine whatever the kernel does: hundreds of numbers, none of them counted.
const OF_THE_MACHINE: [&str; 5] = ["device__", "profiler__", "nvlink__", "numa__", "c2clink__"];

/// What the long form calls metrics that matter here.
const LABELS: [(&str, &str); 9] = [
    ("Duration", "gpu__time_duration.sum"),
    (
        "DRAM Throughput",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    (
        "L1/TEX Cache Throughput",
        "l1tex__throughput.avg.pct_of_peak_sustained_active",
    ),
    (
        "L2 Cache Throughput",
        "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    (
        "Compute (SM) Throughput",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    ("L1/TEX Hit Rate", "l1tex__t_sector_hit_rate.pct"),
    ("L2 Hit Rate", "lts__t_sector_hit_rate.pct"),
    (
        "Achieved Occupancy",
        "sm__warps_active.avg.pct_of_peak_sustained_active",
    ),
    ("Registers Per Thread", "launch__registers_per_thread"),
];

/// The launches in ncu's output, in their order. `file` is what errors name.
pub fn launches(file: &Path, text: &str) -> Result<Vec<Launch>> {
    let wrong = |line: Option<usize>, found: String| Error::CounterFile {
        file: file.to_path_buf(),
        line,
        found,
    };
    let mut rows = rows(text);
    let Some(header) = rows.next() else {
        return Err(wrong(None, "no header \"ID\",…".to_string()));
    };
    let header = header.map_err(|line| wrong(Some(line), "a quote without an end".to_string()))?;
    let table = Table {
        columns: header.fields,
    };
    let Some(kernel) = table.column("Kernel Name") else {
        return Err(wrong(
            Some(header.line),
            "no column \"Kernel Name\"".to_string(),
        ));
    };
    let long = table.long();
    let mut found = ParsedCounters::default();
    for row in rows {
        let row = row.map_err(|line| wrong(Some(line), "a quote without an end".to_string()))?;
        let id = row.fields.first().map_or("", String::as_str);
        let is_row = id.is_empty() || id.bytes().all(|byte| byte.is_ascii_digit());
        if row.fields.len() != table.columns.len() {
            // What the program itself printed lies between; a row of the table cut short does not pass for it.
            if row.fields.len() > 1 && is_row {
                let expected = table.columns.len();
                let fields = row.fields.len();
                return Err(wrong(
                    Some(row.line),
                    format!("{fields} fields where the header has {expected}"),
                ));
            }
            continue;
        }
        let wrong = |found| wrong(Some(row.line), found);
        match (&long, id.is_empty()) {
            (None, true) => found.units = row.fields,
            (Some(_), true) => {}
            (_, false) if !is_row => {}
            (None, false) => {
                let launch = found.launch(id, &row.fields[kernel]);
                for (index, name) in table.metrics() {
                    let unit = found.units.get(index).map_or("", String::as_str);
                    if let Some(value) = number(&row.fields[index]).map_err(wrong)? {
                        let value = value * factor(unit);
                        found.launches[launch].metrics.insert(name.clone(), value);
                    }
                }
            }
            (Some([name, unit, value]), _) => {
                let launch = found.launch(id, &row.fields[kernel]);
                let Some(name) = metric(&row.fields[*name]) else {
                    continue;
                };
                if let Some(value) = number(&row.fields[*value]).map_err(wrong)? {
                    let value = value * factor(&row.fields[*unit]);
                    let metrics = &mut found.launches[launch].metrics;
                    metrics.insert(name.to_string(), value);
                }
            }
        }
    }
    Ok(found.launches)
}

struct Table {
    columns: Vec<String>,
}

impl Table {
    fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    /// Where name, unit and value are in the long form; none in the raw one.
    fn long(&self) -> Option<[usize; 3]> {
        Some([
            self.column("Metric Name")?,
            self.column("Metric Unit")?,
            self.column("Metric Value")?,
        ])
    }

    fn metrics(&self) -> impl Iterator<Item = (usize, &String)> {
        let columns = self.columns.iter().enumerate();
        let of_machine = |name: &str| OF_THE_MACHINE.iter().any(|part| name.starts_with(part));
        columns.filter(move |(_, name)| name.contains("__") && !of_machine(name))
    }
}

#[derive(Default)]
struct ParsedCounters {
    launches: Vec<Launch>,
    /// By the profiler's numbers of launches.
    places: BTreeMap<String, usize>,
    units: Vec<String>,
}

impl ParsedCounters {
    fn launch(&mut self, id: &str, kernel: &str) -> usize {
        let next = self.launches.len();
        let place = *self.places.entry(id.to_string()).or_insert(next);
        if place == next {
            self.launches.push(Launch {
                // Without its parameters.
                kernel: kernel
                    .split('(')
                    .next()
                    .unwrap_or(kernel)
                    .trim()
                    .to_string(),
                metrics: BTreeMap::new(),
            });
        }
        place
    }
}

/// The metric's own name, for one that matters or that is given by it.
fn metric(name: &str) -> Option<&str> {
    if name.contains("__") {
        return Some(name);
    }
    let known = LABELS.iter().find(|(label, _)| *label == name);
    known.map(|(_, metric)| *metric)
}

/// A number, with or without separators of thousands; none where the profiler has none.
fn number(text: &str) -> std::result::Result<Option<f64>, String> {
    let text = text.trim();
    let absent = ["", "n/a", "N/A", "nan", "-nan", "inf", "no data"];
    // Some metrics are names, or lists of instances.
    let other = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '(');
    if absent.contains(&text) || other {
        return Ok(None);
    }
    let mut groups = text.split('.').next().unwrap_or(text).split(',').skip(1);
    let grouped = groups.all(|group| group.len() == 3);
    let parsed = text.replace(',', "").parse::<f64>().ok();
    match parsed.filter(|number| grouped && number.is_finite()) {
        Some(number) => Ok(Some(number)),
        // Several instances, as "1;2;3": none of them is the metric.
        None if text.contains(';') => Ok(None),
        None => Err(format!("{text:?} where a number should be")),
    }
}

/// What turns a unit into its base: seconds, bytes.
fn factor(unit: &str) -> f64 {
    let base = unit.split('/').next().unwrap_or(unit);
    match base {
        "ns" | "nsecond" => 1e-9,
        "us" | "usecond" => 1e-6,
        "ms" | "msecond" => 1e-3,
        "Kbyte" => 1e3,
        "Mbyte" => 1e6,
        "Gbyte" => 1e9,
        "Tbyte" => 1e12,
        _ => 1.0,
    }
}

struct Row {
    /// Counted from 1.
    line: usize,
    fields: Vec<String>,
}

/// The rows from the header on, without ncu's own lines; an error is the line of a quote that never ends.
fn rows(text: &str) -> impl Iterator<Item = std::result::Result<Row, usize>> {
    let skipped: Vec<&str> = text
        .split_inclusive('\n')
        .take_while(|line| !line.starts_with(HEADER))
        .collect();
    let mut rest = &text[skipped.iter().map(|line| line.len()).sum::<usize>()..];
    let mut line = skipped.len() + 1;
    std::iter::from_fn(move || {
        // What programs print may hold any number of quotes; a row of the table begins with one.
        while !rest.is_empty() && !rest.starts_with('"') {
            let end = rest.find('\n').map_or(rest.len(), |end| end + 1);
            rest = &rest[end..];
            line += 1;
        }
        if rest.is_empty() {
            return None;
        }
        let first = line;
        let Some((fields, length)) = row(rest) else {
            rest = "";
            return Some(Err(first));
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
        Some(Ok(Row {
            line: first,
            fields,
        }))
    })
}

/// What stands behind the text while a row is read: only a quote that does not end swallows more than the first letter.
const SENTINEL: &str = "\nend";

/// The fields up to the end of a line outside quotes, and how many bytes that were; none if a quote does not end.
fn row(text: &str) -> Option<(Vec<String>, usize)> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(text.as_bytes().chain(SENTINEL.as_bytes()));
    let mut record = csv::StringRecord::new();
    reader.read_record(&mut record).ok()?;
    let length = usize::try_from(reader.position().byte()).ok()?;
    let fields = record.iter().map(str::to_string).collect();
    (length <= text.len() + 1).then_some((fields, length.min(text.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Launch>> {
        launches(Path::new("a.csv"), text)
    }

    #[test]
    fn numbers_have_separators_or_not() {
        for (text, expected) in [
            ("1,234,567", Some(1_234_567.0)),
            ("1,234.5", Some(1234.5)),
            ("12", Some(12.0)),
            ("1.5e+06", Some(1.5e6)),
            ("-0.5", Some(-0.5)),
            ("n/a", None),
            ("", None),
            ("nan", None),
            ("1;2;3", None),
            ("PreferL1", None),
        ] {
            assert_eq!(number(text), Ok(expected), "{text}");
        }
        for text in ["1,5", "12,34,567", "1.2.3", "0x10", "9e999"] {
            assert!(number(text).is_err(), "{text}");
        }
    }

    #[test]
    fn units_come_to_their_base() {
        for (unit, expected) in [
            ("ns", 1e-9),
            ("usecond", 1e-6),
            ("Kbyte/block", 1e3),
            ("byte", 1.0),
            ("%", 1.0),
            ("", 1.0),
        ] {
            assert_eq!(factor(unit), expected, "{unit}");
        }
    }

    #[test]
    fn quotes_hold_commas_quotes_and_lines() {
        let (fields, length) = row("\"a,b\",\"c\"\"d\",\"e\nf\"\nrest").unwrap();
        assert_eq!(fields, ["a,b", "c\"d", "e\nf"]);
        assert_eq!(length, 19);
        assert_eq!(row("\"never ends"), None);
        assert_eq!(row("\"never ends\n"), None);
        let (fields, length) = row("\"a\",\"ends\n\"").unwrap();
        assert_eq!((fields[1].as_str(), length), ("ends\n", 11));
        let (fields, length) = row("\"a\",\"b\"\r\n\"c\"").unwrap();
        assert_eq!(fields, ["a", "b"]);
        assert!(length == 8 || length == 9, "{length}");
    }

    #[test]
    fn hostile_files_are_refused_with_their_line() {
        for (text, line, expected) in [
            ("", None, "no header"),
            ("nothing of the kind\n", None, "no header"),
            ("\"ID\",\"Name\"\n\"0\",\"a\"\n", Some(1), "no column"),
            (
                "==PROF== x\n\"ID\",\"Kernel Name\",\"a__b.sum\"\n\"0\",\"k\"\n",
                Some(3),
                "2 fields where the header has 3",
            ),
            (
                "\"ID\",\"Kernel Name\",\"a__b.sum\"\n\"0\",\"k\",\"1,2\"\n",
                Some(2),
                "where a number should be",
            ),
            (
                "\"ID\",\"Kernel Name\",\"a__b.sum\"\n\"0\",\"k",
                Some(2),
                "a quote without an end",
            ),
        ] {
            match read(text) {
                Err(Error::CounterFile {
                    line: at, found, ..
                }) => {
                    assert_eq!(at, line, "{text}");
                    assert!(found.contains(expected), "{found}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn output_of_the_program_lies_between() {
        let text = "==PROF== Connected\nhello \"there\n\"ID\",\"Kernel Name\",\"a__b.sum\"\n\"\",\"\",\"ns\"\nsaid \"once\n\
                    \"0\",\"k(int, float)\",\"1,000\"\n\"1\",\"k(int, float)\",\"n/a\"\n==PROF== Disconnected\n";
        let launches = read(text).unwrap();
        assert_eq!(launches.len(), 2);
        assert_eq!(launches[0].kernel, "k");
        assert!((launches[0].metrics["a__b.sum"] - 1e-6).abs() < 1e-18);
        assert!(launches[1].metrics.is_empty());
    }
}
