//! Pages made of records, and records that try to break them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::fourtap;
use super::records::{bench, ceiling, counters, lines, probes, timing};

/// Names, words and models that try to be something else.
pub const HOSTILE: &str = "</script><img src=x onerror=alert(1)>\"'`|*_&amp;\u{0}\u{202e}{{ 7*7 }}";

pub fn committed(run: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../runs")
        .join(run)
}

/// A folder with these records in files of these names.
pub fn folder_of(files: &[(&str, &[Value])]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, records) in files {
        fs::write(folder.path().join(name), lines(records)).expect("a new file");
    }
    folder
}

/// The page that `report` makes of some runs, and what it said.
pub fn page(folder: &Path, runs: &[&str], output: &str) -> (String, String) {
    let words = ["report", "--force", "-o", output];
    let outcome = fourtap(folder, words.iter().chain(runs));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.stdout, "");
    let text = fs::read_to_string(folder.join(output)).expect("the page");
    (text, outcome.stderr)
}

pub fn hostile() -> Vec<Value> {
    let mut forward = bench("forward");
    for place in ["workload", "distribution"] {
        forward[place] = json!(HOSTILE);
    }
    forward["dtypes"]["value"] = json!(HOSTILE);
    forward["device"]["model"] = json!(HOSTILE);
    forward["kernel"]["words"] = json!(HOSTILE);
    forward["commit"] = json!(HOSTILE);
    forward["version"] = json!(HOSTILE);
    forward["roof"]["hot_limit"] = json!(HOSTILE);
    forward["roof"]["suspicious"] = json!(true);
    forward["beside"][0]["role"] = json!("baseline");
    let mut second = forward["beside"][0].clone();
    second["role"] = json!(HOSTILE);
    forward["beside"].as_array_mut().unwrap().push(second);
    let mut wrong = bench("backward");
    wrong["device"]["model"] = json!(HOSTILE);
    wrong["verification"] = json!({"passed": false, "found": HOSTILE, "rows": 0, "tensors": []});
    for time in ["hot", "cold"] {
        wrong.as_object_mut().unwrap().remove(time);
    }
    let mut counted = counters("forward");
    for place in ["kernel", "source", "workload"] {
        counted[place] = json!(HOSTILE);
    }
    counted["binding"]["words"] = json!(HOSTILE);
    counted["device"]["model"] = json!(HOSTILE);
    let mut records = vec![forward, wrong, counted];
    for mut probe in probes() {
        for place in ["what", "words"] {
            probe[place] = json!(HOSTILE);
        }
        probe["device"]["model"] = json!(HOSTILE);
        probe["parameters"] = json!({HOSTILE: HOSTILE});
        probe["claim"] = json!({"rate": 1.0, "words": HOSTILE});
        records.push(probe);
    }
    records[4]["group"] = json!(HOSTILE);
    records
}

pub fn extremes() -> Vec<Value> {
    let mut records = vec![];
    for (median, bytes, flop) in [
        (1e-300, u64::MAX, 1),
        (1e300, 1, u64::MAX),
        (5e-324, u64::MAX, u64::MAX),
    ] {
        for direction in ["forward", "backward"] {
            let mut record = bench(direction);
            record["workload"] = json!(format!("{median:e}"));
            record["hot"] = timing(median);
            record["cold"] = timing(median);
            record["traffic"] =
                json!({"compulsory_bytes": bytes, "gathered_bytes": bytes, "flop": flop});
            record["unix_time"] = json!(u64::MAX);
            record["touched_fraction"] = json!(-1e300);
            for size in ["images", "heads", "channels", "pixels"] {
                record["problem"][size] = json!(u64::MAX);
            }
            records.push(record);
        }
    }
    records.push(ceiling("copy", 1e300, "GB/s"));
    records.push(ceiling("gather-64-l1", 0.0, "GB/s"));
    records.push(ceiling("fma-f32", -5.0, "GFLOP/s"));
    let mut counted = counters("forward");
    counted["metrics"] = json!({"dram__throughput.pct": 1e308, "dram__bytes.sum": 0.0});
    counted["launches"] = json!(0);
    counted["binding"]["busy"] = json!(-3.5);
    records.push(counted);
    records
}
