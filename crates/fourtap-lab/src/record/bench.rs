//! What a benchmark found.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{Conditions, Origin, ProblemRecord, Timing, billions_a_second};
use crate::cli::Direction;
use crate::cuda::Mode;
use crate::operators::Operator;
use crate::target::Device;
use crate::verification::Verification;

/// One benchmark's result. Without a passed verification it carries no time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchRecord {
    /// What made it.
    #[serde(flatten)]
    pub origin: Origin,
    /// What was computed.
    pub workload: String,
    /// Where the points lie, as "local"; "normal" numbers, of dense attention; or those of a "file".
    pub distribution: String,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Its sizes, which also tell the operator.
    pub problem: ProblemRecord,
    /// Its element types.
    pub dtypes: DTypes,
    /// Which pass.
    pub direction: Direction,
    /// What computed it.
    pub device: Device,
    /// The kernels.
    pub kernel: KernelUsed,
    /// The error of the result against the oracle, or what is wrong with it.
    pub verification: Verification,
    /// The same inputs repeatedly, with warm caches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot: Option<Timing>,
    /// Many copies of the inputs in turn, more than the largest cache holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold: Option<Timing>,
    /// Clocks and the like around the timing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Conditions>,
    /// Bytes and operations, by the model.
    pub traffic: TrafficCounts,
    /// Share of the corners of samples that lie inside their level; of deformable attention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_bounds_fraction: Option<f64>,
    /// Share of the pixels of value, head by head, that some sample reads; likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touched_fraction: Option<f64>,
    /// The least time the ceilings measured in the same run allow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roof: Option<Roof>,
    /// Other ways to the same result, in the same run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<AlternativeResult>,
}

/// The kernels that computed something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelUsed {
    /// Their names and launches, in words.
    pub words: String,
    /// Hash of the source, and of forward's on CUDA also of all it was compiled with; of several one after another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// What it was specialised and launched with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Value>,
    /// The kernel asked for by name; none for the best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// The mode asked for; only backward on CUDA has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Whether it is bitwise reproducible.
    pub reproducible: bool,
    /// Bytes of memory to work in, given; only backward on CUDA needs any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_bytes: Option<usize>,
}

/// The least time that ceilings measured in the same run allow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roof {
    /// Milliseconds, hot.
    pub hot_ms: f64,
    /// The ceiling that says so, by its probe's name.
    pub hot_limit: String,
    /// Milliseconds, cold.
    pub cold_ms: f64,
    /// The ceiling that says so.
    pub cold_limit: String,
    /// The result is faster than that: then the ceiling, the model of bytes or the result is wrong.
    pub suspicious: bool,
}

/// Another kernel variant for the same result, in the same run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlternativeResult {
    /// "baseline" (one thread per channel) or "deterministic" (bitwise reproducible backward).
    #[serde(deserialize_with = "role")]
    pub role: String,
    /// The kernels.
    pub kernel: KernelUsed,
    /// The error of its result against the oracle.
    pub verification: Verification,
    /// The same inputs repeatedly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot: Option<Timing>,
}

/// Older records call the baseline "ruler".
fn role<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let role = String::deserialize(from)?;
    Ok(match role.as_str() {
        "ruler" => "baseline".to_string(),
        _ => role,
    })
}

/// As in "detr-encoder/local/f16/forward", with whatever is unusual after it: other inputs than given locations, locations
/// that are not in f32, another mode than the fast one, a kernel asked for by name.
pub fn benchmark_name(
    (workload, variant): (&str, Option<&str>),
    distribution: &str,
    (value, locations): (&str, Option<&str>),
    direction: Direction,
    (mode, kernel): (Option<Mode>, Option<&str>),
) -> String {
    let mut name = format!("{workload}/{distribution}/{value}/{}", direction.name());
    if let Some(variant) = variant {
        name += &format!("/{variant}");
    }
    // Projections are in the type of value, as linear layers put them out.
    let usual = if variant.is_some() { value } else { "f32" };
    if let Some(locations) = locations.filter(|&locations| locations != usual) {
        name += &format!("/coordinates-{locations}");
    }
    if mode == Some(Mode::Deterministic) {
        name += "/deterministic";
    }
    if let Some(kernel) = kernel {
        name += &format!("/kernel-{kernel}");
    }
    name
}

impl BenchRecord {
    /// What tells benchmarks of one run apart, and what `compare` matches by.
    pub fn name(&self) -> String {
        benchmark_name(
            (&self.workload, self.problem.variant()),
            &self.distribution,
            (&self.dtypes.value, self.dtypes.locations.as_deref()),
            self.direction,
            (self.kernel.mode, self.kernel.asked.as_deref()),
        )
    }

    /// Hot, if it was right.
    pub fn median_ms(&self) -> Option<f64> {
        self.hot.as_ref().map(|hot| hot.median_ms)
    }

    /// Another variant in the same run, by its role.
    pub fn beside(&self, role: &str) -> Option<&AlternativeResult> {
        self.beside.iter().find(|beside| beside.role == role)
    }

    /// How many times faster than the kernel of one thread per channel, hot.
    pub fn times_baseline(&self) -> Option<f64> {
        let baseline = self.beside("baseline")?.hot.as_ref()?;
        Some(baseline.median_ms / self.median_ms()?)
    }

    /// Of which operator it is.
    pub fn operator(&self) -> &'static dyn Operator {
        self.problem.operator()
    }

    /// Bytes the samples ask for over the hot median, in GB/s.
    pub fn gathered_gb_s(&self) -> Option<f64> {
        Some(billions_a_second(
            self.traffic.gathered_bytes,
            self.median_ms()?,
        ))
    }

    /// Bytes that must move at least once: without pixels that no sample reads, where those were counted.
    pub fn least_bytes(&self) -> u64 {
        let Some(elements) = self.problem.sampled_elements() else {
            return self.traffic.compulsory_bytes;
        };
        let element = match self.dtypes.value.as_str() {
            "f64" => 8.0,
            "f32" => 4.0,
            _ => 2.0,
        };
        // As floats: a record may say anything.
        let value = elements * element;
        let untouched = self.touched_fraction.map_or(0.0, |touched| 1.0 - touched);
        self.traffic
            .compulsory_bytes
            .saturating_sub((untouched * value) as u64)
    }

    /// Operations over the hot median, in GFLOP/s.
    pub fn gflop_s(&self) -> Option<f64> {
        Some(billions_a_second(self.traffic.flop, self.median_ms()?))
    }

    /// Every time in it.
    pub fn timings(&self) -> impl Iterator<Item = &Timing> {
        let beside = self.beside.iter().filter_map(|beside| beside.hot.as_ref());
        self.hot.iter().chain(&self.cold).chain(beside)
    }

    /// Whether it keeps the rule that only what is right has a time.
    pub fn is_honest(&self) -> bool {
        let timed = self.hot.is_some() || self.cold.is_some();
        let beside = |one: &AlternativeResult| one.verification.passed || one.hot.is_none();
        (self.verification.passed || !timed) && self.beside.iter().all(beside)
    }
}

/// The element types of a problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DTypes {
    /// Of value, out and their gradients; of dense attention, of queries and keys too.
    pub value: String,
    /// Of sampling_locations, or of sampling_offsets; of deformable attention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locations: Option<String>,
    /// Of attention_weights, or of attention_logits; likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

/// Bytes and operations of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficCounts {
    /// Bytes that must move at least once.
    pub compulsory_bytes: u64,
    /// Bytes of value the samples ask for; dense attention has no samples.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gathered_bytes: u64,
    /// Operations.
    pub flop: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_of_older_records_is_found_by_its_new_name() {
        let read = |role: &str| -> AlternativeResult {
            let verification = serde_json::json!({"passed": true, "rows": 1, "tensors": []});
            let kernel = serde_json::json!({"words": "a kernel", "reproducible": true});
            let record =
                serde_json::json!({"role": role, "kernel": kernel, "verification": verification});
            serde_json::from_value(record).unwrap()
        };
        assert_eq!(read("ruler").role, "baseline");
        assert_eq!(read("baseline").role, "baseline");
        assert_eq!(read("deterministic").role, "deterministic");
    }
}
