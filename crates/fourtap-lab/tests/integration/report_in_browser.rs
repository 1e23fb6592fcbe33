//! Reports as browsers take them.

use crate::browser;
use crate::common::pages::{committed, extremes, folder_of, hostile, page};
use crate::common::records::{bench, counters, dense, probes, timing};
use serde_json::json;

#[test]
#[ignore = "long: needs Chromium"]
fn browsers_show_pages_without_complaint_at_every_width() {
    let program = browser::find();
    let mut slower = bench("forward");
    slower["hot"] = timing(0.4);
    let mut everything = vec![
        bench("forward"),
        bench("backward"),
        counters("forward"),
        counters("backward"),
    ];
    everything.extend(probes());
    let mut of_dense = vec![
        dense("dense-b4-s2048-d64", "f16", false, 0.151),
        dense("dense-b4-s2048-d64", "bf16", false, 0.153),
        dense("dense-b4-s2048-d64-causal", "f16", true, 0.101),
        dense("dense-b4-s2048-d64-causal", "bf16", true, 0.102),
    ];
    of_dense.extend(probes());
    let mut both = of_dense.clone();
    both.push(bench("forward"));
    let folder = folder_of(&[
        ("everything.jsonl", &everything),
        ("after.jsonl", &[slower, bench("backward")]),
        ("dense.jsonl", &of_dense),
        ("both.jsonl", &both),
        ("hostile.jsonl", &hostile()),
        ("extremes.jsonl", &extremes()),
    ]);
    let gpu = committed("2026-11-15-h200");
    let cpu = committed("2026-11-15-cpu-avx512-2cores");
    let tune = committed("2026-11-16-cpu-tune");
    let [gpu, cpu, tune] = [&gpu, &cpu, &tune].map(|run| run.to_str().unwrap());
    let pages: [(&str, &[&str]); 9] = [
        ("tune", &[tune]),
        ("gpu", &[gpu]),
        ("cpu", &[cpu]),
        ("two", &["everything.jsonl", "after.jsonl"]),
        ("everything", &["everything.jsonl"]),
        ("dense", &["dense.jsonl"]),
        ("both", &["both.jsonl", "dense.jsonl"]),
        ("hostile", &["hostile.jsonl"]),
        ("extremes", &["extremes.jsonl"]),
    ];
    let mut browser = browser::Browser::start(&program);
    for (name, runs) in pages {
        let file = format!("{name}.html");
        page(folder.path(), runs, &file);
        for width in [1280, 390] {
            for scheme in ["light", "dark"] {
                let what = format!("{name}-{width}-{scheme}");
                browser.open(&folder.path().join(&file), width, scheme);
                let overflow =
                    browser.evaluate("document.documentElement.scrollWidth - innerWidth");
                assert!(
                    overflow.as_f64().unwrap() <= 0.0,
                    "{what}: {overflow} pixels too wide"
                );
                browser.expect_quiet(&what);
            }
        }
        uses(&mut browser, name);
    }
}

/// What a reader does with a page: walk through a chart by keyboard, search and sort a table.
fn uses(browser: &mut browser::Browser, name: &str) {
    browser.evaluate("document.querySelector('svg.chart .row').focus({focusVisible: true})");
    browser.press("ArrowDown");
    let card = "document.getElementById('card')";
    let text = browser.evaluate(&format!("{card}.hidden ? '' : {card}.textContent"));
    assert!(!text.as_str().unwrap_or("").is_empty(), "{name}: no card");
    browser.evaluate(
        "var box = document.querySelector('.searchable'); var input = box.querySelector('input'); \
         input.value = 'no such words'; input.dispatchEvent(new Event('input')); 0",
    );
    let left = "[...box.querySelectorAll('tbody tr')].filter((row) => !row.hidden).length";
    assert_eq!(browser.evaluate(left), json!(0), "{name}");
    browser.evaluate("input.value = ''; input.dispatchEvent(new Event('input')); 0");
    browser.evaluate("box.querySelectorAll('thead button')[2].click(); 0");
    let sorted = "(() => { const numbers = [...box.querySelectorAll('tbody tr')].map((row) => row.cells[2].dataset.sort) \
                  .filter((it) => it !== undefined).map(Number); \
                  return numbers.every((it, index) => index === 0 || numbers[index - 1] <= it); })()";
    assert_eq!(browser.evaluate(sorted), json!(true), "{name}");
    browser.expect_quiet(name);
}
