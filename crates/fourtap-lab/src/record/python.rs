//! What the benchmarks of the Python package and `cargo xtask compare-pytorch` write.

use serde::Deserialize;
use serde_json::Value;

use super::{PeerVerdict, PeersRecord};
use crate::cli::Direction;
use crate::report::date;

/// A line of a benchmark in Python: a line with `"benchmark"`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PythonRecord {
    /// Which.
    pub benchmark: String,
    /// On what.
    pub device: String,
    /// What was called.
    pub what: String,
    /// Whose, where there are several.
    #[serde(default)]
    pub implementation: Option<String>,
    /// The element type, where there are several.
    #[serde(default)]
    pub dtype: Option<String>,
    /// How the sizes of levels were given, where that matters.
    #[serde(default)]
    pub levels: Option<String>,
    /// Length of the sequences, of dense attention.
    #[serde(default)]
    pub positions: Option<u64>,
    /// Channels, likewise.
    #[serde(default)]
    pub channels: Option<u64>,
    /// Whether a query sees only keys before it, likewise.
    #[serde(default)]
    pub causal: Option<bool>,
    /// Microseconds of a call: the middle.
    pub median_us: f64,
    /// Lower end of its interval.
    pub low_us: f64,
    /// Upper end.
    pub high_us: f64,
    /// Distance to what it was verified against.
    #[serde(default)]
    pub verified: Option<f64>,
    /// The file it is from, without its ending.
    #[serde(skip)]
    pub file: String,
}

impl PythonRecord {
    /// Of a line; none if it is something else, in words what is wrong with one that is.
    pub fn of(value: &Value) -> Option<Result<Self, String>> {
        value.get("benchmark")?;
        let record: Result<PythonRecord, _> = serde_json::from_value(value.clone());
        Some(match record {
            Ok(record) if !(record.median_us.is_finite() && record.median_us > 0.0) => {
                Err("a time that is none".to_string())
            }
            Ok(record) => Ok(record),
            Err(error) => Err(error.to_string()),
        })
    }
}

/// fourtap beside PyTorch, timed in turns on a processor: a line with `"comparison"`.
pub fn compared(value: &Value) -> Option<Vec<PeersRecord>> {
    let comparison = value.get("comparison")?.as_str()?;
    let text = |value: &Value| value.as_str().map(str::to_string);
    let device = &value["device"];
    let machine = format!(
        "{}, {} threads",
        device["model"].as_str().unwrap_or("an unknown processor"),
        device["threads"]
    );
    let ours = &value["fourtap_median_ms"];
    let (workload, dtype, ours) = match comparison {
        "dense" => (text(&value["case"]["name"])?, text(&value["dtype"])?, ours),
        // Other types have nobody to be compared with.
        _ => (comparison.to_string(), "f32".to_string(), &ours["f32"]),
    };
    let direction = match value["direction"].as_str() {
        Some("backward") => Direction::Backward,
        _ => Direction::Forward,
    };
    let version = value["pytorch_version"].as_str().unwrap_or_default();
    let date = value["unix_time"].as_u64().map(date).unwrap_or_default();
    let one = |implementation: String, milliseconds: &Value| {
        Some(PeersRecord {
            machine: machine.clone(),
            date: date.clone(),
            workload: workload.clone(),
            distribution: text(&value["distribution"]).unwrap_or_default(),
            dtype: dtype.clone(),
            implementation,
            direction,
            milliseconds: Some(milliseconds.as_f64()?),
            turns_ms: vec![],
            graph_microseconds: None,
            error: None,
            tolerance: None,
            verdict: PeerVerdict::Ok,
            note: match value["distance"].as_f64() {
                Some(distance) => format!("the two results differ by {distance:.1e}"),
                None => String::new(),
            },
        })
    };
    Some(vec![
        one("fourtap".to_string(), ours)?,
        one(format!("PyTorch {version}"), &value["pytorch_median_ms"])?,
    ])
}
