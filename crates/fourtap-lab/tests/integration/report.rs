//! Reports: what is in them, and what is never in them.

use std::fs;

use crate::common::pages::{committed, extremes, folder_of, hostile, page};
use crate::common::records::{bench, ceiling, counters, lines, probes, timing};
use crate::common::{fails, fourtap, names};
use serde_json::{Value, json};

fn page_of(records: &[Value], output: &str) -> String {
    let folder = folder_of(&[("bench.jsonl", records)]);
    page(folder.path(), &["bench.jsonl"], output).0
}

fn has(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "{part:?} is not in the page");
    }
}

fn lacks(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(!page.contains(part), "{part:?} is in the page");
    }
}

/// A page that needs nothing but itself.
fn stands_alone(page: &str) {
    lacks(
        page,
        &[
            "http://", "https://", "@import", "<img", "<iframe", "<object", "\u{202e}",
        ],
    );
    lacks(&page.replace("url(#", ""), &["url("]);
    assert_eq!(page.matches("<script").count(), 1);
    assert_eq!(page.matches("</script").count(), 1);
    assert!(page.ends_with("</html>\n") || page.ends_with("</html>"));
}

#[test]
fn the_title_says_what_was_measured_on_what_and_when() {
    let folder = tempfile::tempdir().unwrap();
    for (run, title) in [
        (
            "2026-11-15-cpu-avx512-2cores",
            "Multi-scale deformable attention on Intel(R) Xeon(R) Processor, 2026-11-15",
        ),
        (
            "2026-11-15-h200",
            "Multi-scale deformable attention on NVIDIA H200, 2026-11-15",
        ),
    ] {
        let path = committed(run);
        let (html, _) = page(
            folder.path(),
            &[path.to_str().unwrap()],
            &format!("{run}.html"),
        );
        has(
            &html,
            &[
                &format!("<title>{title} – fourtap report</title>"),
                &format!("<h1>{title}</h1>"),
            ],
        );
        has(&html, &[&format!("Results of {run}")]);
    }
}

#[test]
fn a_report_of_a_gpu_run_shows_every_result_in_less_than_a_megabyte() {
    let folder = tempfile::tempdir().unwrap();
    let run = committed("2026-11-15-h200");
    let (html, _) = page(folder.path(), &[run.to_str().unwrap()], "report.html");
    stands_alone(&html);
    assert!(html.len() < 1_000_000, "{} bytes", html.len());
    for id in ["overview", "speed", "roofline", "probes", "method"] {
        has(&html, &[&format!("<section id=\"{id}\"")]);
    }
    lacks(
        &html,
        &["<section id=\"counters\"", "<section id=\"differences\""],
    );
    let text = fs::read_to_string(run.join("bench.jsonl")).unwrap();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let Some(workload) = record["workload"].as_str() else {
            continue;
        };
        let [distribution, dtype, pass] = ["/distribution", "/dtypes/value", "/direction"]
            .map(|place| record.pointer(place).and_then(Value::as_str).unwrap());
        has(
            &html,
            &[&format!("{workload}/{distribution}/{dtype}/{pass}")],
        );
    }
    has(
        &html,
        &[
            "measured separately, not in this run",
            "DCNv4 Flash",
            "all verified",
        ],
    );
}

#[test]
fn a_report_of_a_cpu_run_has_no_baseline_and_no_peers() {
    let folder = tempfile::tempdir().unwrap();
    let run = committed("2026-11-15-cpu-avx512-2cores");
    let (html, said) = page(folder.path(), &[run.to_str().unwrap()], "report.html");
    stands_alone(&html);
    has(
        &html,
        &[
            "avx512, 2 threads",
            "Forward: time",
            "Variation of the timings",
        ],
    );
    lacks(
        &html,
        &[
            "speedup over the baseline",
            "DCNv4",
            "<section id=\"roofline\"",
        ],
    );
    assert!(said.contains("medians are uncertain"), "{said}");
}

#[test]
fn peers_are_shown_only_beside_the_device_and_the_sizes_they_had() {
    let same = bench("forward");
    let mut elsewhere = bench("forward");
    elsewhere["device"]["model"] = json!("NVIDIA A100");
    let mut smaller = bench("forward");
    smaller["problem"]["images"] = json!(1);
    let mut other_types = bench("forward");
    other_types["dtypes"]["locations"] = json!("f16");
    has(
        &page_of(&[same], "a.html"),
        &["DCNv4 Flash", "fastest peer"],
    );
    for record in [elsewhere, smaller, other_types] {
        lacks(
            &page_of(&[record], "a.html"),
            &["DCNv4 Flash", "fastest peer", "not in this run"],
        );
    }
}

#[test]
fn probes_counters_and_cold_figures_have_their_places() {
    let mut records = vec![
        bench("forward"),
        bench("backward"),
        counters("forward"),
        counters("backward"),
    ];
    records.extend(probes());
    let html = page_of(&records, "report.html");
    stands_alone(&html);
    for id in [
        "overview", "speed", "roofline", "probes", "counters", "method",
    ] {
        has(&html, &[&format!("<section id=\"{id}\"")]);
    }
    has(
        &html,
        &[
            "cold ms",
            "0.231",
            "tensor-wgmma-f16",
            "Clusters of blocks",
            "hung",
            "no multiple of 16 bytes",
            "others claim",
            "on another device, of values in L2, without a check",
            "L1, busy 92 %",
            "The data pipe of L1 is busy 91.5 % of the time.",
            "L2, bytes counted",
            "DRAM, bytes counted",
            "No point lies above its roof without a reason.",
        ],
    );
}

#[test]
fn what_is_doubtful_is_said_in_words() {
    let mut wrong = bench("forward");
    wrong["verification"] = json!({"passed": false, "found": "out: 3 where the oracle says 4", "rows": 0, "tensors": []});
    for time in ["hot", "cold"] {
        wrong.as_object_mut().unwrap().remove(time);
    }
    let mut hot = bench("backward");
    hot["hot"]["ci_high_ms"] = json!(2.0);
    hot["conditions"]["after"]["throttled_by"] = json!(["power cap"]);
    hot["roof"]["suspicious"] = json!(true);
    hot["commit"] = json!("0123456789abcdef+");
    let folder = tempfile::tempdir().unwrap();
    let text = lines(&[wrong, hot]) + "{\"kind\": \"ben";
    fs::write(folder.path().join("a.jsonl"), text).unwrap();
    let (page, said) = page(folder.path(), &["a.jsonl"], "a.html");
    for part in [
        "detr-encoder/local/f16/forward failed its verification, so it has no time",
        "out: 3 where the oracle says 4",
        "1 median is uncertain by more than 2.0 %",
        "Clocks were throttled (power cap)",
        "1 result is suspicious",
        "the run was interrupted",
        "changes that are not committed",
    ] {
        has(&page, &[part]);
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_point_above_its_roof_is_called_suspicious() {
    let mut fast = bench("forward");
    fast["hot"] = timing(0.01);
    let ceilings = [
        ceiling("gather-128-l1", 28_100.0, "GB/s"),
        ceiling("copy", 3910.0, "GB/s"),
    ];
    let html = page_of(&[vec![fast], ceilings.to_vec()].concat(), "a.html");
    has(
        &html,
        &[
            "Suspicious, ringed: 1 point lies above a roof",
            "suspicious: above a roof",
        ],
    );
    // Cold, nothing comes from a cache: the point at DRAM has no excuse either.
    let mut fast = bench("forward");
    fast["cold"] = timing(0.01);
    let html = page_of(&[vec![fast], ceilings.to_vec()].concat(), "a.html");
    has(
        &html,
        &["Suspicious, ringed: 1 point lies above a roof", "(DRAM)"],
    );
}

#[test]
fn runs_are_compared_with_the_first() {
    let mut slower = bench("forward");
    slower["hot"] = timing(0.4);
    let folder = folder_of(&[
        ("before.jsonl", &[bench("forward"), bench("backward")]),
        ("after.jsonl", &[slower, bench("backward")]),
    ]);
    let (both, _) = page(folder.path(), &["before.jsonl", "after.jsonl"], "a.html");
    has(
        &both,
        &["after, compared with before", "1 slower", "1 the same"],
    );
    let (alone, _) = page(folder.path(), &["before.jsonl"], "a.html");
    lacks(&alone, &["Differences"]);
}

#[test]
fn hostile_words_stay_words() {
    let folder = folder_of(&[("bench.jsonl", &hostile())]);
    let (html, _) = page(folder.path(), &["bench.jsonl"], "a.html");
    stands_alone(&html);
    has(&html, &["&lt;img", "{{ 7*7 }}"]);
}

#[test]
fn extremes_make_a_page_without_what_is_no_number() {
    let html = page_of(&extremes(), "a.html");
    stands_alone(&html);
    lacks(&html, &["NaN", "=\"inf", "=\"-inf", ">inf", ">-inf"]);
}

#[test]
fn an_existing_page_is_replaced_only_if_asked_for() {
    let folder = folder_of(&[("bench.jsonl", &[bench("forward")])]);
    fs::write(folder.path().join("a.html"), "mine").unwrap();
    let refused = fourtap(folder.path(), ["report", "bench.jsonl", "-o", "a.html"]);
    fails(
        "a page exists",
        &refused,
        "a.html: expected no such file yet",
    );
    assert!(refused.stderr.contains("--force"), "{refused:?}");
    assert_eq!(
        fs::read_to_string(folder.path().join("a.html")).unwrap(),
        "mine"
    );
    let (html, _) = page(folder.path(), &["bench.jsonl"], "a.html");
    stands_alone(&html);
    assert_eq!(names(folder.path()).len(), 2);
}

#[test]
fn runs_are_never_replaced() {
    let folder = folder_of(&[("bench.html", &[bench("forward")])]);
    let outcome = fourtap(
        folder.path(),
        ["report", "bench.html", "-o", "bench.html", "--force"],
    );
    fails(
        "output is input",
        &outcome,
        "expected an output other than the input",
    );
}

#[test]
fn wrong_requests_are_refused_in_words() {
    let folder = folder_of(&[("bench.jsonl", &[bench("forward")])]);
    for output in ["a.pdf", "a.md", "html"] {
        let outcome = fourtap(folder.path(), ["report", "bench.jsonl", "-o", output]);
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        has(
            &outcome.stderr,
            &["expected a name that ends in .html", "hint: "],
        );
    }
    fs::write(folder.path().join("empty.jsonl"), "").unwrap();
    fs::write(folder.path().join("other.jsonl"), "{\"a\": 1}\n").unwrap();
    for (run, expected) in [
        ("missing.jsonl", "cannot be read"),
        ("empty.jsonl", "expected records of fourtap, found none"),
        ("other.jsonl", "an object of another kind"),
    ] {
        let outcome = fourtap(folder.path(), ["report", run, "-o", "a.html"]);
        fails(run, &outcome, expected);
    }
    let nowhere = fourtap(
        folder.path(),
        ["report", "bench.jsonl", "-o", "nowhere/a.html"],
    );
    fails(
        "no folder",
        &nowhere,
        "make the folder first: nowhere is not there",
    );
    let below = fourtap(
        folder.path(),
        ["report", "bench.jsonl", "-o", "bench.jsonl/a.html"],
    );
    fails(
        "a file",
        &below,
        "hint: bench.jsonl is no folder; choose another",
    );
    let slash = fourtap(folder.path(), ["report", "bench.jsonl", "-o", "a.html/"]);
    fails(
        "a slash",
        &slash,
        "a.html/: expected a file, found a folder",
    );
    assert!(!folder.path().join("a.html").exists());
}

#[test]
fn what_was_done_can_be_read_by_programs() {
    let folder = folder_of(&[(
        "bench.jsonl",
        &[bench("forward"), ceiling("copy", 3910.0, "GB/s")],
    )]);
    let outcome = fourtap(
        folder.path(),
        ["report", "bench.jsonl", "-o", "a.html", "--json"],
    );
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let done: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(done["command"], "report");
    assert_eq!(
        (&done["benchmarks"], &done["probes"]),
        (&json!(1), &json!(1))
    );
    let size = fs::metadata(folder.path().join("a.html")).unwrap().len();
    assert_eq!(done["output_bytes"], json!(size));
    assert_eq!(done["warnings"], json!([]));
}

#[test]
fn records_of_benchmarks_in_python_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    for (run, parts) in [
        (
            "2026-11-16-cpu-dense",
            &[
                "Against other implementations",
                "PyTorch 2.",
                "dense-s2048-d64",
            ][..],
        ),
        (
            "2026-11-17-h200-calls",
            &[
                "Calls from Python",
                "host, no gradient",
                "encoder layer on NVIDIA H200",
                "A-before",
                "stock",
            ],
        ),
    ] {
        let run = committed(run);
        let (html, _) = page(folder.path(), &[run.to_str().unwrap()], "a.html");
        stands_alone(&html);
        has(&html, parts);
    }
}

#[test]
fn a_folder_without_records_says_what_is_there() {
    let folder = folder_of(&[("evidence.jsonl", &[json!({"check": "memcheck"})])]);
    let outcome = fourtap(folder.path(), ["report", ".", "-o", "a.html"]);
    fails(
        "evidence",
        &outcome,
        "found only lines as in ./evidence.jsonl",
    );
}
