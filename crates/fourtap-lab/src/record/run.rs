//! Records read back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::python::compared;
use super::upgrade::upgraded;
use super::{
    AttemptRecord, BenchRecord, CountersRecord, InterruptedRecord, Line, PeersRecord, ProbeRecord,
    PythonRecord, RungRecord, SCHEMA, Timing, TunedRecord, TurnsRecord,
};
use crate::error::{Error, Result};

/// Everything of one results file, or of all of a folder.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Where it came from.
    pub path: PathBuf,
    /// Benchmarks, in the order measured.
    pub benches: Vec<BenchRecord>,
    /// Probes, likewise.
    pub probes: Vec<ProbeRecord>,
    /// Counters, likewise.
    pub counters: Vec<CountersRecord>,
    /// Rungs of the ladder, likewise.
    pub rungs: Vec<RungRecord>,
    /// What tuning tried, likewise.
    pub attempts: Vec<AttemptRecord>,
    /// What tuning found, likewise.
    pub tuned: Vec<TunedRecord>,
    /// Programs timed in turns, likewise.
    pub turns: Vec<TurnsRecord>,
    /// Implementations beside others, likewise.
    pub peers: Vec<PeersRecord>,
    /// Calls from Python, likewise.
    pub python: Vec<PythonRecord>,
    /// What lines of other kinds there were, in words.
    pub passed_over: String,
    /// The last line was cut short, as an interruption leaves it.
    pub cut_short: bool,
    /// The run was ended by Ctrl-C and not continued.
    pub interrupted: Option<InterruptedRecord>,
}

impl Run {
    /// Of a file, or of all `.jsonl` files of a folder in the order of their names. In a folder other kinds of lines
    /// than ours are passed over; a file that is named must hold nothing else.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |source| Error::Read {
            file: path.to_path_buf(),
            source,
        };
        let mut run = Run {
            path: path.to_path_buf(),
            ..Run::default()
        };
        if !fs::metadata(path).map_err(failed)?.is_dir() {
            run.add_file(path, true)?;
            return run.expect_something();
        }
        let mut files = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file
                .extension()
                .is_some_and(|extension| extension == "jsonl")
            {
                files.push(file);
            }
        }
        files.sort();
        for file in files {
            run.add_file(&file, false)?;
        }
        run.expect_something()
    }

    /// Of text in memory, as a file of this name.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let mut run = Run {
            path: path.to_path_buf(),
            ..Run::default()
        };
        run.add_text(path, text, true)?;
        Ok(run)
    }

    /// What an interrupted command has written to its --json file before; nothing if it was not begun.
    pub fn so_far(json: Option<&Path>) -> Result<Self> {
        let file = match json {
            Some(file) if file.as_os_str() != "-" => file,
            _ => {
                return Err(Error::Incomplete {
                    option: "--resume",
                    expected: "--json FILE to continue",
                });
            }
        };
        match fs::read_to_string(file) {
            // Interrupted before the first was whole, it holds none: no mistake here.
            Ok(text) => Run::parse(file, &text),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(Run::default()),
            Err(source) => Err(Error::Read {
                file: file.to_path_buf(),
                source,
            }),
        }
    }

    /// What to call it: its folder if the file is one of the usual names, else the file without its ending.
    pub fn name(&self) -> String {
        let file = self.path.file_stem().unwrap_or(self.path.as_os_str());
        let folder = self.path.parent().and_then(Path::file_name);
        let usual = ["bench", "probe", "counters", "ladder", "tune", "peers"]
            .iter()
            .any(|&name| file == name);
        let name = match folder {
            Some(folder) if usual => folder,
            _ => file,
        };
        name.to_string_lossy().into_owned()
    }

    fn expect_something(self) -> Result<Self> {
        let is_empty = self.benches.is_empty()
            && self.probes.is_empty()
            && self.counters.is_empty()
            && self.rungs.is_empty()
            && self.attempts.is_empty()
            && self.tuned.is_empty()
            && self.turns.is_empty()
            && self.peers.is_empty()
            && self.python.is_empty();
        match is_empty {
            false => Ok(self),
            true => Err(Error::Records {
                file: self.path,
                line: None,
                found: match self.passed_over.is_empty() {
                    true => "none".to_string(),
                    false => format!("only {}, of which a report knows nothing", self.passed_over),
                },
            }),
        }
    }

    fn add_file(&mut self, file: &Path, strict: bool) -> Result<()> {
        let text = fs::read_to_string(file).map_err(|source| Error::Read {
            file: file.to_path_buf(),
            source,
        })?;
        self.add_text(file, &text, strict)
    }

    fn add_text(&mut self, file: &Path, text: &str, strict: bool) -> Result<()> {
        let ends_whole = text.is_empty() || text.ends_with('\n');
        let count = text.lines().count();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            match parsed(line) {
                Ok(Some(line)) => self.add(line, file),
                Ok(None) if !strict => {
                    if self.passed_over.is_empty() {
                        self.passed_over = format!("lines as in {}", file.display());
                    }
                }
                Err(_) if index + 1 == count && !ends_whole => self.cut_short = true,
                Ok(None) | Err(_) => {
                    return Err(Error::Records {
                        file: file.to_path_buf(),
                        line: Some(index + 1),
                        found: match parsed(line) {
                            Err(found) => found,
                            Ok(_) => "an object of another kind".to_string(),
                        },
                    });
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, line: Line, file: &Path) {
        // Whatever comes after it continues the run.
        self.interrupted = None;
        match line {
            Line::Interrupted(record) => self.interrupted = Some(record),
            Line::Bench(record) => self.benches.push(*record),
            Line::Probe(record) => self.probes.push(*record),
            Line::Counters(record) => self.counters.push(*record),
            Line::Rung(record) => self.rungs.push(*record),
            Line::Attempt(record) => self.attempts.push(*record),
            Line::Tuned(record) => self.tuned.push(*record),
            Line::Turns(record) => self.turns.push(*record),
            Line::Peers(mut records) => self.peers.append(&mut records),
            Line::Python(mut record) => {
                let name = file.file_stem().unwrap_or(file.as_os_str());
                record.file = name.to_string_lossy().into_owned();
                self.python.push(*record);
            }
        }
    }
}

/// A record; none for an object that is not one of ours; in words, what is wrong with one that is.
fn parsed(line: &str) -> std::result::Result<Option<Line>, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("no JSON: {error}"))?;
    if value.get("record").is_some_and(|record| record == "peers") {
        let record: PeersRecord =
            serde_json::from_value(value).map_err(|error| error.to_string())?;
        return match record.flaw() {
            Some(flaw) => Err(flaw.to_string()),
            None => Ok(Some(Line::Peers(vec![record]))),
        };
    }
    if let Some(record) = PythonRecord::of(&value) {
        return Ok(Some(Line::Python(Box::new(record?))));
    }
    if let Some(records) = compared(&value) {
        return Ok(Some(Line::Peers(records)));
    }
    let value = match value.get("schema").and_then(Value::as_u64) {
        None => return Ok(None),
        Some(1) => upgraded(value)?,
        Some(schema) if schema == u64::from(SCHEMA) => value,
        Some(schema) => {
            return Err(format!(
                "a record of schema {schema}, where this version reads 1 to {SCHEMA}"
            ));
        }
    };
    let record: Line = serde_json::from_value(value).map_err(|error| error.to_string())?;
    match &record {
        Line::Bench(bench) if !bench.is_honest() => {
            Err("a time of a result that failed its verification".to_string())
        }
        Line::Bench(bench) if !bench.timings().all(Timing::is_sound) => {
            Err("a timing without samples, or with one that is no time".to_string())
        }
        Line::Rung(rung) if !rung.is_honest() => {
            Err("a time of a rung that was not right".to_string())
        }
        Line::Rung(rung) if !rung.timings().all(Timing::is_sound) => {
            Err("a timing without samples, or with one that is no time".to_string())
        }
        Line::Attempt(attempt) if !attempt.is_honest() => {
            Err("a time of an attempt that was not right".to_string())
        }
        Line::Attempt(attempt) if !attempt.hot.iter().all(Timing::is_sound) => {
            Err("a timing without samples, or with one that is no time".to_string())
        }
        Line::Turns(turns) if !turns.is_sound() => {
            Err("a comparison without rounds, or with one that has no time".to_string())
        }
        Line::Tuned(tuned) if tuned.kept().is_none() => {
            Err("a search without the finalist it names".to_string())
        }
        _ => Ok(Some(record)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bench() -> Value {
        let timing = json!({"samples_ms": [1.0, 2.0], "median_ms": 1.5, "ci_low_ms": 1.0, "ci_high_ms": 2.0,
            "spread": 0.1, "launches_a_sample": 1, "input_sets": 1});
        json!({"kind": "bench", "schema": SCHEMA, "version": "0", "unix_time": 0, "workload": "w",
            "distribution": "local", "seed": 0,
            "problem": {"images": 1, "queries": 1, "heads": 1, "channels": 1, "points": 1, "pixels": 1, "levels": []},
            "dtypes": {"value": "f32", "locations": "f32", "weights": "f32"}, "direction": "forward",
            "device": {"kind": "cpu", "model": null}, "kernel": {"words": "none", "reproducible": true},
            "verification": {"passed": true, "rows": 1, "tensors": []}, "hot": timing, "in_bounds_fraction": 1.0,
            "traffic": {"compulsory_bytes": 1, "gathered_bytes": 1, "flop": 1}})
    }

    fn read(text: &str) -> Result<Run> {
        Run::parse(Path::new("results.jsonl"), text)
    }

    #[test]
    fn a_line_cut_short_at_the_end_is_left_out_and_told() {
        let (whole, other) = (bench().to_string(), bench().to_string());
        for cut in [1, other.len() / 2, other.len() - 1] {
            let run = read(&format!("{whole}\n{}", &other[..cut])).unwrap();
            assert_eq!((run.benches.len(), run.cut_short), (1, true), "{cut}");
        }
        let run = read(&format!("{whole}\n{other}")).unwrap();
        assert_eq!((run.benches.len(), run.cut_short), (2, false));
    }

    #[test]
    fn an_interruption_counts_until_the_run_is_continued() {
        let whole = bench();
        let end = json!({"kind": "interrupted", "schema": SCHEMA, "version": "0", "unix_time": 0, "measured": 1,
            "planned": 3});
        let interrupted = |text: &str| {
            let run = read(text).unwrap();
            run.interrupted.map(|it| (run.benches.len(), it.in_words()))
        };
        let words = "interrupted after 1 of 3 benchmarks".to_string();
        assert_eq!(interrupted(&format!("{whole}\n{end}\n")), Some((1, words)));
        assert_eq!(interrupted(&format!("{whole}\n{end}\n{whole}\n")), None);
    }

    #[test]
    fn what_is_no_record_is_refused_with_its_file_and_line() {
        let changed = |pointer: &str, to: Value| {
            let mut record = bench();
            *record.pointer_mut(pointer).unwrap() = to;
            record.to_string()
        };
        let bad = [
            ("garbage".to_string(), "no JSON"),
            ("[1, 2]".to_string(), "an object of another kind"),
            ("{\"a\": 1}".to_string(), "an object of another kind"),
            (
                changed("/schema", json!(99)),
                "a record of schema 99, where this version reads 1 to 2",
            ),
            (changed("/kind", json!("poem")), "poem"),
            (changed("/direction", json!("sideways")), "sideways"),
            (
                changed("/verification/passed", json!(false)),
                "failed its verification",
            ),
            (
                changed("/hot/samples_ms", json!([])),
                "a timing without samples",
            ),
            (changed("/hot/samples_ms", json!([1.0, 0.0])), "no time"),
            (changed("/hot/samples_ms", json!([-1.0])), "no time"),
        ];
        for (line, expected) in bad {
            let whole = bench();
            // Not the last line, so none of them can pass for one that was cut short.
            let text = format!("{whole}\n{line}\n{whole}\n");
            let error = read(&text).unwrap_err().to_string();
            assert!(error.starts_with("results.jsonl, line 2: "), "{error}");
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
