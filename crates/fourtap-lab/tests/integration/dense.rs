//! Dense attention from the command line: computed, checked, timed, explained, compared and shown.

use std::fs;
use std::path::Path;

use crate::common::{self, Entry, entry, fails, folder_with, fourtap, with_header};
use serde_json::{Value, json};

const SMALL: &str = r#"
operator = "dense"
name = "small"
description = "milliseconds to time"
batch = 2
heads = 4
key_heads = 2
queries = 70
keys = 90
channels = 8
causal = "bottom-right"
"#;

fn f32s(name: &str, shape: &[u64], numbers: &[f32]) -> Entry {
    let data = numbers.iter().flat_map(|number| number.to_le_bytes());
    entry(name, "F32", shape, data.collect())
}

/// One head of one channel: queries of 0, which weigh all keys they see alike, and values 10, 20 and 60.
fn valid() -> Vec<Entry> {
    vec![
        f32s("query", &[1, 1, 3, 1], &[0.0; 3]),
        f32s("key", &[1, 1, 3, 1], &[1.0, 2.0, 3.0]),
        f32s("value", &[1, 1, 3, 1], &[10.0, 20.0, 60.0]),
    ]
}

/// The file, with metadata.
pub fn file(entries: &[Entry], metadata: &Value) -> Vec<u8> {
    let mut header = json!({"__metadata__": metadata});
    let mut data = Vec::new();
    for entry in entries {
        let begin = data.len();
        data.extend(&entry.data);
        header[&entry.name] = json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [begin, data.len()]});
    }
    with_header(header.to_string().as_bytes(), &data)
}

/// Every f32 of a tensor in a file that was written.
fn tensor(path: &Path, name: &str) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let place = |end: usize| header[name]["data_offsets"][end].as_u64().unwrap() as usize;
    let data = &bytes[8 + length..][place(0)..place(1)];
    let numbers = data
        .chunks(4)
        .map(|one| f32::from_le_bytes(one.try_into().unwrap()));
    numbers.collect()
}

fn run(bytes: &[u8], more: &[&str]) -> (tempfile::TempDir, common::Outcome) {
    let folder = folder_with(bytes);
    let call = [
        "run",
        "in.safetensors",
        "-o",
        "out.safetensors",
        "--device",
        "cpu",
    ];
    let outcome = fourtap(folder.path(), call.iter().chain(more));
    (folder, outcome)
}

#[test]
fn run_computes_what_the_metadata_asks_for() {
    for (metadata, expected) in [
        (json!({}), [30.0, 30.0, 30.0]),
        (json!({"format": "pt"}), [30.0, 30.0, 30.0]),
        (json!({"causal": "top-left"}), [10.0, 15.0, 30.0]),
        (json!({"window": "0,0", "scale": "2.5"}), [10.0, 20.0, 60.0]),
        (json!({"window": "all,1"}), [15.0, 30.0, 30.0]),
        (
            json!({"causal": "bottom-right", "window": "1,5"}),
            [10.0, 15.0, 40.0],
        ),
    ] {
        let (folder, outcome) = run(&file(&valid(), &metadata), &["--lse"]);
        assert_eq!(outcome.code, Some(0), "{metadata}: {outcome:?}");
        let written = folder.path().join("out.safetensors");
        assert_eq!(tensor(&written, "out"), expected, "{metadata}");
        assert_eq!(tensor(&written, "lse").len(), 3, "{metadata}");
    }
    let (folder, _) = run(&file(&valid(), &json!({"causal": "top-left"})), &["--lse"]);
    let lse = tensor(&folder.path().join("out.safetensors"), "lse");
    assert_eq!(lse, [1f32, 2.0, 3.0].map(f32::ln));
}

#[test]
fn run_refuses_what_makes_no_sense() {
    let changed = |changed: Entry| {
        let mut entries = valid();
        let place = entries
            .iter()
            .position(|it| it.name == changed.name)
            .unwrap();
        entries[place] = changed;
        file(&entries, &json!({}))
    };
    let with = |metadata: Value| file(&valid(), &metadata);
    let bad = [
        (
            changed(f32s("key", &[1, 1, 3, 2], &[0.0; 6])),
            "key: expected shape [1, Hk, Sk, 1], found [1, 1, 3, 2]",
        ),
        (
            changed(f32s("query", &[1, 3, 1], &[0.0; 3])),
            "query: expected rank 4 [B, Hq, Sq, D], found rank 3",
        ),
        (
            changed(entry("value", "F16", &[1, 1, 3, 1], vec![0; 6])),
            "value: expected element type f32 (that of query), found f16",
        ),
        (
            changed(entry("key", "I64", &[1, 1, 3, 1], vec![0; 24])),
            "key: expected element type F16, BF16, F32 or F64, found I64",
        ),
        (
            file(&valid()[..2], &json!({})),
            "expected a tensor value, found only key, query",
        ),
        (
            with(json!({"causal": "yes"})),
            "metadata causal: expected top-left or bottom-right, found yes",
        ),
        (
            with(json!({"window": "4"})),
            "metadata window: expected LEFT,RIGHT, each a number or all, found 4",
        ),
        (
            with(json!({"window": "-1,0"})),
            "metadata window: expected LEFT,RIGHT, each a number or all, found -1,0",
        ),
        (
            with(json!({"scale": "big"})),
            "metadata scale: expected a number, found big",
        ),
        (with(json!({"scale": "inf"})), "scale"),
    ];
    for (bytes, expected) in bad {
        let (folder, outcome) = run(&bytes, &[]);
        fails(expected, &outcome, expected);
        assert_eq!(
            common::names(folder.path()).len(),
            1,
            "nothing is left behind"
        );
    }
}

#[test]
fn options_of_the_other_operator_are_refused() {
    let (folder, outcome) = run(&file(&valid(), &json!({})), &["--grad"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    let refused = "--grad: expected a problem of deformable attention, found in.safetensors";
    assert!(outcome.stderr.contains(refused), "{outcome:?}");
    let backward = ["bench", "in.safetensors", "--direction", "backward"];
    for call in [
        &backward[..],
        &["explain", "dense-decode", "--direction", "backward"],
    ] {
        let outcome = fourtap(folder.path(), call);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains("forward pass only"), "{outcome:?}");
    }
    let (_, outcome) = run(&common::encode(&common::valid()), &["--lse"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("--lse: expected a problem of dense attention"),
        "{outcome:?}"
    );
    let outcome = fourtap(folder.path(), ["profile", "dense-decode"]);
    assert_ne!(outcome.code, Some(0), "{outcome:?}");
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
}

/// A folder with the small workload, and its results in f32 and bf16.
fn measured() -> (tempfile::TempDir, Vec<Value>) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    let call = [
        "bench",
        "small.toml",
        "--device",
        "cpu",
        "--quick",
        "--dtype",
        "f32,bf16",
        "--json",
        "results.jsonl",
    ];
    let outcome = fourtap(folder.path(), call);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    for part in [
        "Dense attention",
        "small",
        "f32",
        "bf16",
        "FLOP/s",
        "fma-f32",
    ] {
        assert!(outcome.stdout.contains(part), "{part}: {outcome:?}");
    }
    let lines = fs::read_to_string(folder.path().join("results.jsonl")).unwrap();
    let parsed = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let benches = parsed.filter(|record: &Value| record["kind"] == "bench");
    let benches = benches.collect();
    (folder, benches)
}

#[test]
fn results_are_records_that_compare_and_report_read() {
    let (folder, benches) = measured();
    assert_eq!(benches.len(), 2);
    for (record, dtype) in benches.iter().zip(["f32", "bf16"]) {
        assert_eq!(record["problem"]["key_heads"], 2);
        assert_eq!(record["problem"]["batch"], 1, "quick: one sequence");
        assert_eq!(
            record["problem"]["mask"],
            json!({"alignment": "bottom-right", "right": 0})
        );
        assert_eq!(record["dtypes"], json!({"value": dtype}));
        assert_eq!(record["distribution"], "normal");
        // Query i of 70 sees 21 + i of 90 keys.
        let pairs: u64 = 4 * (0..70).map(|i| 21 + i).sum::<u64>();
        assert_eq!(record["traffic"]["flop"], 4 * 8 * pairs);
        assert_eq!(record["verification"]["passed"], true);
        assert!(record["hot"]["median_ms"].as_f64().unwrap() > 0.0);
    }
    let compared = fourtap(
        folder.path(),
        ["compare", "results.jsonl", "results.jsonl", "--all"],
    );
    assert_eq!(compared.code, Some(0), "{compared:?}");
    for name in ["small/normal/f32/forward", "small/normal/bf16/forward"] {
        assert!(compared.stdout.contains(name), "{compared:?}");
    }
    let reported = fourtap(
        folder.path(),
        ["report", "results.jsonl", "-o", "page.html"],
    );
    assert_eq!(reported.code, Some(0), "{reported:?}");
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    for part in [
        "<section id=\"dense\"",
        "Dense attention on",
        "H 4 and 2",
        "causal, bottom-right",
        "2 benchmarks",
    ] {
        assert!(page.contains(part), "{part}");
    }
    for part in ["<section id=\"speed\"", "<section id=\"roofline\""] {
        assert!(!page.contains(part), "{part}");
    }
}

#[test]
fn a_file_is_timed_as_it_is() {
    let folder = folder_with(&file(&valid(), &json!({"causal": "top-left"})));
    let call = [
        "bench",
        "in.safetensors",
        "--device",
        "cpu",
        "--quick",
        "--json",
        "-",
    ];
    let outcome = fourtap(folder.path(), call);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let record: Value = serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(record["distribution"], "file");
    assert_eq!(record["direction"], "forward");
    assert_eq!(record["traffic"]["flop"], 4 * 6);
    // All rows of so small a problem.
    assert_eq!(record["verification"]["rows"], 3);
}

#[test]
fn a_file_of_nan_is_wrong_and_has_no_time() {
    let mut entries = valid();
    entries[2] = f32s("value", &[1, 1, 3, 1], &[1.0, f32::NAN, 2.0]);
    let folder = folder_with(&file(&entries, &json!({})));
    let call = [
        "bench",
        "in.safetensors",
        "--device",
        "cpu",
        "--quick",
        "--json",
        "-",
    ];
    let outcome = fourtap(folder.path(), call);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    let record: Value = serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(record["verification"]["passed"], false);
    assert!(record.get("hot").is_none(), "{record}");
}

#[test]
fn large_problems_are_skipped_on_a_cpu_with_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let call = [
        "bench",
        "dense",
        "--device",
        "cpu",
        "--quick",
        "--dtype",
        "f32",
        "--filter",
        "dense-s512",
    ];
    let outcome = fourtap(folder.path(), call);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("dense-s512-d64"), "{outcome:?}");
    assert!(outcome.stderr.contains("skipped"), "{outcome:?}");
    for (name, is_left_out) in [
        ("dense-b4-s8192-d64,", true),
        ("dense-s16384-d128,", true),
        ("dense-b4-s2048-d64,", false),
        ("dense-s2048-d64,", false),
    ] {
        assert_eq!(
            outcome.stderr.contains(name),
            is_left_out,
            "{name}: {outcome:?}"
        );
    }
}

#[test]
fn a_workload_says_which_field_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    for (from, to, expected) in [
        (
            "batch = 2",
            "batch = 0",
            "batch: expected at least 1, found 0",
        ),
        (
            "key_heads = 2",
            "key_heads = 3",
            "key_heads: expected a number that divides heads, 4, found 3",
        ),
        ("bottom-right", "left", "top-left"),
        (
            "channels = 8",
            "channels = 8\nspeed = 9",
            "unknown field `speed`",
        ),
        ("channels = 8\n", "", "missing field `channels`"),
        ("\"dense\"", "\"sparse\"", "sparse"),
        (
            "keys = 90",
            "keys = 4294967295\nwindow = { left = 1, up = 2 }",
            "up",
        ),
        (
            "keys = 90",
            "keys = 4294967295\nvalue_channels = 4294967295",
            "can be counted",
        ),
    ] {
        let text = SMALL.replace(from, to);
        fs::write(folder.path().join("bad.toml"), text).unwrap();
        for command in ["bench", "explain"] {
            let outcome = fourtap(folder.path(), [command, "bad.toml"]);
            fails(to, &outcome, expected);
        }
    }
}

#[test]
fn explain_counts_and_names_the_bottleneck() {
    let folder = tempfile::tempdir().unwrap();
    let explained = |more: &[&str]| {
        let call = ["explain", "dense-b4-s2048-d64-causal", "--json"];
        let outcome = fourtap(folder.path(), call.iter().chain(more));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        serde_json::from_str::<Value>(&outcome.stdout).unwrap()
    };
    let on_gpu = explained(&[]);
    let pairs = 4 * 16 * 2048 * 2049 / 2u64;
    assert_eq!(on_gpu["exponentials"], pairs);
    assert_eq!(on_gpu["flop"], 4 * 64 * pairs);
    assert_eq!(on_gpu["compulsory_bytes"], 4 * 4 * 16 * 2048 * 64 * 2u64);
    assert_eq!(on_gpu["floor_hot"]["limit"], "tensor");
    let least = on_gpu["floor_hot"]["milliseconds"].as_f64().unwrap();
    // 34.4 GFLOP at the 795 TFLOP/s measured on an H200.
    assert!((0.040..0.047).contains(&least), "{least}");
    let exponentials = on_gpu["limits"].as_array().unwrap().iter();
    let unknown: Vec<_> = exponentials
        .filter(|limit| limit["name"] == "exp")
        .collect();
    assert!(
        unknown[0]["milliseconds"].is_null(),
        "nothing measures them"
    );

    let cpu = explained(&["--device", "cpu", "--dtype", "f32"]);
    assert!(cpu["floor_hot"].is_null(), "no ceilings, no floor");
    let words = fourtap(
        folder.path(),
        ["explain", "dense-decode", "--dtype", "bf16"],
    );
    for part in [
        "32 heads that share 8 of keys and values",
        "exponentials",
        "causal, bottom-right",
        "may be higher",
    ] {
        assert!(words.stdout.contains(part), "{part}: {words:?}");
    }
    assert!(
        words.stdout.lines().all(|line| line.chars().count() <= 100),
        "{words:?}"
    );
}

#[test]
fn explain_compares_a_result_with_the_lower_bound() {
    let (folder, _) = measured();
    let call = [
        "explain",
        "small.toml",
        "--dtype",
        "f32",
        "--images",
        "1",
        "--probes",
        "results.jsonl",
        "--json",
    ];
    let outcome = fourtap(folder.path(), call);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let explained: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(explained["floor_hot"]["limit"], "fma");
    assert!(explained["achieved"]["hot_share"].as_f64().unwrap() > 0.0);
    assert!(explained["achieved"]["gathered_gb_s"].is_null());
}
