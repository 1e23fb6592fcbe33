//! Searches: how they end, what they record, keep and go on with.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{
    ALL_SIX, SEARCH, folder, own_table, records, run, run_with_faults, search, search_with_faults,
};
use crate::common::{command, fails};

/// The defaults take longer than they should.
const SLOW_DEFAULTS: &str = "tasks_each=4:slow";

/// The attempt with this value of tasks_each.
fn of(attempts: &[Value], tasks_each: u32) -> &Value {
    let mut found = attempts
        .iter()
        .filter(|it| it["parameters"]["tasks_each"] == tasks_each);
    let record = found.next().unwrap();
    assert!(found.next().is_none(), "tried twice");
    record
}

#[test]
#[ignore = "long: a whole search"]
fn what_is_faster_beyond_doubt_is_kept_and_used() {
    let folder = folder();
    let folder = folder.path();
    let outcome = search_with_faults(folder, SLOW_DEFAULTS, &["--json", "tune.jsonl"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.stdout.contains("6 choices fit, 6 tried"),
        "{outcome:?}"
    );
    assert!(outcome.stderr.contains("kept in "), "{outcome:?}");
    let attempts = records(folder, "attempt");
    assert_eq!(attempts.len(), 6);
    assert_eq!(of(&attempts, 4)["how"], "default");
    for attempt in &attempts {
        assert_eq!(attempt["outcome"], "measured", "{attempt}");
        assert_eq!(attempt["verification"]["passed"], true);
        assert!(attempt["hot"]["median_ms"].as_f64().unwrap() > 0.0);
        assert!(
            attempt["class"]
                .as_str()
                .unwrap()
                .starts_with("d8-l2-p4-rows6")
        );
    }
    let tuned = &records(folder, "tuned")[0];
    assert_eq!(tuned["ended"], "every point was tried");
    let winner = tuned["winner"].as_u64().unwrap() as usize;
    assert!(winner > 0, "{tuned}");
    assert!(tuned["finals"][winner]["speed_low"].as_f64().unwrap() > 1.0);

    let table = fs::read_to_string(own_table(folder)).unwrap();
    assert_eq!(
        table.lines().filter(|line| !line.starts_with('#')).count(),
        1
    );
    assert!(
        table.contains("\tcpu-msda-forward\td8-l2-p4-rows6\tf32\t"),
        "{table}"
    );
    let explained = |off: bool| {
        let mut command = command(folder);
        let table = match off {
            true => "off".into(),
            false => own_table(folder),
        };
        command.env("FOURTAP_TUNE", table);
        command.args(["explain", "tiny.toml", "--device", "cpu", "--dtype", "f32"]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let words = explained(false)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        words.contains("cpu-msda-forward uses an entry of"),
        "{words}"
    );
    assert!(
        words.contains("own.tsv for problems of class d8-l2-p4-rows6"),
        "{words}"
    );
    assert!(words.contains("times as fast as the defaults"), "{words}");
    assert!(explained(true).contains("cpu-msda-forward uses its defaults"));

    let bench = [
        "bench",
        "tiny.toml",
        "--filter",
        "local/f32/forward",
        "--json",
        "-",
    ];
    let outcome = run(folder, &bench);
    let lines = outcome.stdout.lines();
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let bench = lines.iter().find(|it| it["kind"] == "bench").unwrap();
    assert!(
        bench["kernel"]["words"]
            .as_str()
            .unwrap()
            .contains(", tuned: "),
        "{bench}"
    );
}

#[test]
#[ignore = "long: a whole search"]
fn each_way_to_end_is_recorded_and_the_search_goes_on() {
    let folder = folder();
    let folder = folder.path();
    let outcome = search_with_faults(
        folder,
        "tasks_each=1:hang,tasks_each=2:crash,tasks_each=8:wrong,tasks_each=16:error",
        &[
            "--limit",
            "8s",
            "--json",
            "tune.jsonl",
            "--csv",
            "tune.csv",
            "--report",
            "tune.html",
        ],
    );
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let attempts = records(folder, "attempt");
    for (value, ended, words) in [
        (1, "hung", "it did not end within 8 s and was killed"),
        (2, "crashed", "its process was ended by signal 6 (SIGABRT)"),
        (8, "wrong", "out"),
        (16, "failed", "cache: expected"),
        (4, "measured", ""),
        (32, "measured", ""),
    ] {
        let attempt = of(&attempts, value);
        assert_eq!(attempt["outcome"], ended, "{attempt}");
        assert_eq!(attempt["hot"].is_null(), ended != "measured", "{attempt}");
        let found = attempt["words"].as_str().unwrap_or_default();
        assert!(found.contains(words), "{attempt}");
        let disqualified = attempt["verdict"]
            .as_str()
            .unwrap()
            .starts_with("disqualified");
        assert_eq!(disqualified, ended != "measured", "{attempt}");
    }
    let tuned = &records(folder, "tuned")[0];
    assert_eq!(
        (&tuned["attempts"], &tuned["right"]),
        (&6.into(), &2.into())
    );
    assert_eq!(tuned["finals"].as_array().unwrap().len(), 2);
    let sheet = fs::read_to_string(folder.join("tune.csv")).unwrap();
    assert_eq!(sheet.lines().count(), 7);
    assert!(sheet.contains("disqualified: hung"), "{sheet}");
    let page = fs::read_to_string(folder.join("tune.html")).unwrap();
    for expected in ["Effect of each parameter", "Every attempt", "hung"] {
        assert!(page.contains(expected), "{expected}");
    }
}

/// Waits until a file holds so many whole lines.
fn wait_for_lines(file: &Path, lines: usize) {
    let begun = Instant::now();
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if text.matches('\n').count() >= lines {
            return;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "no {lines} lines: {text}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "long: a whole search"]
fn a_killed_search_is_gone_on_with() {
    let folder = folder();
    let folder = folder.path();
    let mut killed: Child = command(folder)
        .env("FOURTAP_TUNE", own_table(folder))
        .args(SEARCH)
        .args(ALL_SIX)
        .args(["--json", "tune.jsonl"])
        .env("FOURTAP_FAULTS", "tasks_each=16:hang")
        .args(["--limit", "600s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let file = folder.join("tune.jsonl");
    wait_for_lines(&file, 4);
    killed.kill().unwrap();
    killed.wait().unwrap();
    // As if it had been killed while it wrote.
    let whole = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{whole}{{\"kind\":\"atte")).unwrap();
    let before = whole.lines().count();
    assert!(!own_table(folder).exists());

    let refused = search(folder, &["--json", "tune.jsonl"]);
    fails("half a record", &refused, "an incomplete one");
    let outcome = search(folder, &["--json", "tune.jsonl", "--resume"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let after = fs::read_to_string(&file).unwrap();
    assert!(after.starts_with(&whole), "what was known is kept");
    assert_eq!(
        records(folder, "attempt").len(),
        6,
        "and nothing is tried again"
    );
    assert_eq!(after.lines().count() - before, 6 - before + 1);
    of(&records(folder, "attempt"), 16);

    let again = search(folder, &["--json", "tune.jsonl", "--resume"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        after,
        "nothing was left to do"
    );
}

#[test]
#[ignore = "long: a whole search"]
fn what_calls_go_by_already_comes_to_the_finals() {
    let folder = folder();
    let folder = folder.path();
    // The defaults and one more, the same each time.
    let short = |faults: &str, more: &[&str]| {
        let few = ["--generations", "1", "--population", "2", "--top-k", "1"];
        let json = ["--json", "tune.jsonl"];
        let arguments = [&SEARCH[..], &few, &json, more].concat();
        let outcome = run_with_faults(folder, faults, &arguments);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let found = (records(folder, "attempt"), records(folder, "tuned"));
        fs::remove_file(folder.join("tune.jsonl")).unwrap();
        found
    };
    let (attempts, _) = short("", &["--dry-run"]);
    assert_eq!(attempts.len(), 2);
    let drawn = &attempts[1]["parameters"]["tasks_each"];
    let slow = format!("{SLOW_DEFAULTS},tasks_each={drawn}:slow");

    // A search in which these two are slow keeps another, which the short one does not draw.
    assert_eq!(search_with_faults(folder, &slow, &[]).code, Some(0));
    let (attempts, tuned) = short(&slow, &[]);
    let how: Vec<_> = attempts.iter().map(|it| it["how"].as_str()).collect();
    assert_eq!([how[0], how[2]], [Some("default"), Some("table")]);
    let winner = tuned[0]["winner"].as_u64().unwrap() as usize;
    let kept = &tuned[0]["finals"][winner]["parameters"];
    assert_eq!(*kept, attempts[2]["parameters"], "{tuned:?}");
}

#[test]
fn nothing_is_kept_unless_it_may_be() {
    let folder = folder();
    let outcome = search_with_faults(folder.path(), SLOW_DEFAULTS, &["--dry-run"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.stdout.contains("times as fast as the defaults"),
        "{outcome:?}"
    );
    assert!(!own_table(folder.path()).exists());
    let off = command(folder.path())
        .env("FOURTAP_TUNE", "off")
        .args(["tune", "tiny.toml"])
        .output()
        .unwrap();
    assert_eq!(off.status.code(), Some(1));
    let words = String::from_utf8(off.stderr).unwrap();
    assert!(
        words.contains("expected a tuning table to store choices in"),
        "{words}"
    );
}

#[test]
fn defaults_that_fail_end_the_search_with_the_reason() {
    let folder = folder();
    let outcome = search_with_faults(folder.path(), "tasks_each=4:wrong", &[]);
    fails(
        "wrong defaults",
        &outcome,
        "expected the defaults to compute it correctly",
    );
}

#[test]
#[ignore = "long: a whole search"]
fn other_bits_are_searched_only_when_allowed() {
    let folder = folder();
    let bits = ["--set", "tasks_each=4", "--dry-run", "--json", "tune.jsonl"];
    let outcome = search(folder.path(), &bits);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(records(folder.path(), "attempt").len(), 1);
    fs::remove_file(folder.path().join("tune.jsonl")).unwrap();
    let outcome = search(
        folder.path(),
        &[&bits[..], &["--allow-rounding-changes"]].concat(),
    );
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(records(folder.path(), "attempt").len() > 1);
}
