//! Records of form 1 in today's form.
//!
//! What it measured cold was single launches after overwriting the cache; today's cold figures go through copies of
//! the inputs in turn. The two are not the same measure, so the old one is left out.

use serde_json::{Map, Value, json};

/// A record of form 1 as today's, as far as it goes.
pub fn upgraded(value: Value) -> Result<Value, String> {
    let Value::Object(mut old) = value else {
        return Err("something other than an object".to_string());
    };
    old.insert("schema".to_string(), json!(2));
    let hot = timing(&mut old)?;
    if old.get("kind").is_some_and(|kind| kind == "ceiling") {
        return Ok(ceiling(old, hot));
    }
    old.insert("kind".to_string(), json!("bench"));
    old.insert("hot".to_string(), hot);
    if let Some(Value::Object(verification)) = old.get_mut("verification") {
        verification.insert("passed".to_string(), json!(true));
    }
    let kernel = match old.remove("cuda") {
        Some(Value::Object(cuda)) => on_cuda(&mut old, cuda)?,
        _ => {
            let simd = &old["device"]["simd"];
            json!({"words": format!("cpu, {}", simd.as_str().unwrap_or("?")), "reproducible": true})
        }
    };
    old.insert("kernel".to_string(), kernel);
    Ok(Value::Object(old))
}

fn on_cuda(old: &mut Map<String, Value>, mut cuda: Map<String, Value>) -> Result<Value, String> {
    if let Some(launches) = cuda.remove("launches_a_sample") {
        old["hot"]["launches_a_sample"] = launches;
    }
    let mut beside = Vec::new();
    for role in ["deterministic", "ruler"] {
        if let Some(Value::Object(mut other)) = cuda.remove(role) {
            let hot = timing(&mut other)?;
            let mut verification = other.remove("verification").unwrap_or_default();
            verification["passed"] = json!(true);
            let kernel = kernel(&other, true);
            beside.push(
                json!({"role": role, "kernel": kernel, "verification": verification, "hot": hot}),
            );
        }
    }
    old.insert("beside".to_string(), Value::Array(beside));
    let reproducible = cuda.get("reproducible") == Some(&json!(true));
    Ok(kernel(&cuda, reproducible))
}

fn kernel(old: &Map<String, Value>, reproducible: bool) -> Value {
    let mut kernel = json!({"words": old.get("kernel"), "reproducible": reproducible});
    for (from, to) in [
        ("kernel_fingerprint", "fingerprint"),
        ("mode", "mode"),
        ("workspace_bytes", "workspace_bytes"),
    ] {
        if let Some(value) = old.get(from) {
            kernel[to] = value.clone();
        }
    }
    kernel
}

/// What became of the two ceilings there were.
fn ceiling(mut old: Map<String, Value>, timing: Value) -> Value {
    let name = match old.get("name").and_then(Value::as_str) {
        Some("gather") => "gather-64-l1",
        _ => "copy",
    };
    let mut take = |key: &str| old.remove(key).unwrap_or_default();
    json!({
        "kind": "probe", "schema": take("schema"), "version": take("version"), "unix_time": take("unix_time"),
        "device": take("device"), "name": name, "group": "ceiling", "what": name, "outcome": "measured",
        "words": "its result was compared", "rate": take("gb_s"), "unit": "GB/s", "amount": take("moved_bytes"),
        "timing": timing, "parameters": {"buffer_bytes": take("buffer_bytes")},
    })
}

/// Takes the samples out, and what was worked out from them.
fn timing(old: &mut Map<String, Value>) -> Result<Value, String> {
    let samples = old.remove("samples_ms").unwrap_or_default();
    for derived in ["median_ms", "ci_low_ms", "ci_high_ms"] {
        old.remove(derived);
    }
    let samples: Vec<f64> = serde_json::from_value(samples).map_err(|error| error.to_string())?;
    if samples.is_empty() {
        return Err("a record without samples".to_string());
    }
    serde_json::to_value(super::Timing::of(samples)).map_err(|error| error.to_string())
}
