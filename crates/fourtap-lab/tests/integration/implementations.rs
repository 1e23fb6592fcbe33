//! fourtap beside other implementations: the section of a report, and its chart.

use serde_json::{Value, json};

use crate::common::pages::{HOSTILE, folder_of, page};
use crate::common::{fails, fourtap};

fn timing(implementation: &str, direction: &str, milliseconds: f64) -> Value {
    json!({"record": "peers", "machine": "NVIDIA H200", "date": "2026-11-17", "workload": "detr-encoder",
        "distribution": "local", "dtype": "f16", "implementation": implementation, "direction": direction,
        "milliseconds": milliseconds, "turns_ms": [milliseconds, 1.01 * milliseconds],
        "graph_microseconds": null, "error": 2e-4, "tolerance": 1e-3, "verdict": "ok", "note": "",
        "something_new": {"that": "is passed over"}})
}

fn rivals() -> Vec<Value> {
    let mut inaccurate = timing("mmcv", "forward", 1.78);
    inaccurate["error"] = json!(2.5e-2);
    inaccurate["verdict"] = json!("inaccurate");
    let mut unsupported = timing("DCNv4", "backward", 1.0);
    unsupported["milliseconds"] = json!(null);
    unsupported["verdict"] = json!("unsupported");
    unsupported["note"] = json!("three levels only");
    vec![
        timing("grid_sample", "forward", 9.0),
        inaccurate,
        timing("fourtap", "forward", 0.5),
        timing("fourtap", "backward", 1.5),
        unsupported,
    ]
}

#[test]
fn implementations_stand_by_time_and_what_is_not_right_says_its_error() {
    let folder = folder_of(&[("peers.jsonl", &rivals())]);
    let (html, _) = page(folder.path(), &["peers.jsonl"], "a.html");
    let section = html.split("<section id=\"implementations\"").nth(1);
    let section = section.expect("the section");
    assert!(html.contains("Against other implementations"));
    assert!(html.contains("on NVIDIA H200"));
    let chart = section.split("<figcaption>").next().unwrap();
    let order = [
        "0.500 ms",
        "1.780 ms (3.6×), error 2.5 %",
        "9.000 ms (18.0×)",
        "1.500 ms",
        "unsupported",
    ];
    let place = |words: &&str| chart.find(&format!("\"text\": \"{words}\""));
    let places: Vec<_> = order
        .iter()
        .map(|words| place(words).expect(words))
        .collect();
    assert!(places.is_sorted(), "{places:?}");
    for (shape, count) in [("bar-ours", 2), ("bar-other", 1), ("bar-hatched", 1)] {
        assert_eq!(chart.matches(shape).count(), count, "{shape}");
    }
    assert!(section.contains("three levels only"));
}

#[test]
fn records_that_claim_what_cannot_be_are_refused() {
    for (field, value, expected) in [
        ("milliseconds", json!(-1.0), "a time that is none"),
        ("milliseconds", json!(null), "a result without a time"),
        ("verdict", json!("great"), "great"),
        ("direction", json!("sideways"), "sideways"),
    ] {
        let mut record = timing("fourtap", "forward", 1.0);
        record[field] = value;
        let folder = folder_of(&[("peers.jsonl", &[record])]);
        let outcome = fourtap(folder.path(), ["report", "peers.jsonl", "-o", "a.html"]);
        fails(field, &outcome, expected);
    }
}

#[test]
fn hostile_names_stay_names() {
    let mut record = timing(HOSTILE, "forward", 1.0);
    for field in [
        "machine",
        "date",
        "workload",
        "distribution",
        "dtype",
        "note",
    ] {
        record[field] = json!(HOSTILE);
    }
    let folder = folder_of(&[("peers.jsonl", &[record])]);
    let (html, _) = page(folder.path(), &["peers.jsonl"], "a.html");
    assert!(!html.contains("<img"), "{html}");
}
