//! No kernel is shipped that was not seen to work on a GPU: every kernel's source has its evidence under runs/, or is
//! listed as unverified, with the reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use fourtap::cuda::shipped;
use serde_json::Value;

/// What a kernel must have passed.
const CHECKS: [&str; 7] = [
    "oracle",
    "hostile",
    "reproducible",
    "memcheck",
    "racecheck",
    "initcheck",
    "synccheck",
];

fn runs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../runs")
}

/// (check, hash of the kernel's source) of every record of a check that passed.
fn evidence() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for run in fs::read_dir(runs()).unwrap() {
        let Ok(text) = fs::read_to_string(run.unwrap().path().join("evidence.jsonl")) else {
            continue;
        };
        for line in text.lines() {
            let record: Value = serde_json::from_str(line).unwrap();
            let text = |field: &str| record[field].as_str().unwrap().to_string();
            if record["passed"] == Value::Bool(true) {
                found.insert((text("check"), text("source")));
            }
        }
    }
    found
}

/// The kernels that may lack evidence, and of what: all checks, or one.
fn excused() -> BTreeSet<(String, String)> {
    let text = fs::read_to_string(runs().join("unverified.toml")).unwrap();
    let table: toml::Table = text.parse().unwrap();
    let mut found = BTreeSet::new();
    for list in ["kernel", "missing"] {
        let kernels = table.get(list).and_then(|list| list.as_array());
        for kernel in kernels.into_iter().flatten() {
            let text = |field: &str| kernel[field].as_str().unwrap().to_string();
            assert!(!text("reason").is_empty(), "a reason is given");
            let checks = match list {
                "kernel" => CHECKS.map(str::to_string).to_vec(),
                _ => vec![text("check")],
            };
            found.extend(checks.into_iter().map(|check| (text("entry"), check)));
        }
    }
    found
}

#[test]
fn every_kernel_was_verified_on_a_gpu_as_it_is_now() {
    let (evidence, excused) = (evidence(), excused());
    let mut missing = Vec::new();
    for kernel in shipped() {
        for check in CHECKS {
            let is_excused = excused.contains(&(kernel.entry.to_string(), check.to_string()));
            if !is_excused && !evidence.contains(&(check.to_string(), kernel.source_hash.clone())) {
                missing.push(format!("{}: {check}", kernel.entry));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "these kernels changed since they were last seen to work on a GPU; run `cargo xtask gpu-bundle` and follow \
         CONTRIBUTING.md, or list them in runs/unverified.toml: {missing:#?}"
    );
}

#[test]
fn only_kernels_that_exist_are_excused() {
    let shipped: BTreeSet<_> = shipped()
        .into_iter()
        .map(|kernel| kernel.entry.to_string())
        .collect();
    for (kernel, check) in excused() {
        assert!(shipped.contains(&kernel), "{kernel}");
        assert!(CHECKS.contains(&&*check), "{check}");
    }
}
