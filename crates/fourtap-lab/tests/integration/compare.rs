//! `fourtap compare`: what it says of results, and when it fails.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Outcome, fails, fourtap};
use fourtap_lab::extension::record::Run;
use serde_json::{Value, json};

/// A benchmark of this name that took about so long, give or take 0.2 %.
fn bench(workload: &str, milliseconds: f64) -> Value {
    let samples: Vec<f64> = (0..30)
        .map(|i| milliseconds * (1.0 + 0.0002 * f64::from(i * 7 % 20 - 10)))
        .collect();
    let timing = json!({"samples_ms": samples, "median_ms": milliseconds, "ci_low_ms": milliseconds,
        "ci_high_ms": milliseconds, "spread": 0.002, "launches_a_sample": 1, "input_sets": 1});
    json!({"kind": "bench", "schema": 2, "version": "0.1.0", "unix_time": 0, "workload": workload,
        "distribution": "local", "seed": 0,
        "problem": {"images": 1, "queries": 1, "heads": 1, "channels": 1, "points": 1, "pixels": 1, "levels": [[1, 1]]},
        "dtypes": {"value": "f32", "locations": "f32", "weights": "f32"}, "direction": "forward",
        "device": {"kind": "cpu", "model": "Processor", "simd": "avx2", "threads": 2},
        "kernel": {"words": "cpu", "reproducible": true},
        "verification": {"passed": true, "rows": 1, "tensors": []}, "hot": timing, "in_bounds_fraction": 1.0,
        "traffic": {"compulsory_bytes": 1, "gathered_bytes": 1, "flop": 1}})
}

/// The same without a time, because its result was wrong.
fn wrong(workload: &str) -> Value {
    let mut record = bench(workload, 1.0);
    record["verification"] = json!({"passed": false, "found": "out: 1 where the oracle says 2", "rows": 0, "tensors": []});
    record.as_object_mut().unwrap().remove("hot");
    record
}

fn compared(before: &[Value], after: &[Value], more: &[&str]) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    for (name, records) in [("a.jsonl", before), ("b.jsonl", after)] {
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        fs::write(folder.path().join(name), lines).unwrap();
    }
    let call = ["compare", "a.jsonl", "b.jsonl"];
    fourtap(folder.path(), call.iter().chain(more))
}

/// Each of these measured three times, so that what runs differ by is known.
fn repeated(records: &[Value]) -> Vec<Value> {
    records
        .iter()
        .cycle()
        .take(3 * records.len())
        .cloned()
        .collect()
}

fn runs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../runs")
}

#[test]
fn every_line_of_form_1_reads_as_todays() {
    for (run, benches, probes) in [
        ("2026-11-15-h200/bench.jsonl", 100, 6),
        ("2026-11-15-cpu-avx512-2cores/bench.jsonl", 36, 0),
    ] {
        let file = runs().join(run);
        let read = Run::read(&file).unwrap();
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert_eq!((read.benches.len(), read.probes.len()), (benches, probes));
        assert_eq!(lines, benches + probes, "{run}: no line was passed over");
        assert!(!read.cut_short);
        for record in &read.benches {
            assert_eq!(record.origin.schema, 2);
            assert!(record.verification.passed && record.hot.is_some());
        }
    }
}

#[test]
fn a_folder_is_all_its_records() {
    let run = Run::read(&runs().join("2026-11-15-h200")).unwrap();
    assert_eq!(
        (run.benches.len(), run.name().as_str()),
        (100, "2026-11-15-h200")
    );
}

#[test]
fn each_benchmark_has_its_verdict_and_the_last_line_says_it_all() {
    let before = ["slow", "fast", "same", "gone"].map(|name| bench(name, 1.0));
    let after = [("same", 1.001), ("fast", 0.8), ("slow", 1.1), ("new", 1.0)];
    let after = after.map(|(name, time)| bench(name, time));
    let (before, after) = (repeated(&before), repeated(&after));
    let outcome = compared(&before, &after, &[]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let text = &outcome.stdout;
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let places = [
        "slow/local/f32/forward",
        "fast/local/f32/forward",
        "Only in A: gone/",
        "Only in B: new/",
    ];
    let places = places.map(|part| text.find(part).unwrap_or_else(|| panic!("{part}: {text}")));
    assert!(places.is_sorted(), "{text}");
    assert!(!text.contains("same/local"), "{text}");
    let last = text.lines().last().unwrap();
    assert_eq!(
        last,
        "1 slower, 1 faster, 1 the same, 0 unclear, 1 only in A, 1 only in B"
    );
    let all = compared(&before, &after, &["--all"]);
    assert!(all.stdout.contains("same/local/f32/forward"), "{all:?}");
}

#[test]
fn it_fails_only_on_what_it_was_told_to() {
    let before = [bench("a", 1.0), bench("b", 1.0), bench("gone", 1.0)];
    let after = [bench("a", 1.05), bench("b", 1.0)];
    let (before, after) = (repeated(&before), repeated(&after));
    let cases = [
        (vec![], 0, ""),
        (vec!["slower"], 3, "expected no benchmark slower, found 1"),
        (
            vec!["slower:3%"],
            3,
            "expected no benchmark slower by 3% or more, found 1",
        ),
        (vec!["slower:10%"], 0, ""),
        (vec!["unclear"], 0, ""),
        (vec!["missing"], 3, "expected no benchmark missing, found 1"),
        (vec!["unclear,slower:10%,missing"], 3, "missing, found 1"),
        (
            vec!["slower:10%", "slower:2%"],
            3,
            "slower by 2% or more, found 1",
        ),
    ];
    for (conditions, code, said) in cases {
        let options: Vec<&str> = conditions
            .iter()
            .flat_map(|one| ["--fail-on", one])
            .collect();
        let outcome = compared(&before, &after, &options);
        assert_eq!(outcome.code, Some(code), "{conditions:?}: {outcome:?}");
        assert!(outcome.stderr.contains(said), "{conditions:?}: {outcome:?}");
    }
    let outcome = compared(&before, &after, &["--fail-on", "slower:3"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
}

#[test]
fn too_few_scattered_samples_are_unclear() {
    let mut after = bench("a", 1.0);
    after["hot"]["samples_ms"] = json!([0.9, 1.0, 1.2, 1.1]);
    let before = [bench("a", 1.0)];
    let outcome = compared(&before, &[after], &["--fail-on", "unclear"]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(
        outcome
            .stdout
            .ends_with("0 slower, 0 faster, 0 the same, 1 unclear\n"),
        "{outcome:?}"
    );
    assert!(
        outcome
            .stderr
            .contains("1 of 1 benchmarks have fewer than 15 samples"),
        "{outcome:?}"
    );
}

#[test]
fn a_wrong_result_in_b_is_told_and_fails_with_any_condition() {
    let before = [bench("a", 1.0), bench("b", 1.0)];
    let after = [bench("a", 1.0), wrong("b")];
    let outcome = compared(&before, &after, &[]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("b/local/f32/forward: the result in B is wrong"),
        "{outcome:?}"
    );
    assert!(outcome.stdout.ends_with("1 wrong in B\n"), "{outcome:?}");
    let outcome = compared(&before, &after, &["--fail-on", "unclear"]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("expected correct results in B, found 1 wrong"),
        "{outcome:?}"
    );
}

#[test]
fn every_benchmark_is_a_line_of_json() {
    let before = [bench("a", 1.0), bench("gone", 1.0), bench("b", 1.0)];
    let after = [bench("a", 20.0), bench("new", 1.0), wrong("b")];
    let outcome = compared(&before, &after, &["--json"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let lines = outcome.stdout.lines();
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let verdicts: Vec<_> = lines
        .iter()
        .map(|line| line["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(verdicts, ["SLOWER", "MISSING", "ADDED", "WRONG"]);
    let row = &lines[0];
    assert_eq!(row["name"], "a/local/f32/forward");
    assert_eq!(
        (&row["samples_before"], &row["samples_after"]),
        (&json!(30), &json!(30))
    );
    let [low, ratio, high] =
        ["ratio_low", "ratio", "ratio_high"].map(|key| row[key].as_f64().unwrap());
    assert!(
        19.0 < low && low <= ratio && ratio <= high && high < 21.0,
        "{row}"
    );
}

#[test]
fn problems_of_other_sizes_are_other_benchmarks() {
    let mut after = [bench("a", 1.0), bench("a", 4.0)];
    after[1]["problem"]["images"] = json!(4);
    let outcome = compared(&[bench("a", 1.0)], &after, &[]);
    let text = &outcome.stdout;
    assert!(
        text.contains("Only in B: a/local/f32/forward (N 4)"),
        "{text}"
    );
    assert!(
        text.ends_with("0 slower, 0 faster, 1 the same, 0 unclear, 1 only in B\n"),
        "{text}"
    );
}

#[test]
fn the_same_name_on_two_devices_of_one_run_is_not_mixed_up() {
    let mut other = bench("a", 9.0);
    other["device"]["threads"] = json!(1);
    let run = [bench("a", 1.0), other];
    let outcome = compared(&run, &run, &["--all"]);
    assert!(
        outcome
            .stdout
            .ends_with("0 slower, 0 faster, 2 the same, 0 unclear\n"),
        "{outcome:?}"
    );
}

#[test]
fn what_else_differs_is_noted() {
    let reading = |clock: u32, throttled: &[&str]| {
        let reading = json!({"clock_mhz": clock, "throttled_by": throttled});
        json!({"before": reading, "after": reading})
    };
    let (mut before, mut after) = (bench("a", 1.0), bench("a", 1.0));
    before["conditions"] = reading(2000, &[]);
    after["conditions"] = reading(1500, &["power cap"]);
    after["device"]["model"] = json!("Another");
    let outcome = compared(&[before], &[after], &[]);
    for part in [
        "the devices differ: A ran on Processor, avx2, 2 threads, B on Another, avx2, 2 threads",
        "clocks were throttled in 1 of 1 benchmarks of B: power cap",
        "the clocks differ: 2000 MHz in A, 1500 MHz in B",
    ] {
        assert!(outcome.stderr.contains(part), "{part}: {outcome:?}");
    }
}

#[test]
fn repeated_runs_raise_the_noise() {
    let times = [1.0, 1.04, 0.97, 1.02];
    let run: Vec<Value> = times.iter().map(|&time| bench("a", time)).collect();
    let after: Vec<Value> = times.iter().map(|&time| bench("a", 1.05 * time)).collect();
    let outcome = compared(&run, &after, &[]);
    assert!(
        outcome.stderr.contains("repeated runs are pooled"),
        "{outcome:?}"
    );
    assert!(
        outcome
            .stdout
            .ends_with("0 slower, 0 faster, 0 the same, 1 unclear\n"),
        "{outcome:?}"
    );
}

#[test]
fn single_runs_are_unclear_within_what_runs_of_one_build_differ_by() {
    let verdict = |kind: &str, ratio: f64| {
        let mut both = [bench("a", 1.0), bench("a", ratio)];
        for record in &mut both {
            record["device"]["kind"] = json!(kind);
        }
        let [before, after] = both;
        let outcome = compared(&[before], &[after], &["--fail-on", "slower"]);
        let last = outcome.stdout.lines().last().unwrap_or_default();
        let told = outcome.stderr.contains("bench --against");
        let unclear = last.ends_with("1 unclear");
        assert_eq!(unclear, told, "{outcome:?}");
        match outcome.code {
            Some(3) => "slower",
            _ if unclear => "unclear",
            _ if last.starts_with("0 slower, 1 faster") => "faster",
            _ => "same",
        }
    };
    for (kind, ratio, expected) in [
        ("cpu", 1.001, "same"),
        ("cpu", 1.226, "unclear"),
        ("cpu", 0.5, "unclear"),
        ("cpu", 20.0, "slower"),
        ("cpu", 0.05, "faster"),
        ("cuda", 1.1, "unclear"),
        ("cuda", 1.25, "slower"),
        ("cuda", 0.75, "faster"),
    ] {
        assert_eq!(verdict(kind, ratio), expected, "{kind}: {ratio}");
    }
}

#[test]
fn old_records_compare_with_themselves_and_with_new_ones() {
    let old = runs().join("2026-11-15-h200/bench.jsonl");
    let folder = tempfile::tempdir().unwrap();
    let call = |other: &Path| {
        let words = [
            Path::new("compare"),
            &old,
            other,
            Path::new("--fail-on"),
            Path::new("slower,missing"),
        ];
        fourtap(folder.path(), words)
    };
    let outcome = call(&old);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let last = outcome.stdout.lines().last().unwrap();
    assert!(
        last.starts_with("0 slower, 0 faster, ") && !last.contains("only"),
        "{last}"
    );

    let first = fs::read_to_string(&old).unwrap();
    let first = first
        .lines()
        .find(|line| line.contains("workload"))
        .unwrap();
    let first: Value = serde_json::from_str(first).unwrap();
    let mut new = bench(
        first["workload"].as_str().unwrap(),
        3.0 * first["median_ms"].as_f64().unwrap(),
    );
    for key in ["distribution", "problem", "dtypes", "direction", "device"] {
        new[key] = first[key].clone();
    }
    let file = folder.path().join("new.jsonl");
    fs::write(&file, format!("{new}\n")).unwrap();
    let outcome = call(&file);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(
        outcome
            .stdout
            .contains("1 slower, 0 faster, 0 the same, 0 unclear"),
        "{outcome:?}"
    );
}

#[test]
fn bad_input_is_an_error_that_names_it() {
    let outcome = compared(&[bench("a", 1.0)], &[bench("b", 1.0)], &[]);
    fails(
        "nothing in common",
        &outcome,
        "b.jsonl: expected benchmarks that a.jsonl has too",
    );
    let outcome = compared(&[bench("a", 1.0)], &[bench("a", 1.0)], &["--filter", "zzz"]);
    fails(
        "nothing selected",
        &outcome,
        "--filter zzz: expected part of a benchmark's name",
    );
    let outcome = compared(&[bench("a", 1.0)], &[], &[]);
    fails(
        "an empty file",
        &outcome,
        "b.jsonl: expected records of fourtap, found none",
    );
    let outcome = compared(&[bench("a", 1.0)], &[json!({"schema": 7})], &[]);
    fails(
        "another form",
        &outcome,
        "b.jsonl, line 1: expected records of fourtap, found a record of schema 7",
    );
    let folder = tempfile::tempdir().unwrap();
    let outcome = fourtap(folder.path(), ["compare", "none.jsonl", "none.jsonl"]);
    fails("no file", &outcome, "none.jsonl: cannot be read");
}
