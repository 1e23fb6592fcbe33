//! `fourtap bench`: only what is right is timed, and every result is a record.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::{command, encode, entry, fails, folder_with, fourtap, names, valid, with};

const SMALL: &str = r#"
name = "small"
description = "milliseconds to time"
images = 1
queries = 20
heads = 2
channels = 8
levels = [[6, 7], [3, 3]]
points = 2
reference = "raster"
"#;

/// The ceilings and the results among the lines, each of which must be a record.
fn records(lines: &str) -> (Vec<Value>, Vec<Value>) {
    let lines = lines.lines();
    let parsed = lines.map(|line| serde_json::from_str(line).expect("only JSON"));
    let (benches, others): (Vec<Value>, Vec<Value>) =
        parsed.partition(|record: &Value| record["kind"] == "bench");
    assert!(
        others.iter().all(|record| record["kind"] == "probe"),
        "{others:?}"
    );
    (others, benches)
}

fn folder_with_small() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    folder
}

#[test]
fn an_interrupted_run_continues_where_it_stopped() {
    let folder = folder_with_small();
    let results = folder.path().join("results.jsonl");
    let call = |more: &[&str]| {
        let usual = [
            "bench",
            "small.toml",
            "--device",
            "cpu",
            "--quick",
            "--dtype",
            "f32",
        ];
        let json = ["--json", "results.jsonl"];
        fourtap(folder.path(), usual.iter().chain(&json).chain(more))
    };
    let first = call(&["--direction", "forward"]);
    assert_eq!(first.code, Some(0), "{first:?}");
    let before = fs::read_to_string(&results).unwrap();
    let (_, kept) = records(&before);
    fs::write(&results, before.clone() + "{\"kind\":\"bench\",\"half").unwrap();

    let refused = call(&[]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("incomplete"), "{refused:?}");
    assert!(refused.stderr.contains("--resume"), "{refused:?}");

    let resumed = call(&["--resume"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    let after = fs::read_to_string(&results).unwrap();
    assert!(after.starts_with(&before), "nothing is lost");
    let (_, all) = records(&after);
    assert_eq!(all.len(), 2, "forward is not measured again");
    assert_eq!(all[0], kept[0]);
    assert_eq!(all[1]["direction"], "backward");
    for pass in ["forward", "backward"] {
        assert!(resumed.stdout.contains(pass), "both are shown: {resumed:?}");
    }
}

#[test]
#[cfg(unix)]
fn ctrl_c_shows_and_writes_what_was_measured() {
    let folder = folder_with_small();
    let results = folder.path().join("results.jsonl");
    let call = |more: &[&str]| {
        let mut command = command(folder.path());
        command.args(["bench", "small.toml", "--device", "cpu", "--quick"]);
        command.args(["--dtype", "f32,f16,bf16,f64", "--json", "results.jsonl"]);
        command.args(["--report", "page.html"]).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut child = call(&[]).spawn().unwrap();
    let measured = || fs::read_to_string(&results).is_ok_and(|it| it.contains("\"bench\""));
    while !measured() {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        thread::sleep(Duration::from_millis(5));
    }
    let id = child.id().to_string();
    let killed = Command::new("kill").args(["-INT", &id]).status().unwrap();
    assert!(killed.success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    let [stdout, stderr] = [ended.stdout, ended.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(stdout.contains("small"), "{stdout}");
    assert!(
        stderr.contains("of 8 benchmarks; --resume --json results.jsonl measures the rest"),
        "{stderr}"
    );
    let lines = fs::read_to_string(&results).unwrap();
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!(last["kind"], "interrupted", "{last}");
    assert_eq!(last["planned"], 8);
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("The run was interrupted after"), "{page}");

    let resumed = call(&["--resume", "--filter", "f32"]).output().unwrap();
    assert_eq!(resumed.status.code(), Some(0), "{resumed:?}");
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(!page.contains("The run was interrupted"), "{page}");
}

#[test]
fn a_report_of_another_kind_than_html_is_refused_before_anything_is_timed() {
    let folder = folder_with_small();
    for (command, name, more) in [
        ("bench", "r.pdf", &[][..]),
        ("bench", "report", &[]),
        ("tune", "r.md", &["--dry-run"]),
    ] {
        let outcome = fourtap(
            folder.path(),
            [command, "small.toml", "--report", name].iter().chain(more),
        );
        fails(
            name,
            &outcome,
            "expected a name that ends in .html, found another",
        );
        assert!(
            outcome.stderr.contains("hint: as in --report report.html"),
            "{outcome:?}"
        );
        assert_eq!(names(folder.path()).len(), 1);
    }
}

#[test]
fn a_run_interrupted_before_its_first_record_starts_over() {
    for content in ["", "{\"kind\":\"probe\",\"sch"] {
        let folder = folder_with_small();
        let results = folder.path().join("results.jsonl");
        fs::write(&results, content).unwrap();
        let usual = [
            "bench",
            "small.toml",
            "--device",
            "cpu",
            "--quick",
            "--filter",
            "local/f32/forward",
        ];
        let more = ["--json", "results.jsonl", "--resume"];
        let outcome = fourtap(folder.path(), usual.iter().chain(&more));
        assert_eq!(outcome.code, Some(0), "{content}: {outcome:?}");
        let lines = fs::read_to_string(&results).unwrap();
        assert_eq!(records(&lines).1.len(), 1, "{content}");
    }
}

#[test]
fn a_report_replaces_a_report_and_nothing_else() {
    let folder = folder_with_small();
    let call = |page: &str| {
        let usual = [
            "bench",
            "small.toml",
            "--device",
            "cpu",
            "--quick",
            "--filter",
            "local/f32/forward",
        ];
        fourtap(folder.path(), usual.iter().chain(&["--report", page]))
    };
    for _ in 0..2 {
        let outcome = call("out.html");
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let page = fs::read_to_string(folder.path().join("out.html")).unwrap();
        assert!(
            page.contains("small") && page.trim_end().ends_with("</html>"),
            "{page}"
        );
    }
    fs::write(folder.path().join("letter.html"), "<p>dear").unwrap();
    let refused = call("letter.html");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert_eq!(refused.stdout, "", "before anything is measured");
    let letter = fs::read_to_string(folder.path().join("letter.html")).unwrap();
    assert_eq!(letter, "<p>dear");
}

#[test]
fn resuming_needs_a_file() {
    let folder = folder_with_small();
    for more in [&[][..], &["--json", "-"]] {
        let outcome = fourtap(
            folder.path(),
            ["bench", "small.toml", "--resume"].iter().chain(more),
        );
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(
            outcome.stderr.contains("--resume: expected --json FILE"),
            "{outcome:?}"
        );
    }
}

#[test]
fn every_result_is_one_record() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    let arguments = [
        "bench",
        "small.toml",
        "--dtype",
        "f32,bf16",
        "--dtype",
        "f16,f64",
        "--images",
        "2",
    ];
    let outcome = fourtap(
        folder.path(),
        arguments.iter().chain(&["--json", "results.jsonl"]),
    );
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome
            .stdout
            .lines()
            .all(|line| line.chars().count() <= 100),
        "{}",
        outcome.stdout
    );
    let lines = fs::read_to_string(folder.path().join("results.jsonl")).unwrap();
    // 4 types, 2 distributions, 2 directions.
    assert_eq!(records(&lines).1.len(), 16);
    let (ceilings, results) = records(&lines);
    for ceiling in ["copy", "dram-read", "gather-128-l1", "fma-f32"] {
        let measured =
            |record: &Value| record["name"] == ceiling && record["rate"].as_f64() > Some(0.0);
        assert!(ceilings.iter().any(measured), "{ceiling}");
    }
    for record in results {
        assert_eq!(record["workload"], "small");
        assert_eq!(record["problem"]["images"], 2);
        assert_eq!(record["dtypes"]["locations"], "f32");
        let hot = &record["hot"];
        let median = hot["median_ms"].as_f64().unwrap();
        assert!(hot["ci_low_ms"].as_f64().unwrap() <= median);
        assert!(hot["ci_high_ms"].as_f64().unwrap() >= median);
        assert!(hot["samples_ms"].as_array().unwrap().len() >= 12);
        assert_eq!(
            record["kernel"]["parameters"]["threads"],
            record["device"]["threads"]
        );
        assert!(record["source_hash"].as_str().unwrap().len() == 16);
        assert!(record["roof"]["hot_ms"].as_f64().unwrap() > 0.0);
        assert_eq!(record["verification"]["passed"], true);
        assert!((0.0..=1.0).contains(&record["in_bounds_fraction"].as_f64().unwrap()));
        let passes = if record["direction"] == "backward" {
            2
        } else {
            1
        };
        assert_eq!(
            record["traffic"]["flop"],
            passes * 10 * 8 * (2 * 20 * 2 * 2 * 2)
        );
        for tensor in record["verification"]["tensors"].as_array().unwrap() {
            assert!(
                tensor["max_error"].as_f64() <= tensor["max_allowed"].as_f64(),
                "{tensor}"
            );
        }
    }

    let again = fourtap(
        folder.path(),
        arguments
            .iter()
            .chain(&["--json", "results.jsonl", "--filter", "local/f16/"]),
    );
    assert_eq!(again.code, Some(0));
    let lines = fs::read_to_string(folder.path().join("results.jsonl")).unwrap();
    assert_eq!(records(&lines).1.len(), 18, "records are appended");
}

#[test]
fn points_in_a_window_are_timed_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    let arguments = ["bench", "small.toml", "--distribution", "window"];
    let more = ["--device", "cpu", "--deterministic", "--json", "-"];
    let outcome = fourtap(folder.path(), arguments.iter().chain(&more));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let (_, records) = records(&outcome.stdout);
    assert_eq!(records.len(), 2, "{outcome:?}");
    for record in records {
        assert_eq!(record["distribution"], "window");
        assert_eq!(record["kernel"]["mode"], Value::Null);
    }
}

#[test]
fn a_dash_prints_records_instead_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    let arguments = [
        "bench",
        "small.toml",
        "--distribution",
        "local",
        "--json",
        "-",
    ];
    let outcome = fourtap(folder.path(), arguments);
    assert_eq!(records(&outcome.stdout).1.len(), 2, "{outcome:?}");
}

#[test]
fn times_the_tensors_of_a_file() {
    let folder = folder_with(&encode(&valid()));
    let outcome = fourtap(folder.path(), ["bench", "in.safetensors"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(
        outcome.stdout.matches("in.safetensors").count(),
        2,
        "{}",
        outcome.stdout
    );
}

#[test]
fn a_wrong_result_is_never_timed() {
    let nan = f32::NAN.to_le_bytes().repeat(8 * 2 * 2);
    let folder = folder_with(&encode(&with(entry("value", "F32", &[1, 8, 2, 2], nan))));
    let outcome = fourtap(
        folder.path(),
        [
            "bench",
            "in.safetensors",
            "--direction",
            "forward",
            "--json",
            "results.jsonl",
        ],
    );
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.stdout.is_empty(), "{outcome:?}");
    let lines = fs::read_to_string(folder.path().join("results.jsonl")).unwrap();
    let (_, results) = records(&lines);
    assert_eq!(results[0]["verification"]["passed"], false);
    for time in ["hot", "cold", "roof"] {
        assert_eq!(results[0][time], Value::Null, "{time}");
    }
    assert!(
        outcome
            .stderr
            .contains("verification failed, so it is not timed: out: element"),
        "{outcome:?}"
    );
}

#[test]
fn a_workload_larger_than_memory_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let huge = SMALL
        .replace("images = 1", "images = 4000000000")
        .replace("small", "huge");
    fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    fs::write(folder.path().join("huge.toml"), huge).unwrap();
    let outcome = fourtap(
        folder.path(),
        [
            "bench",
            "huge.toml",
            "small.toml",
            "--filter",
            "local/f32/forward",
        ],
    );
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(
        outcome.stderr.contains("huge/local/f32: expected"),
        "{outcome:?}"
    );
    assert!(
        outcome.stdout.contains("small"),
        "the rest is timed: {outcome:?}"
    );
}

#[test]
fn a_closed_output_ends_quietly() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["bench", "--list"][..],
        &["completions", "bash"],
        &["doctor"],
        &["--help"],
    ] {
        let mut child = command(folder.path())
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        assert!(child.wait().unwrap().success(), "{arguments:?}: {stderr}");
        assert_eq!(stderr, "", "{arguments:?}");
    }
}
