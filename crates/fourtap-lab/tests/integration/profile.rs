//! `fourtap profile`: counters through a profiler that need not be there, or from what it wrote elsewhere.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{Outcome, fails, fourtap};
use serde_json::{Value, json};
use tempfile::TempDir;

/// As ncu 2025.3 prints the raw page in base units, with the counters of seed-full in f16, points near their query,
/// that runs/2026-11-15-h200/experiments/17.counters.tsv holds.
const RAW: &str = r#"==PROF== Connected to process 4242 (/usr/bin/fourtap)
==PROF== Profiling "msda_forward_gather" - 0: 0%....50%....100% - 9 passes
==PROF== Disconnected from process 4242
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum","l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed","l1tex__data_pipe_lsu_wavefronts.sum","l1tex__m_xbar2l1tex_read_sectors.sum","l1tex__t_sector_hit_rate.pct","launch__registers_per_thread","smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio","smsp__issue_active.avg.pct_of_peak_sustained_elapsed"
"","","","","","","","","","","","byte","byte","ns","%","","sector","%","register/thread","inst","%"
"0","4242","fourtap","127.0.0.1","msda_forward_gather","1","7","(896, 1, 1)","(132, 1, 1)","0","9.0","392,703,744","47,376,384","424,448","69.74","76,150,612","37,255,072","79.99","72","3.61","72.83"
"#;

/// The long form, as `--page details` has it, with a section's own names and a rule.
const LONG: &str = r#"==PROF== Connected to process 7 (/usr/bin/python3)
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description"
"0","7","python3","127.0.0.1","msda_backward_place(Arguments, Work)","1","7","(128, 1, 1)","(528, 1, 1)","0","9.0","GPU Speed Of Light Throughput","Duration","us","1,180.25","","",""
"0","7","python3","127.0.0.1","msda_backward_place(Arguments, Work)","1","7","(128, 1, 1)","(528, 1, 1)","0","9.0","GPU Speed Of Light Throughput","L2 Cache Throughput","%","35.22","","",""
"0","7","python3","127.0.0.1","msda_backward_place(Arguments, Work)","1","7","(128, 1, 1)","(528, 1, 1)","0","9.0","GPU Speed Of Light Throughput","DRAM Throughput","%","25.15","","",""
"0","7","python3","127.0.0.1","msda_backward_place(Arguments, Work)","1","7","(128, 1, 1)","(528, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","Mbyte","874.58","","",""
"0","7","python3","127.0.0.1","msda_backward_place(Arguments, Work)","1","7","(128, 1, 1)","(528, 1, 1)","0","9.0","GPU Speed Of Light Throughput","","","","SOLBottleneck","WRN","Low compute, ""memory"", and so on"
"1","7","python3","127.0.0.1","void at::native::fill<float>(int)","1","7","(128, 1, 1)","(528, 1, 1)","0","9.0","GPU Speed Of Light Throughput","Duration","us","2.00","","",""
"#;

const SMALL: &str = r#"
name = "small"
description = "never computed here"
images = 1
queries = 20
heads = 2
channels = 32
levels = [[6, 7], [3, 3]]
points = 2
reference = "raster"
"#;

/// A profiler: what it says of itself, and what it does when it is to profile.
const SCRIPT: &str = r#"#!/bin/sh
folder=$(dirname "$0")
case "$1" in
--version)
    echo 'NVIDIA (R) Nsight Compute Command Line Profiler'
    echo 'Version 2025.3.1.0 (build 36398880) (public-release)'
    ;;
--query-metrics) cat "$folder/metrics" ;;
*)
    printf '%s\n' "$@" > "$folder/arguments"
    . "$folder/profile.sh"
    ;;
esac
"#;

/// Leaves a statement as the program would have, and prints the counters.
const WORKS: &str = r#"
previous=
for word in "$@"; do
    [ "$previous" = --statement ] && cp "$folder/statement.json" "$word"
    previous=$word
done
cat "$folder/counters.csv"
"#;

fn folder(profile: &str, counters: &str, known: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("small.toml", SMALL);
    write("ncu", SCRIPT);
    write("profile.sh", profile);
    write("counters.csv", counters);
    write("statement.json", &statement(None));
    let rows: String = known
        .iter()
        .map(|name| format!("{name:60} Counter   byte   # of something\n"))
        .collect();
    let header =
        "Device NVIDIA H200 (GH100)\n-----\nMetric Name  Metric Type  Metric Unit\n-----\n";
    write("metrics", &format!("{header}{rows}"));
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path().join("ncu"), executable).unwrap();
    folder
}

/// Base names of all that is asked for.
const KNOWN: [&str; 30] = [
    "gpu__time_duration",
    "l1tex__data_pipe_lsu_wavefronts",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared",
    "l1tex__t_sector_hit_rate",
    "l1tex__m_xbar2l1tex_read_sectors",
    "lts__t_sectors",
    "lts__t_sectors_srcunit_tex",
    "lts__t_sector_hit_rate",
    "lts__throughput",
    "dram__throughput",
    "dram__bytes_read",
    "dram__bytes_write",
    "sm__throughput",
    "sm__inst_executed",
    "sm__inst_executed_pipe_fma",
    "sm__inst_executed_pipe_tensor",
    "sm__warps_active",
    "sm__pipe_fma_cycles_active",
    "sm__pipe_tensor_cycles_active",
    "smsp__issue_active",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active",
    "smsp__average_warps_issue_stalled_wait_per_issue_active",
    "smsp__average_warps_issue_stalled_not_selected_per_issue_active",
    "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active",
    "smsp__average_warps_issue_stalled_mio_throttle_per_issue_active",
    "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active",
    "smsp__average_warps_issue_stalled_no_instruction_per_issue_active",
    "smsp__average_warps_issue_stalled_branch_resolving_per_issue_active",
];

fn statement(wrong: Option<&str>) -> String {
    json!({
        "device": {"kind": "cuda", "model": "NVIDIA H200", "cuda": {"ordinal": 0, "compute_capability": "9.0",
            "multiprocessors": 132, "l2_bytes": 62914560, "memory_bytes": 150_000_000_000u64, "driver_cuda": "13.0",
            "driver": null, "nvrtc": "13.0"}},
        "verification": {"passed": wrong.is_none(), "found": wrong, "rows": 200, "tensors": []},
    })
    .to_string()
}

fn profiled(folder: &Path, more: &[&str]) -> Outcome {
    let arguments = ["profile", "small.toml", "--ncu", "./ncu"];
    fourtap(folder, arguments.iter().chain(more))
}

#[test]
fn counters_become_a_record_a_table_and_words() {
    let folder = folder(WORKS, RAW, &KNOWN);
    let outcome = profiled(folder.path(), &["--json", "counters.jsonl"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let widest = outcome
        .stdout
        .lines()
        .map(|line| line.chars().count())
        .max();
    assert!(widest <= Some(100), "{}", outcome.stdout);
    for part in [
        "small/local/f16/forward",
        "msda_forward_gather",
        "0.424",
        "bottleneck: instruction issue, busy 73 % of the time, close to it the L1 load/store pipe at 70 %",
        "loads from L2 or DRAM",
    ] {
        let flat = outcome
            .stdout
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(flat.contains(part), "{part}: {}", outcome.stdout);
    }
    let lines = fs::read_to_string(folder.path().join("counters.jsonl")).unwrap();
    let record: Value = serde_json::from_str(lines.trim()).unwrap();
    assert_eq!(record["kind"], "counters");
    assert_eq!(record["source"], "ncu 2025.3.1");
    assert_eq!(record["device"]["model"], "NVIDIA H200");
    assert_eq!(record["launches"], 1);
    assert_eq!(record["metrics"]["dram__bytes_read.sum"], 392_703_744.0);
    let seconds = record["metrics"]["gpu__time_duration.sum"]
        .as_f64()
        .unwrap();
    assert!((seconds - 424_448e-9).abs() < 1e-12, "{seconds}");
    assert_eq!(record["binding"]["limit"], "issue");
    // And `explain` takes it up.
    let arguments = [
        "explain",
        "small.toml",
        "--results",
        "counters.jsonl",
        "--json",
    ];
    let explained = fourtap(folder.path(), arguments);
    let explained: Value = serde_json::from_str(&explained.stdout).unwrap();
    assert_eq!(explained["memory"][1]["counted_bytes"], 37_255_072.0 * 32.0);
}

#[test]
fn only_our_kernels_are_measured_with_clocks_left_alone() {
    let folder = folder(WORKS, RAW, &KNOWN);
    let more = [
        "--dtype",
        "bf16",
        "--direction",
        "backward",
        "--images",
        "3",
    ];
    let outcome = profiled(folder.path(), &more);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let arguments = fs::read_to_string(folder.path().join("arguments")).unwrap();
    let arguments: Vec<&str> = arguments.lines().collect();
    for pair in [
        ["--page", "raw"],
        ["--print-units", "base"],
        ["--clock-control", "none"],
        ["--kernel-name", "regex:^(msda|dense|ladder)_"],
        ["--dtype", "bf16"],
        ["--direction", "backward"],
        ["--images", "3"],
        ["profile", "small.toml"],
    ] {
        assert!(
            arguments.windows(2).any(|words| words == pair),
            "{pair:?}: {arguments:?}"
        );
    }
    assert!(arguments.contains(&"--csv"));
}

#[test]
fn a_name_the_profiler_does_not_know_is_left_out_with_a_word() {
    let fewer: Vec<&str> = KNOWN
        .into_iter()
        .filter(|name| *name != "lts__t_sectors")
        .collect();
    let folder = folder(WORKS, RAW, &fewer);
    let more = [
        "--metrics",
        "sm__pipe_tensor_active.sum,sm__cycles_active.avg",
    ];
    let outcome = profiled(folder.path(), &more);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    for part in [
        "note: sm__pipe_tensor_active: the profiler does not know it",
        "did you mean sm__pipe_tensor_cycles_active?",
        "note: lts__t_sectors: the profiler does not know it on this device, so that unit may be the bottleneck unnoticed",
    ] {
        assert!(outcome.stderr.contains(part), "{part}: {}", outcome.stderr);
    }
    let arguments = fs::read_to_string(folder.path().join("arguments")).unwrap();
    assert!(!arguments.contains("sm__pipe_tensor_active"), "{arguments}");
    assert!(!arguments.contains("lts__t_sectors."), "{arguments}");
}

#[test]
fn what_goes_wrong_is_said_in_words() {
    let permission = "echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU \
                      Performance Counters on the target device 0.'; exit 1";
    let metric =
        r"echo '==ERROR== Failed to find metric regex:^sm__no_such_thing\.(sum|avg)$'; exit 1";
    for (what, profile, code, expected) in [
        (
            "permission",
            permission,
            1,
            "found no permission to (ERR_NVGPUCTRPERM)",
        ),
        (
            "the hint",
            permission,
            1,
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        (
            "a metric",
            metric,
            2,
            "--metrics sm__no_such_thing: expected the name of a counter",
        ),
    ] {
        let folder = folder(profile, "", &KNOWN);
        let outcome = profiled(folder.path(), &[]);
        assert_eq!(outcome.code, Some(code), "{what}: {outcome:?}");
        assert!(outcome.stderr.contains(expected), "{what}: {outcome:?}");
        assert_eq!(outcome.stdout, "", "{what}");
    }
    let blind = folder(WORKS, RAW, &["gpu__time_duration"]);
    let outcome = profiled(blind.path(), &[]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("that it knows none of l1tex__data_pipe_lsu_wavefronts"),
        "{outcome:?}"
    );
    // The program did its part, the profiler did not.
    let failing = format!("{WORKS}\necho '==ERROR== LibraryNotLoaded' >&2; exit 9");
    let failed = folder(&failing, "", &KNOWN);
    let outcome = profiled(failed.path(), &[]);
    fails(
        "its own failure",
        &outcome,
        "./ncu: expected counters of the kernels, found LibraryNotLoaded",
    );
    let silent = folder(WORKS, "==WARNING== No kernels were profiled.\n", &KNOWN);
    fails("no counters", &profiled(silent.path(), &[]), "no header");
    let unsaid = folder("cat \"$folder/counters.csv\"", RAW, &KNOWN);
    fails(
        "nothing computed",
        &profiled(unsaid.path(), &[]),
        "found no kernel of fourtap",
    );
}

#[test]
fn counters_of_a_wrong_result_are_not_kept() {
    let folder = folder(WORKS, RAW, &KNOWN);
    let wrong = statement(Some("out: off by 1"));
    fs::write(folder.path().join("statement.json"), wrong).unwrap();
    let outcome = profiled(folder.path(), &["--json", "-"]);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(
        outcome.stderr.contains("verification failed"),
        "{outcome:?}"
    );
    assert_eq!(outcome.stdout, "");
}

#[test]
fn a_missing_or_strange_profiler_is_named() {
    let folder = folder(WORKS, RAW, &KNOWN);
    let path = folder.path();
    let outcome = fourtap(path, ["profile", "small.toml", "--ncu", "nowhere/ncu"]);
    fails(
        "missing",
        &outcome,
        "expected Nsight Compute's ncu, found none at nowhere/ncu",
    );
    assert!(outcome.stderr.contains("--import FILE"), "{outcome:?}");
    let outcome = fourtap(path, ["profile", "small.toml", "--ncu", "small.toml"]);
    fails(
        "no program",
        &outcome,
        "small.toml: expected counters of the kernels, found that it cannot be started",
    );
    let outcome = fourtap(path, ["profile", "small.toml", "--ncu", "/bin/true"]);
    fails(
        "another program",
        &outcome,
        "found a program that does not tell its version",
    );
}

#[test]
fn without_a_driver_that_is_what_is_said() {
    // Runs the program it is given, as the profiler does.
    let runs = r#"
while [ "$1" != --metrics ]; do shift; done
shift 2
"$@" || { echo "==ERROR== The application returned an error code ($?)."; exit 1; }
"#;
    let folder = folder(runs, "", &KNOWN);
    fails(
        "profiled",
        &profiled(folder.path(), &[]),
        "expected a CUDA device, found none to use",
    );
    let arguments = ["profile", "small.toml", "--statement", "statement.json"];
    fails(
        "alone",
        &fourtap(folder.path(), arguments),
        "expected a CUDA device, found none to use",
    );
    let outcome = profiled(folder.path(), &["--device", "cpu"]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("expected to compute on a CUDA device"),
        "{outcome:?}"
    );
}

#[test]
fn what_was_written_elsewhere_is_read_in_both_forms() {
    let folder = folder(WORKS, RAW, &KNOWN);
    let path = folder.path();
    fs::write(path.join("long.csv"), LONG).unwrap();
    let raw = fourtap(
        path,
        [
            "profile",
            "small.toml",
            "--import",
            "counters.csv",
            "--json",
            "-",
        ],
    );
    assert_eq!(raw.code, Some(0), "{raw:?}");
    let raw: Value = serde_json::from_str(&raw.stdout).unwrap();
    assert_eq!(raw["source"], "counters.csv");
    assert_eq!(raw["metrics"]["launch__registers_per_thread"], 72.0);

    let long = fourtap(
        path,
        [
            "profile",
            "small.toml",
            "--import",
            "long.csv",
            "--json",
            "-",
        ],
    );
    assert_eq!(long.code, Some(0), "{long:?}");
    assert!(
        long.stderr.contains("1 of 2 kernels are not fourtap's"),
        "{long:?}"
    );
    let long: Value = serde_json::from_str(&long.stdout).unwrap();
    assert_eq!(long["kernel"], "msda_backward_place");
    assert_eq!(long["metrics"]["dram__bytes_read.sum"], 874_580_000.0);
    assert_eq!(long["metrics"]["gpu__time_duration.sum"], 1180.25e-6);
    assert_eq!(long["binding"]["limit"], "latency");
}

#[test]
fn hostile_files_are_refused() {
    let folder = folder(WORKS, RAW, &KNOWN);
    let header = "\"ID\",\"Kernel Name\",\"dram__bytes_read.sum\"\n";
    for (what, bytes, expected) in [
        (
            "nothing",
            b"".to_vec(),
            "a.csv: expected what `ncu --csv` prints, found no header",
        ),
        ("no text", vec![0xff, 0xfe, 0, 1], "no header"),
        ("only a header", header.into(), "found no kernel"),
        (
            "cut short",
            format!("{header}\"0\",\"msda_forward_gather").into(),
            "a.csv, line 2",
        ),
        (
            "fields missing",
            format!("{header}\"0\",\"k\"\n").into(),
            "2 fields where the header has 3",
        ),
        (
            "no number",
            format!("{header}\"0\",\"k\",\"1.2.3\"\n").into(),
            "where a number should be",
        ),
        (
            "no shares",
            format!("{header}\"0\",\"k\",\"12\"\n").into(),
            "nothing that says how busy k kept the device",
        ),
    ] {
        fs::write(folder.path().join("a.csv"), bytes).unwrap();
        let outcome = fourtap(
            folder.path(),
            ["profile", "small.toml", "--import", "a.csv"],
        );
        fails(what, &outcome, expected);
    }
    let outcome = fourtap(
        folder.path(),
        ["profile", "small.toml", "--import", "none.csv"],
    );
    fails("no file", &outcome, "none.csv: cannot be read");
}
