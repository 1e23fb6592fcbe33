//! `fourtap probe`: whatever becomes of a probe is a result in words, and the others still run.

use std::fs;

use crate::common::{self, fourtap};
use serde_json::{Value, json};

fn records(lines: &str) -> Vec<Value> {
    lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("only JSON"))
        .collect()
}

/// The record of this probe.
fn of<'a>(records: &'a [Value], name: &str) -> &'a Value {
    let mut found = records.iter().filter(|record| record["name"] == name);
    let record = found
        .next()
        .unwrap_or_else(|| panic!("no record of {name}"));
    assert!(found.next().is_none(), "two records of {name}");
    record
}

#[test]
fn each_way_to_end_is_reported_and_the_others_run() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        "probe",
        "--device",
        "cpu",
        "--limit",
        "2s",
        "--json",
        "results.jsonl",
        "fault-hang",
        "fault-crash",
        "fault-error",
        "fault-silence",
        "fault-works",
    ];
    let outcome = fourtap(folder.path(), arguments);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let lines = fs::read_to_string(folder.path().join("results.jsonl")).unwrap();
    let records = records(&lines);
    assert_eq!(records.len(), 5);
    for (name, ended, words) in [
        (
            "fault-hang",
            "hung",
            "it did not end within 2 s and was killed",
        ),
        (
            "fault-crash",
            "crashed",
            "its process was ended by signal 6 (SIGABRT)",
        ),
        (
            "fault-error",
            "failed",
            "cache: expected a directory for compiled kernels",
        ),
        ("fault-silence", "failed", "it gave no result"),
    ] {
        let record = of(&records, name);
        assert_eq!(record["kind"], "probe");
        assert_eq!(record["outcome"], ended, "{record}");
        let said = record["words"].as_str().unwrap();
        assert!(said.starts_with(words), "{record}");
        assert_eq!(record["device"]["kind"], "cpu");
        assert_eq!(record["rate"], Value::Null);
        assert!(outcome.stdout.contains(name), "{outcome:?}");
    }
    let works = of(&records, "fault-works");
    assert_eq!(
        (&works["outcome"], &works["rate"]),
        (&json!("measured"), &json!(1.0))
    );
    for word in ["HUNG", "CRASHED", "FAILED", "nothing was computed"] {
        assert!(outcome.stdout.contains(word), "{word}: {outcome:?}");
    }
    assert!(
        outcome.stderr.contains("fault-hang hung: it did not"),
        "{outcome:?}"
    );
    let widest = outcome.stdout.lines().map(|line| line.chars().count());
    assert!(widest.max() <= Some(100), "{}", outcome.stdout);
}

#[test]
fn a_wrong_result_outweighs_a_failure_and_has_no_rate() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        "probe",
        "--device",
        "cpu",
        "--json",
        "-",
        "fault-wrong",
        "fault-error",
    ];
    let outcome = fourtap(folder.path(), arguments);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    let records = records(&outcome.stdout);
    let wrong = of(&records, "fault-wrong");
    assert_eq!(wrong["outcome"], "wrong");
    assert_eq!(wrong["words"], "expected 4 as sum of 2 and 2, found 5");
    assert_eq!(wrong["rate"], Value::Null);
    assert_eq!(of(&records, "fault-error")["outcome"], "failed");
}

#[test]
fn what_works_ends_with_success() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["probe", "--device", "cpu", "fault-works", "fault-works"];
    let outcome = fourtap(folder.path(), arguments);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.stdout.matches("fault-works").count(), 1);
    assert_eq!(outcome.stderr, "");
}

#[test]
fn an_unknown_name_is_told_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["probe", "--list", "--device", "cuda", "gather-64-l2"];
    let outcome = fourtap(folder.path(), arguments);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert_eq!(
        outcome.stderr,
        "error: gather-64-l2: expected the name of a probe, found none of that name\n\
         hint: did you mean gather-64-l1?\n"
    );
    let outcome = fourtap(
        folder.path(),
        ["probe", "--device", "cuda", "--list", "--filter", "nowhere"],
    );
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("--filter nowhere: expected part of"),
        "{outcome:?}"
    );
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = fourtap(folder.path(), ["probe", "--device", "cuda:7"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .starts_with("error: --device cuda:7: expected a CUDA device"),
        "{outcome:?}"
    );
}

#[test]
fn the_list_shows_what_there_is_and_nothing_that_ends_badly() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = fourtap(folder.path(), ["probe", "--list", "--device", "cuda"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    for name in [
        "copy",
        "dsmem-read-8",
        "tile-tma-l2-f32",
        "tensor-wgmma-f16",
    ] {
        assert!(outcome.stdout.contains(name), "{name}");
    }
    assert!(!outcome.stdout.contains("fault-"), "{}", outcome.stdout);
    let widest = outcome.stdout.lines().map(|line| line.chars().count());
    assert!(widest.max() <= Some(100), "{}", outcome.stdout);
}

#[test]
fn an_unwritable_file_is_told_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        "probe",
        "--device",
        "cpu",
        "--json",
        "no/such/folder/x",
        "fault-hang",
    ];
    let outcome = fourtap(folder.path(), arguments);
    common::fails("an unwritable file", &outcome, "no/such/folder/x");
}

/// Also when it is killed and cannot clean up.
#[test]
#[cfg(target_os = "linux")]
fn no_process_outlives_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let mut parent = common::command(folder.path())
        .args(["probe", "--device", "cpu", "--limit", "10m", "fault-hang"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let wait_for = |what: &str, is: &dyn Fn() -> bool| {
        for _ in 0..1000 {
            if is() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(30));
        }
        panic!("{what}");
    };
    wait_for("a process of its own", &|| child_of(parent.id()).is_some());
    let child = child_of(parent.id()).unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_for("the probe's process is gone", &|| !is_running(child));
}

/// State and parent of a process, from the numbers behind its name.
#[cfg(target_os = "linux")]
fn state_and_parent(process: u32) -> Option<(String, u32)> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, numbers) = text.rsplit_once(')')?;
    let mut numbers = numbers.split_whitespace();
    Some((numbers.next()?.to_string(), numbers.next()?.parse().ok()?))
}

#[cfg(target_os = "linux")]
fn child_of(parent: u32) -> Option<u32> {
    fs::read_dir("/proc").ok()?.find_map(|entry| {
        let process: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        (state_and_parent(process)?.1 == parent).then_some(process)
    })
}

/// A process that ended and was not asked for yet runs no more.
#[cfg(target_os = "linux")]
fn is_running(process: u32) -> bool {
    state_and_parent(process).is_some_and(|(state, _)| state != "Z")
}
