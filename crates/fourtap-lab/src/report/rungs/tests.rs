//! What a reader of the section must find, and what never.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::record::Run;
use crate::report::{Report, warnings};

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

fn page_of(records: &[Value]) -> String {
    let page = Report::new(&[run_of(records)]);
    page.html().unwrap()
}

fn has(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "{part:?} is not in the page");
    }
}

#[test]
fn rungs_are_ranked_with_all_that_is_known_of_them() {
    let prepared = json!({"prepared": timing(0.5), "builds_on": "a01", "scratch_bytes": 60_000_000,
        "parameters": {"THREADS": 256},
        "binding": {"limit": "l1", "busy": 0.713, "words": "bottleneck: the L1 load/store pipe"}});
    let page = page_of(&[
        rung("a01", 3.2),
        with(rung("a18", 0.8), prepared),
        with(rung("a19", 0.4), json!({"approximate": 0.01})),
        rung("shipped", 0.48),
    ]);
    has(
        &page,
        &[
            "<section id=\"rungs\"",
            "seed-full, uniform: every rung by time",
            "48 images, 15\u{202f}422 queries each",
            "shipped, 0.480 ms",
            "seed-full, uniform: details of 4 rungs",
            "4.0 times as fast as a01",
            "kept: 0.500 ms",
            "against shipped: 0.60 ×",
            "L1, busy 71 %",
            "bottleneck: the L1 load/store pipe",
            "211\u{202f}120 elements, sanitizer clean",
            "THREADS=256",
            "an approximation, hot",
            "≤\u{a0}1.0e-2",
            "4 results of 3 rungs",
        ],
    );
    let places = ["a19", "shipped", "a18", "a01"].map(|name| {
        let cell = format!("<th scope=\"row\"><b>{name}</b>");
        page.find(&cell).expect(name)
    });
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn a_rung_without_a_time_says_why() {
    let records = [
        broken("a15", "wrong", "out: 3 where the oracle says 4"),
        broken("a09", "hung", "no answer within 60 s"),
        broken("a13", "refused", "1 head: too few to share"),
        rung("a01", 3.2),
    ];
    let page = page_of(&records);
    has(
        &page,
        &[
            "WRONG: out: 3 where the oracle says 4",
            "refused: 1 head: too few to share",
            "Without a time, hung: a09; refused: a13; wrong: a15.",
            "4 rungs, 3 without a time",
            "2 of them broken on some problem",
        ],
    );
    let row = page.split("<tr>").find(|row| row.contains("<b>a15</b>"));
    let row = row.expect("a row");
    assert!(
        row.contains("<b>wrong</b>") && !row.contains("<b>1.0"),
        "{row}"
    );
    assert_eq!(
        warnings(&run_of(&records))[..2],
        [
            "Rung a15 was wrong on seed-full/uniform, so it has no time there: out: 3 where the oracle says 4.",
            "Rung a09 hung on seed-full/uniform, so it has no time there: no answer within 60 s.",
        ]
    );
}

#[test]
fn a_reason_that_is_the_same_on_every_problem_is_told_once() {
    let wrong = broken("a15", "wrong", "a sum is missing");
    let local = with(wrong.clone(), json!({"distribution": "local"}));
    let said = warnings(&run_of(&[wrong, local]));
    assert_eq!(said.len(), 1, "{said:?}");
    has(&said[0], &["seed-full/uniform, seed-full/local"]);
}

#[test]
fn what_was_published_stands_beside_what_was_found() {
    let claim = |words: &str, why: &str| json!({"claim": {"words": words, "why": why}});
    let page = page_of(&[
        rung("a01", 3.2),
        with(
            rung("a03", 0.8),
            claim("0.741 ms", "most of its points cost nothing"),
        ),
        with(
            broken("a10", "crashed", "an illegal instruction"),
            claim("0.766 ms", "never launched"),
        ),
    ]);
    let table = page
        .split("What was published, and what we found</h3>")
        .nth(1);
    let table = table.expect("the table");
    has(
        table,
        &[
            "0.741 ms",
            "<b>0.800</b>",
            "9.48 TFLOP/s",
            "most of its points cost nothing",
            "<b>crashed</b>",
            "never launched",
        ],
    );
    assert!(!page_of(&[rung("a01", 3.2)]).contains("What was published"));
}

#[test]
fn single_changes_are_shown_with_the_range_of_their_turns() {
    let against = |ratio: f64, low: f64, high: f64| {
        json!({"builds_on": "a03", "claim": {"words": "+5.3 %", "why": "another baseline"},
            "against": {"rung": "a03", "ratio": ratio, "low": low, "high": high, "turns": 5}})
    };
    let page = page_of(&[
        rung("a03", 0.8),
        with(rung("s1-sure", 0.7), against(0.8, 0.78125, 0.9)),
        with(rung("s1-unsure", 0.8), against(1.0, 0.98, 1.01)),
        with(
            broken("s2-wrong", "wrong", "a sum is missing"),
            json!({"builds_on": "a03"}),
        ),
    ]);
    let table = page.split("What single changes gain</h3>").nth(1);
    let table = table.expect("the table");
    has(
        table,
        &[
            "Why the published gains differ: another baseline.",
            "<b>+25.0 %</b><small>+11.1 % to +28.0 %</small>",
            ">+0.0 %<small>-1.0 % to +2.0 %</small>",
            "+5.3 %",
            "s2-wrong",
        ],
    );
}

#[test]
fn small_problems_are_tables_only() {
    let small = json!({"workload": "small", "problem": {"images": 2, "queries": 256, "heads": 1,
        "channels": 32, "points": 8, "pixels": 340, "levels": [[16, 16]]}});
    let report = Report::new(&[run_of(&[rung("a01", 3.2), with(rung("a01", 0.01), small)])]);
    let plots: Vec<_> = report.plots().into_iter().map(|plot| plot.name).collect();
    assert_eq!(plots, ["rungs-seed-full-uniform"]);
    has(
        &report.html().unwrap(),
        &["Small problems", "small, uniform: details of 1 rung"],
    );
}

#[test]
fn names_of_pictures_are_names_of_files() {
    assert_eq!(slug("seed-full, local", 2), "seed-full-local");
    for hostile in ["../a, b", "", "a b, c", &"a".repeat(99)] {
        let name = slug(hostile, 2);
        assert!(name.len() < 64 && !name.contains(['/', '.', ' ']), "{name}");
    }
}

#[test]
fn records_that_say_anything_make_a_page() {
    let hostile = "</script><img src=x onerror=alert(1)>|\u{0}\u{202e}{{ 7*7 }}";
    let mut records = vec![];
    for (index, median) in [5e-324, 1e-300, 1.0, 1e300].into_iter().enumerate() {
        let name = format!("{hostile}{index}");
        let fields = json!({"title": hostile, "workload": hostile, "distribution": hostile, "builds_on": "a01",
            "claim": {"words": hostile, "why": hostile}, "parameters": {hostile: u32::MAX}, "approximate": 1e300,
            "of_gather": 1e300, "of_dram": -1e300, "scratch_bytes": u64::MAX, "sanitizer": {hostile: hostile},
            "small": {"right": 0, "elements": usize::MAX, "refused": [hostile]},
            "binding": {"limit": hostile, "busy": -3.5, "words": hostile},
            "against": {"rung": hostile, "ratio": 1.0, "low": 1e-300, "high": 1e300, "turns": 0},
            "prepared": timing(median)});
        records.push(with(rung(&name, median), fields.clone()));
        records.push(with(rung("a01", median), fields));
    }
    records.push(broken(hostile, "wrong", hostile));
    let report = Report::new(&[run_of(&records)]);
    let (html, markdown) = (report.html().unwrap(), report.markdown(None).unwrap());
    for page in [&html, &markdown] {
        for bad in [
            "<img", "\u{202e}", "\u{0}", "NaN", "=\"inf", ">inf", ">-inf",
        ] {
            assert!(!page.contains(bad), "{bad:?} is in the page");
        }
    }
    assert_eq!(html.matches("</script").count(), 1);
}

/// A dense rung that was right on a large problem.
fn dense(name: &str, median: f64) -> Value {
    let problem = json!({"batch": 4, "heads": 16, "queries": 2048, "keys": 2048, "channels": 64, "dtype": "f16",
        "causal": false});
    let fields = json!({"workload": "dense-b4-h16-s2048", "distribution": "full", "problem": problem,
        "traffic": {"compulsory_bytes": 67_108_864u64, "gathered_bytes": 0, "flop": 68_719_476_736u64},
        "of_gather": null, "of_tensor": 0.5});
    with(rung(name, median), fields)
}

#[test]
fn dense_rungs_stand_by_themselves_beside_what_is_not_ours() {
    let claim = json!({"claim": {"words": "2870 us on an L4", "why": "on another GPU"}});
    let library = json!({"library": "PyTorch 2, CUDA 13", "launches": [], "small": null});
    let page = page_of(&[
        rung("a01", 3.2),
        with(dense("d01", 14.0), claim),
        with(dense("d06", 0.28), json!({"builds_on": "d01"})),
        with(dense("d09-cudnn", 0.15), library),
        dense("shipped-dense", 0.2),
    ]);
    has(
        &page,
        &[
            "Dense attention",
            "dense-b4-h16-s2048, full: every rung by time",
            "4 sequences, 2048 queries and 2048 keys each, 16 heads",
            "shipped-dense, 0.200 ms",
            "× d01",
            "50.0 times as fast as d01",
            "tensor: 50 %",
            "other library: PyTorch 2, CUDA 13",
            "2870 us on an L4",
            "4 per channel and pair of query and key",
            "5 results of 3 rungs",
        ],
    );
    let deformable = page_of(&[rung("a01", 3.2)]);
    assert!(!deformable.contains("d01"));
    let dense = page_of(&[dense("d01", 14.0)]);
    assert!(dense.contains("Dense attention on "));
    assert!(!dense.contains("a01") && !dense.contains("eformable"));
}
