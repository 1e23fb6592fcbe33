//! Records read back.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::upgrade::upgraded;
use super::{BenchRecord, CountersRecord, Line, ProbeRecord, SCHEMA};
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
    /// The last line was cut short, as an interruption leaves it.
    pub cut_short: bool,
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

    /// What to call it: its folder if the file is one of the usual names, else the file without its ending.
    pub fn name(&self) -> String {
        let file = self.path.file_stem().unwrap_or(self.path.as_os_str());
        let folder = self.path.parent().and_then(Path::file_name);
        let usual = ["bench", "probe", "counters"]
            .iter()
            .any(|&name| file == name);
        let name = match folder {
            Some(folder) if usual => folder,
            _ => file,
        };
        name.to_string_lossy().into_owned()
    }

    fn expect_something(self) -> Result<Self> {
        match self.benches.is_empty() && self.probes.is_empty() && self.counters.is_empty() {
            false => Ok(self),
            true => Err(Error::Records {
                file: self.path,
                line: None,
                found: "none".to_string(),
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
                Ok(Some(line)) => self.add(line),
                Ok(None) if !strict => {}
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

    fn add(&mut self, line: Line) {
        match line {
            Line::Bench(record) => self.benches.push(*record),
            Line::Probe(record) => self.probes.push(*record),
            Line::Counters(record) => self.counters.push(*record),
        }
    }
}

/// A record; none for an object that is not one of ours; in words, what is wrong with one that is.
fn parsed(line: &str) -> std::result::Result<Option<Line>, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("no JSON: {error}"))?;
    let value = match value.get("schema").and_then(Value::as_u64) {
        None => return Ok(None),
        Some(1) => upgraded(value)?,
        Some(schema) if schema == u64::from(SCHEMA) => value,
        Some(schema) => {
            return Err(format!(
                "a record of form {schema}, where this version reads 1 to {SCHEMA}"
            ));
        }
    };
    let record: Line = serde_json::from_value(value).map_err(|error| error.to_string())?;
    match &record {
        Line::Bench(bench) if !bench.is_honest() => {
            Err("a time of a result that failed its verification".to_string())
        }
        _ => Ok(Some(record)),
    }
}
