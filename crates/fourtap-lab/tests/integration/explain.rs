//! `fourtap explain`: amounts over measured ceilings, with or without a GPU.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{command, encode, fails, fourtap, outcome, valid};
use serde_json::{Value, json};
use tempfile::TempDir;

/// 1600 samples of 64 bytes a neighbour.
const SMALL: &str = r#"
name = "small"
description = "few enough to count by hand"
images = 2
queries = 100
heads = 2
channels = 32
levels = [[8, 8], [4, 4]]
points = 2
reference = "raster"
"#;

fn device() -> Value {
    json!({"kind": "cuda", "model": "NVIDIA H200", "cuda": {
        "ordinal": 0, "compute_capability": "9.0", "multiprocessors": 132, "l2_bytes": 62914560,
        "memory_bytes": 150_000_000_000u64, "driver_cuda": "13.0", "driver": null, "nvrtc": null}})
}

fn probe(device: &Value, name: &str, rate: f64, unit: &str) -> String {
    json!({"kind": "probe", "schema": 2, "version": "0", "unix_time": 0, "device": device, "name": name,
        "group": "ceiling", "what": "", "outcome": "measured", "words": "", "rate": rate, "unit": unit})
    .to_string()
        + "\n"
}

fn ceilings() -> Vec<(&'static str, f64, &'static str)> {
    vec![
        ("copy", 4000.0, "GB/s"),
        ("dram-read", 4400.0, "GB/s"),
        ("l2-read", 6000.0, "GB/s"),
        ("gather-64-l1", 20_000.0, "GB/s"),
        ("gather-128-l1", 24_000.0, "GB/s"),
        ("gather-64-shared", 20_000.0, "GB/s"),
        ("gather-64-1mb", 10_000.0, "GB/s"),
        ("gather-64-10mb", 9000.0, "GB/s"),
        ("gather-64-40mb", 7000.0, "GB/s"),
        ("dsmem-read-8", 1800.0, "GB/s"),
        ("atomic-v4f32-spread", 250.0, "G/s"),
        ("fma-f32", 60_000.0, "GFLOP/s"),
        ("tensor-wgmma-f16", 700_000.0, "GFLOP/s"),
        ("launch-latency-graph", 1.5, "us"),
        ("tile-tma-l2", 2700.0, "GB/s"),
        ("tile-tma-l2-f32", 2700.0, "GB/s"),
    ]
}

/// A folder with the small workload and a file of ceilings, of which some are changed.
fn folder(changed: &[(&str, f64)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    let lines: String = ceilings()
        .into_iter()
        .map(|(name, rate, unit)| {
            let other = changed.iter().find(|(changed, _)| *changed == name);
            probe(&device(), name, other.map_or(rate, |(_, rate)| *rate), unit)
        })
        .collect();
    fs::write(folder.path().join("probe.jsonl"), lines).unwrap();
    folder
}

fn explained(folder: &Path, arguments: &[&str]) -> Value {
    let outcome = fourtap(folder, ["explain", "--json"].iter().chain(arguments));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.stdout.lines().count(), 1, "one object");
    serde_json::from_str(&outcome.stdout).unwrap()
}

fn limit<'a>(explanation: &'a Value, name: &str) -> &'a Value {
    let limits = explanation["limits"].as_array().unwrap();
    let found = limits.iter().find(|limit| limit["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {explanation}"))
}

fn runs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../runs/2026-11-15-h200")
}

#[test]
fn a_predicted_time_is_the_amount_over_the_ceiling() {
    let folder = folder(&[]);
    let explanation = explained(folder.path(), &["small.toml", "--probes", "probe.jsonl"]);
    let amounts = &explanation["amounts"];
    assert_eq!(amounts["samples"], 1600);
    assert_eq!(amounts["flop"], 10 * 32 * 1600);
    assert_eq!(amounts["least_flop"], 8 * 32 * 1600);
    assert_eq!(amounts["gathered_bytes"], 4 * 64 * 1600);
    let near = |value: &Value, expected: f64| {
        let found = value.as_f64().unwrap();
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    };
    near(
        &limit(&explanation, "l1")["milliseconds"],
        409_600.0 / 20e12 * 1e3,
    );
    near(
        &limit(&explanation, "fma")["milliseconds"],
        409_600.0 / 60e12 * 1e3,
    );
    near(&limit(&explanation, "launch")["milliseconds"], 0.0015);
    // Reading is faster than copying here, and a floor takes the faster.
    assert_eq!(limit(&explanation, "dram")["probe"], "dram-read");
    let intensity = explanation["memory"][0]["intensity"].as_f64();
    assert_eq!(
        intensity,
        Some(1.25),
        "10 operations for 4 neighbours of 2 bytes"
    );
}

#[test]
fn the_slowest_part_is_the_bottleneck() {
    for (ceiling, rate, floor, expected) in [
        ("gather-64-l1", 1.0, "floor_hot", "l1"),
        ("l2-read", 0.1, "floor_hot", "l2"),
        ("fma-f32", 0.1, "floor_hot", "issue"),
        ("launch-latency-graph", 1e6, "floor_hot", "launch"),
    ] {
        let folder = folder(&[(ceiling, rate)]);
        let explanation = explained(folder.path(), &["small.toml", "--probes", "probe.jsonl"]);
        assert_eq!(explanation[floor]["limit"], expected, "{ceiling}");
    }
}

#[test]
fn memory_limits_only_what_no_cache_holds() {
    let folder = folder(&[("copy", 0.01), ("dram-read", 0.01)]);
    let explanation = explained(folder.path(), &["small.toml", "--probes", "probe.jsonl"]);
    assert_eq!(explanation["floor_cold"]["limit"], "dram");
    assert_ne!(explanation["floor_hot"]["limit"], "dram");
}

#[test]
fn wide_pixels_are_held_to_the_wide_gather() {
    let folder = folder(&[]);
    let arguments = ["small.toml", "--probes", "probe.jsonl", "--dtype", "f32"];
    let explanation = explained(folder.path(), &arguments);
    assert_eq!(limit(&explanation, "l1")["probe"], "gather-128-l1");
}

#[test]
fn atomic_additions_are_counted_by_number() {
    let folder = folder(&[]);
    let arguments = ["small.toml", "--probes", "probe.jsonl"];
    let backward = ["--direction", "backward", "--dtype", "f32"];
    let arguments: Vec<_> = arguments.iter().chain(&backward).copied().collect();
    let explanation = explained(folder.path(), &arguments);
    let atomic = limit(&explanation, "atomic");
    assert_eq!(atomic["amount"], 4.0 * 32.0 * 1600.0);
    let milliseconds = atomic["milliseconds"].as_f64().unwrap();
    assert!((milliseconds - 204_800.0 / 250e9 * 1e3).abs() < 1e-12);
    // Few samples in f32 are added that way.
    assert_eq!(atomic["when"], "always");
}

#[test]
fn every_workload_is_explained_without_a_gpu_in_100_columns() {
    let folder = folder(&[]);
    let workloads = [
        "seed-full",
        "detr-encoder",
        "dino-decoder",
        "rtdetr-decoder",
        "bev-d64",
    ];
    let probes = ["--probes", "probe.jsonl"];
    for workload in workloads {
        for dtype in ["f16", "f32"] {
            for direction in ["forward", "backward"] {
                let case = [workload, "--dtype", dtype, "--direction", direction];
                reads_well(folder.path(), case.iter().chain(&probes));
            }
        }
    }
    // By the ceilings it carries, and where no fast kernel serves.
    reads_well(folder.path(), &["rtdetr-decoder"]);
    reads_well(folder.path(), &["rtdetr-decoder", "--dtype", "f64"]);
}

fn reads_well<'a>(folder: &Path, case: impl IntoIterator<Item = &'a &'a str>) {
    // By the committed table of what kernels take: to compile each would take a minute.
    let mut explain = command(folder);
    explain.env("FOURTAP_NVRTC", "/nowhere").arg("explain");
    let outcome = outcome(explain.args(case));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let widest = outcome
        .stdout
        .lines()
        .map(|line| line.chars().count())
        .max();
    assert!(widest <= Some(100), "{widest:?}:\n{}", outcome.stdout);
    assert!(outcome.stdout.contains("Lower bound"), "{}", outcome.stdout);
    assert!(!outcome.stdout.contains("NaN"), "{}", outcome.stdout);
}

#[test]
fn the_kernel_is_the_one_that_ran_on_such_a_device() {
    let folder = folder(&[]);
    let explanation = explained(folder.path(), &["seed-full", "--probes", "probe.jsonl"]);
    let kernel = &explanation["machine"]["kernels"][0];
    assert_eq!(
        kernel["name"],
        "msda-forward-matrix-f16-d32-l4-p8-u4-t512-keep"
    );
    assert_eq!(
        (&kernel["blocks"], &kernel["threads"]),
        (&json!(132), &json!(512))
    );
    assert_eq!(kernel["occupancy"]["blocks"], 1);
    assert_eq!(kernel["occupancy"]["warps"], 16);
}

#[test]
fn a_result_is_compared_with_the_lower_bound() {
    let folder = folder(&[]);
    let runs = runs();
    let results = runs.join("bench.jsonl");
    let results = results.to_str().unwrap();
    let arguments = ["seed-full", "--probes", "probe.jsonl", "--results", results];
    let explanation = explained(folder.path(), &arguments);
    let achieved = &explanation["achieved"];
    let hot = achieved["hot_ms"].as_f64().unwrap();
    let floor = explanation["floor_hot"]["milliseconds"].as_f64().unwrap();
    assert_eq!(achieved["hot_share"].as_f64(), Some(floor / hot));
    let outcome = fourtap(folder.path(), ["explain"].iter().chain(&arguments));
    assert!(
        outcome
            .stdout
            .contains("% of the speed the lower bound allows"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn results_of_other_sizes_are_not_mistaken_for_it() {
    let folder = folder(&[]);
    let runs = runs();
    let arguments = [
        "seed-full",
        "--images",
        "1",
        "--results",
        runs.to_str().unwrap(),
    ];
    let explanation = explained(folder.path(), &arguments);
    assert_eq!(explanation["achieved"], Value::Null);
    let outcome = fourtap(folder.path(), ["explain"].iter().chain(&arguments));
    assert!(
        outcome
            .stderr
            .contains("holds no result of seed-full/local/f16/forward"),
        "{outcome:?}"
    );
}

#[test]
fn counters_replace_the_bounds() {
    let folder = folder(&[]);
    let record = json!({"kind": "counters", "schema": 2, "version": "0", "unix_time": 0, "workload": "small",
        "distribution": "local",
        "problem": {"images": 2, "queries": 100, "heads": 2, "channels": 32, "points": 2, "pixels": 80,
            "levels": [[8, 8], [4, 4]]},
        "dtypes": {"value": "f16", "locations": "f32", "weights": "f32"}, "direction": "forward",
        "device": device(), "kernel": "msda_forward_gather", "launches": 2, "source": "a test",
        "metrics": {"l1tex__m_xbar2l1tex_read_sectors.sum": 2000.0, "dram__bytes_read.sum": 100.0,
            "dram__bytes_write.sum": 60.0},
        "binding": {"limit": "l1", "busy": 0.8, "words": "the load pipe is busy"}});
    fs::write(folder.path().join("counters.jsonl"), format!("{record}\n")).unwrap();
    let arguments = ["small.toml", "--probes", ".", "--distribution", "local"];
    let explanation = explained(folder.path(), &arguments);
    // Two launches, so two computations.
    assert_eq!(explanation["memory"][1]["counted_bytes"], 1000.0 * 32.0);
    assert_eq!(explanation["memory"][2]["counted_bytes"], 80.0);
    assert_eq!(limit(&explanation, "l2")["amount"], 32_000.0);
    let outcome = fourtap(folder.path(), ["explain"].iter().chain(&arguments));
    assert!(
        outcome.stdout.contains("the load pipe is busy"),
        "{outcome:?}"
    );
}

#[test]
fn the_processor_has_ceilings_of_its_own() {
    let folder = folder(&[]);
    let cpu = json!({"kind": "cpu", "model": "a processor", "simd": "avx2", "threads": 2});
    let lines = [
        ("copy", 10.0, "GB/s"),
        ("gather-128-l1", 100.0, "GB/s"),
        ("fma-f32", 200.0, "GFLOP/s"),
    ]
    .map(|(name, rate, unit)| probe(&cpu, name, rate, unit));
    fs::write(folder.path().join("cpu.jsonl"), lines.concat()).unwrap();
    for device in [&["--device", "cpu"][..], &[]] {
        let arguments = ["small.toml", "--probes", "cpu.jsonl"];
        let arguments: Vec<_> = arguments.iter().chain(device).copied().collect();
        let explanation = explained(folder.path(), &arguments);
        assert_eq!(explanation["machine"]["kind"], "cpu");
        assert_eq!(explanation["floor_hot"]["limit"], "l1");
    }
    // Without any it still counts.
    let outcome = fourtap(folder.path(), ["explain", "small.toml", "--device", "cpu"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.stderr.contains("fourtap probe --device cpu"),
        "{outcome:?}"
    );
}

#[test]
fn a_ceiling_that_was_not_measured_is_a_dash_not_a_guess() {
    let folder = folder(&[]);
    fs::write(
        folder.path().join("few.jsonl"),
        probe(&device(), "copy", 4000.0, "GB/s"),
    )
    .unwrap();
    let explanation = explained(folder.path(), &["small.toml", "--probes", "few.jsonl"]);
    assert_eq!(limit(&explanation, "l1")["milliseconds"], Value::Null);
    let verdicts = explanation["verdicts"].as_array().unwrap();
    assert!(
        verdicts
            .iter()
            .all(|verdict| verdict["answer"] == "unknown"),
        "{verdicts:?}"
    );
    let outcome = fourtap(
        folder.path(),
        ["explain", "small.toml", "--probes", "few.jsonl"],
    );
    assert!(
        outcome.stdout.contains("was not measured may be"),
        "{outcome:?}"
    );
}

#[test]
fn boxes_are_judged_by_the_rate_of_their_size() {
    let folder = folder(&[("tile-tma-l2", 1000.0), ("tile-tma-l2-f32", 4000.0)]);
    for (dtype, milliseconds) in [("f16", 409_600.0 / 1e9), ("f32", 819_200.0 / 4e9)] {
        let arguments = ["small.toml", "--probes", "probe.jsonl", "--dtype", dtype];
        let explanation = explained(folder.path(), &arguments);
        let verdicts = explanation["verdicts"].as_array().unwrap();
        let tma = verdicts
            .iter()
            .find(|verdict| verdict["idea"].as_str().unwrap().starts_with("TMA"));
        let found = tma.unwrap()["numbers"]["this_way"].as_f64().unwrap();
        assert!((found - milliseconds).abs() < 1e-12, "{dtype}: {found}");
    }
}

#[test]
fn a_useless_ceiling_is_not_divided_by() {
    let folder = folder(&[("gather-64-l1", 0.0), ("l2-read", -1.0)]);
    let explanation = explained(folder.path(), &["small.toml", "--probes", "probe.jsonl"]);
    assert_eq!(limit(&explanation, "l1")["milliseconds"], Value::Null);
    assert_eq!(limit(&explanation, "l2")["probe"], "gather-64-1mb");
}

#[test]
fn what_cannot_be_explained_is_refused_in_words() {
    let folder = folder(&[]);
    let path = folder.path();
    fs::write(path.join("in.safetensors"), encode(&valid())).unwrap();
    fs::write(path.join("empty.jsonl"), "").unwrap();
    let nameless = json!({"kind": "cuda", "model": null});
    fs::write(
        path.join("nameless.jsonl"),
        probe(&nameless, "copy", 1.0, "GB/s"),
    )
    .unwrap();
    let many = SMALL
        .replace("images = 2", "images = 4294967295")
        .replace("queries = 100", "queries = 2000000")
        .replace("points = 2", "points = 8");
    fs::write(path.join("many.toml"), many).unwrap();
    let large = SMALL
        .replace("images = 2", "images = 1")
        .replace("queries = 100", "queries = 4294967295")
        .replace("points = 2", "points = 4096");
    fs::write(path.join("large.toml"), large).unwrap();
    for (what, arguments, expected) in [
        (
            "more than can be counted",
            &["many.toml"][..],
            "operations can be counted",
        ),
        (
            "more than memory holds",
            &["large.toml"],
            "expected 524288.0 GiB of free memory",
        ),
        (
            "tensors",
            &["in.safetensors"][..],
            "expected a built-in workload or a .toml file",
        ),
        ("a typing error", &["seed-ful"], "did you mean seed-full?"),
        (
            "no file",
            &["seed-full", "--probes", "none.jsonl"],
            "none.jsonl: cannot be read",
        ),
        (
            "no records",
            &["seed-full", "--probes", "empty.jsonl"],
            "found none",
        ),
        (
            "a device nobody described",
            &["seed-full", "--probes", "nameless.jsonl"],
            "without its compute capability",
        ),
        (
            "no GPU",
            &["seed-full", "--device", "cuda:0"],
            "expected a CUDA device",
        ),
        (
            "other probes",
            &["seed-full", "--probes", "probe.jsonl", "--device", "cpu"],
            "no measured probe of a cpu",
        ),
    ] {
        let outcome = fourtap(path, ["explain"].iter().chain(arguments));
        fails(what, &outcome, expected);
    }
}
