//! `fourtap bench --against`: two builds in turns.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Outcome, command, fails, fourtap, outcome};

/// Small enough that all rounds take a few seconds.
const WORKLOAD: &str = r#"
name = "tiny"
description = "one small level"
images = 1
queries = 16
heads = 1
channels = 16
levels = [[8, 8]]
points = 2
reference = "random"
"#;

/// With a program that is this one, but never slower.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tiny.toml"), WORKLOAD).unwrap();
    let other = folder.path().join("other");
    let program = env!("CARGO_BIN_EXE_fourtap");
    let script = format!("#!/bin/sh\nFOURTAP_SLOWDOWN=0 exec '{program}' \"$@\"\n");
    fs::write(&other, script).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// This program, so much slower, against the other.
fn against(folder: &Path, slowdown: &str, more: &[&str]) -> Outcome {
    let words = ["bench", "tiny.toml", "--quick", "--threads", "1"];
    let mut command = command(folder);
    command.args(words).args(["--dtype", "f32"]);
    command.args(["--direction", "forward", "--distribution", "local"]);
    command.args(["--against", "./other"]).args(more);
    command.env("FOURTAP_SLOWDOWN", slowdown);
    outcome(&mut command)
}

#[test]
fn a_build_that_is_slower_is_called_so_and_fails() {
    let folder = folder();
    let more = ["--fail-on", "slower:50%", "--json", "turns.jsonl"];
    let outcome = against(folder.path(), "4.0", &more);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.stdout.contains("A: ./other"), "{outcome:?}");
    let last = outcome.stdout.lines().last().unwrap();
    assert_eq!(last, "1 slower, 0 faster, 0 the same, 0 unclear");
    let record = fs::read_to_string(folder.path().join("turns.jsonl")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["kind"], "turns");
    assert_eq!(record["verdict"], "SLOWER");
    assert_eq!(record["rounds"].as_array().unwrap().len(), 16);

    let report = ["report", "turns.jsonl", "-o", "a.html"];
    let outcome = fourtap(folder.path(), report);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let page = fs::read_to_string(folder.path().join("a.html")).unwrap();
    assert!(page.contains("two builds in turns"));
}

#[test]
fn what_is_no_fourtap_is_refused() {
    let folder = folder();
    for (other, expected) in [
        ("/bin/true", "found one that ended with exit status: 0"),
        ("./none", "found one that cannot be started"),
        ("/bin/echo", "found one that says \"bench --in-turns"),
    ] {
        let words = ["bench", "tiny.toml", "--device", "cpu", "--against", other];
        let outcome = fourtap(folder.path(), words);
        fails(other, &outcome, expected);
    }
    let words = ["bench", "tiny.toml", "--fail-on", "slower"];
    let outcome = fourtap(folder.path(), words);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
}

#[test]
fn a_process_whose_master_has_gone_ends() {
    let folder = folder();
    let words = ["bench", "tiny.toml", "--in-turns", "--device", "cpu"];
    let outcome = fourtap(folder.path(), words);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.starts_with("{\"hello\":"), "{outcome:?}");
}
