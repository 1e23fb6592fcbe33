//! What a reader of the section must find.

use std::path::Path;

use serde_json::{Value, json};

use crate::record::Run;
use crate::report::{html, warnings};

fn timing(median: f64) -> Value {
    json!({"samples_ms": [median, median], "median_ms": median, "ci_low_ms": 0.99 * median,
        "ci_high_ms": 1.01 * median, "spread": 0.01, "launches_a_sample": 1, "input_sets": 1})
}

/// A rung that was right on a large problem.
fn rung(name: &str, median: f64) -> Value {
    json!({"kind": "rung", "schema": 2, "version": "0", "unix_time": 0,
        "device": {"kind": "cuda", "model": "a GPU"}, "rung": name, "title": format!("the idea of {name}"),
        "workload": "seed-full", "distribution": "uniform", "seed": 0,
        "problem": {"images": 48, "queries": 15422, "heads": 1, "channels": 32, "points": 8, "pixels": 19560,
            "levels": [[92, 160], [46, 80], [23, 40], [12, 20]]},
        "traffic": {"compulsory_bytes": 391_723_008u64, "gathered_bytes": 6_064_177_152u64,
            "flop": 7_580_221_440u64},
        "outcome": "measured", "hot": timing(median), "of_gather": 0.57, "of_dram": 0.18,
        "small": {"right": 9, "elements": 211_120, "refused": []},
        "sanitizer": {"memcheck": "clean", "racecheck": "clean"},
        "verification": {"passed": true, "rows": 200, "tensors": [{"tensor": "out", "elements": 6400,
            "max_error": 2e-3, "max_allowed": 1e-2, "relative_error": 3e-3, "relative_allowed": 1e-2}]},
        "launches": [{"entry": "ladder", "blocks": 92532, "threads": 256, "registers": 40, "local_bytes": 16,
            "shared_bytes": 49152, "prepares": false}]})
}

/// With these fields as well, or instead.
fn with(mut record: Value, fields: Value) -> Value {
    for (name, field) in fields.as_object().expect("an object") {
        record[name] = field.clone();
    }
    record
}

/// One that has no time, and why.
fn broken(name: &str, outcome: &str, words: &str) -> Value {
    let fields = json!({"outcome": outcome, "words": words, "hot": null, "verification": null});
    with(rung(name, 1.0), fields)
}

fn run_of(records: &[Value]) -> Run {
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    Run::parse(Path::new("ladder.jsonl"), &lines).unwrap()
}

fn has(records: &[Value], parts: &[&str]) {
    let page = html(&[run_of(records)]).unwrap();
    for part in parts {
        assert!(page.contains(part), "{part:?} is not in the page");
    }
}

#[test]
fn rungs_are_ranked_with_all_that_is_known_of_them() {
    let known = json!({"prepared": timing(0.5), "builds_on": "a01", "scratch_bytes": 60_000_000,
        "parameters": {"THREADS": 256}, "claim": {"words": "0.741 ms", "why": "most points cost nothing"},
        "binding": {"limit": "l1", "busy": 0.713, "words": "bottleneck: the L1 load/store pipe"}});
    let against = json!({"builds_on": "a03",
        "against": {"rung": "a03", "ratio": 0.8, "low": 0.78125, "high": 0.9, "turns": 5}});
    let records = [
        rung("a01", 3.2),
        with(rung("a18", 0.8), known),
        with(rung("a19", 0.4), json!({"approximate": 0.01})),
        with(rung("s1", 0.9), against),
        rung("shipped", 0.48),
    ];
    has(
        &records,
        &[
            "<section id=\"rungs\"",
            "seed-full, uniform: every rung by time",
            "48 images, 15\u{202f}422 queries each",
            "shipped, 0.480 ms",
            "seed-full, uniform: details of 5 rungs",
            "4.0 times as fast as a01",
            "+25.0 % speed on a03 (+11.1 to +28.0)",
            "0.741 ms",
            "most points cost nothing",
            "bottleneck: the L1 load/store pipe",
            "211\u{202f}120 elements, sanitizer clean",
            "THREADS=256",
            "an approximation, hot",
            "≤\u{a0}1.0e-2",
            "5 results of 4 rungs",
        ],
    );
    let page = html(&[run_of(&records)]).unwrap();
    let places = ["a19", "shipped", "a18", "s1", "a01"].map(|name| {
        let cell = format!("class=\"words\"><b>{name}</b>");
        page.find(&cell).expect(name)
    });
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn a_rung_without_a_time_says_why() {
    let wrong = broken("a15", "wrong", "out: 3 where the oracle says 4");
    let records = [
        wrong.clone(),
        with(wrong, json!({"distribution": "local"})),
        broken("a09", "hung", "no answer within 60 s"),
        broken("a13", "refused", "1 head: too few to share"),
        rung("a01", 3.2),
    ];
    has(
        &records,
        &[
            "WRONG: out: 3 where the oracle says 4",
            "refused: 1 head: too few to share",
            "Without a time, wrong: a15; hung: a09; refused: a13.",
            "4 rungs, 3 without a time",
            "2 of them broken on some problem",
        ],
    );
    assert_eq!(
        warnings(&run_of(&records))[..2],
        [
            "Rung a15 was wrong on seed-full/uniform, seed-full/local, so it has no time there: out: 3 where the \
             oracle says 4.",
            "Rung a09 hung on seed-full/uniform, so it has no time there: no answer within 60 s.",
        ]
    );
}

#[test]
fn dense_rungs_stand_by_themselves_beside_what_is_not_ours() {
    let problem = json!({"batch": 4, "heads": 16, "queries": 2048, "keys": 2048, "channels": 64, "dtype": "f16",
        "causal": false});
    let fields = json!({"workload": "dense-b4-h16-s2048", "distribution": "full", "problem": problem,
        "of_gather": null, "of_tensor": 0.5});
    let dense = |name: &str, median: f64| with(rung(name, median), fields.clone());
    let library = json!({"library": "PyTorch 2, CUDA 13", "launches": [], "small": null});
    let records = [
        rung("a01", 3.2),
        dense("d01", 14.0),
        with(dense("d09-cudnn", 0.15), library),
        dense("shipped-dense", 0.2),
    ];
    has(
        &records,
        &[
            "dense-b4-h16-s2048, full: every rung by time",
            "4 sequences, 2048 queries and 2048 keys each, 16 heads",
            "shipped-dense, 0.200 ms",
            "× d01",
            "other library: PyTorch 2, CUDA 13",
            "4 results of 2 rungs",
        ],
    );
    let page = html(&[run_of(&records[1..])]).unwrap();
    assert!(!page.contains("a01") && !page.contains("eformable"));
}
