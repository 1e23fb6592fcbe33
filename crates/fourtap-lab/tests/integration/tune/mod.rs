//! `fourtap tune`: whatever becomes of an attempt is recorded, what is right and faster is kept, and calls go by it.

mod requests;
mod searches;

use std::fs;
use std::path::Path;

use crate::common::{Outcome, command};
use serde_json::Value;
use tempfile::TempDir;

const WORKLOAD: &str = r#"
name = "tiny"
description = "small enough to try much"
images = 1
queries = 40
heads = 2
channels = 8
levels = [[8, 8], [4, 4]]
points = 4
reference = "random"
"#;

/// Everything but tasks_each, which has six values.
const FIXED: &str = "task_bytes=524288,serial_work=65536";

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tiny.toml"), WORKLOAD).unwrap();
    folder
}

fn own_table(folder: &Path) -> std::path::PathBuf {
    folder.join("own.tsv")
}

fn run(folder: &Path, arguments: &[&str]) -> Outcome {
    run_with_faults(folder, "", arguments)
}

/// The same with faults in some attempts, as in "tasks_each=8:crash,tasks_each=16:hang".
fn run_with_faults(folder: &Path, faults: &str, arguments: &[&str]) -> Outcome {
    let mut command = command(folder);
    command.env("FOURTAP_TUNE", own_table(folder));
    command.env("FOURTAP_FAULTS", faults);
    let output = command.args(arguments).output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A search, but for how far it goes.
const SEARCH: [&str; 6] = [
    "tune",
    "tiny.toml",
    "--direction",
    "forward",
    "--set",
    FIXED,
];

/// Enough for the six values, one after another.
const ALL_SIX: [&str; 4] = ["--generations", "2", "--population", "3"];

/// A search of all of them.
fn search(folder: &Path, more: &[&str]) -> Outcome {
    search_with_faults(folder, "", more)
}

fn search_with_faults(folder: &Path, faults: &str, more: &[&str]) -> Outcome {
    let arguments = [&SEARCH[..], &ALL_SIX, more].concat();
    run_with_faults(folder, faults, &arguments)
}

fn records(folder: &Path, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("tune.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines
        .filter(|record: &Value| record["kind"] == kind)
        .collect()
}
