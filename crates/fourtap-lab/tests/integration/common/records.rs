//! Records as `bench`, `probe` and `profile` write them, made by hand.

use serde_json::{Value, json};

/// A GPU that has everything.
pub fn h200() -> Value {
    json!({"kind": "cuda", "model": "NVIDIA H200", "cuda": {
        "ordinal": 0, "compute_capability": "9.0", "multiprocessors": 132, "l2_bytes": 62914560,
        "memory_bytes": 150_109_880_320u64, "driver_cuda": "13.0", "driver": "580.1", "nvrtc": "13.0"}})
}

/// How long something took, with samples around it.
pub fn timing(median_ms: f64) -> Value {
    let samples: Vec<f64> = (0..13)
        .map(|i| median_ms * (0.994 + 0.001 * f64::from(i)))
        .collect();
    json!({"samples_ms": samples, "median_ms": median_ms, "ci_low_ms": 0.997 * median_ms,
        "ci_high_ms": 1.003 * median_ms, "spread": 0.006, "launches_a_sample": 4, "input_sets": 1})
}

/// A result within the error tolerance.
pub fn passed() -> Value {
    json!({"passed": true, "rows": 200, "tensors": [{"tensor": "out", "elements": 6400, "max_error": 1e-4,
        "max_allowed": 1e-3, "relative_error": 2.1e-4, "relative_allowed": 1e-3}]})
}

fn origin() -> Value {
    json!({"schema": 2, "version": "0.1.0", "commit": "0123456789abcdef", "source_hash": "fedcba9876543210aa",
        "unix_time": 1_794_738_517u64})
}

fn with_origin(mut record: Value) -> Value {
    let fields = origin();
    for (name, value) in fields.as_object().expect("an object") {
        record[name] = value.clone();
    }
    record
}

/// detr-encoder, local, f16, on an H200.
pub fn bench(direction: &str) -> Value {
    let forward = direction == "forward";
    let (hot, cold, baseline) = if forward {
        (0.217, 0.231, 1.247)
    } else {
        (1.277, 1.31, 10.5)
    };
    let mode = if forward { Value::Null } else { json!("fast") };
    with_origin(json!({
        "kind": "bench", "workload": "detr-encoder", "distribution": "local", "seed": 0,
        "problem": {"images": 4, "queries": 22223, "heads": 8, "channels": 32, "points": 4, "pixels": 22223,
            "levels": [[100, 167], [50, 84], [25, 42], [13, 21]]},
        "dtypes": {"value": "f16", "locations": "f32", "weights": "f32"}, "direction": direction,
        "device": h200(), "verification": passed(), "hot": timing(hot), "cold": timing(cold),
        "kernel": {"words": "msda-gather-f16-d32-l4-p4, 132 blocks of 896 threads", "reproducible": forward,
            "mode": mode, "parameters": {"unroll": 4}},
        "conditions": {"before": {"clock_mhz": 1980}, "after": {"clock_mhz": 1980}},
        "traffic": {"compulsory_bytes": 227_563_520u64, "gathered_bytes": 2_912_000_000u64, "flop": 3_641_016_320u64},
        "in_bounds_fraction": 0.97,
        "roof": {"hot_ms": 0.132, "hot_limit": "gather-64-l1", "cold_ms": 0.132, "cold_limit": "gather-64-l1",
            "suspicious": false},
        "beside": [{"role": "baseline", "kernel": {"words": "msda-channel-f16", "reproducible": true},
            "verification": passed(), "hot": timing(baseline)}],
    }))
}

/// Dense attention of four sequences of 2048, on an H200.
pub fn dense(workload: &str, dtype: &str, causal: bool, hot: f64) -> Value {
    let mask = match causal {
        true => json!({"alignment": "top-left", "right": 0}),
        false => Value::Null,
    };
    let flop: u64 = if causal {
        34_376_515_584
    } else {
        68_719_476_736
    };
    with_origin(json!({
        "kind": "bench", "workload": workload, "distribution": "normal", "seed": 0,
        "problem": {"batch": 4, "query_heads": 16, "key_heads": 16, "queries": 2048, "keys": 2048, "channels": 64,
            "value_channels": 64, "scale": 0.125, "mask": mask},
        "dtypes": {"value": dtype}, "direction": "forward", "device": h200(), "verification": passed(),
        "hot": timing(hot), "cold": timing(1.02 * hot),
        "kernel": {"words": "a kernel of tensor cores", "reproducible": true},
        "conditions": {"before": {"clock_mhz": 1980}, "after": {"clock_mhz": 1755}},
        "traffic": {"compulsory_bytes": 67_108_864u64, "flop": flop},
        "roof": {"hot_ms": flop as f64 / 780e9, "hot_limit": "tensor-wgmma-f16", "cold_ms": flop as f64 / 780e9,
            "cold_limit": "tensor-wgmma-f16", "suspicious": false},
    }))
}

/// A probe that was measured.
pub fn ceiling(name: &str, rate: f64, unit: &str) -> Value {
    with_origin(json!({
        "kind": "probe", "device": h200(), "name": name, "group": "ceiling", "what": format!("{name} as fast as it goes"),
        "outcome": "measured", "words": "every element was compared", "rate": rate, "unit": unit,
        "amount": 2_147_483_648u64, "timing": timing(0.549), "parameters": {"buffer_bytes": 1_073_741_824u64},
    }))
}

/// A probe of another kind, and how it ended.
pub fn probe(group: &str, name: &str, outcome: &str, words: &str) -> Value {
    with_origin(json!({
        "kind": "probe", "device": h200(), "name": name, "group": group, "what": format!("what {name} does"),
        "outcome": outcome, "words": words, "parameters": {"bytes": 81920, "cluster": 8},
    }))
}

/// All kinds of probes.
pub fn probes() -> Vec<Value> {
    let mut probes = vec![];
    for (name, rate, unit) in [
        ("copy", 3910.0, "GB/s"),
        ("dram-read", 4210.0, "GB/s"),
        ("l2-read", 9800.0, "GB/s"),
        ("gather-64-l1", 22064.0, "GB/s"),
        ("gather-128-l1", 28100.0, "GB/s"),
        ("dsmem-read-8", 5100.0, "GB/s"),
        ("atomic-f32-spread", 210.0, "G/s"),
        ("fma-f32", 59_800.0, "GFLOP/s"),
        ("tensor-wgmma-f16", 780_000.0, "GFLOP/s"),
        ("launch-latency", 2.4, "us"),
    ] {
        probes.push(ceiling(name, rate, unit));
    }
    probes.push(probe(
        "device",
        "shared-memory",
        "works",
        "227 KiB per block if asked for",
    ));
    probes.push(probe(
        "tma",
        "box-4-bytes",
        "refused",
        "the inner box is no multiple of 16 bytes",
    ));
    probes.push(probe(
        "cluster",
        "cluster-16",
        "hung",
        "no answer within 10 s; its process was killed",
    ));
    let mut tile = ceiling("tile-copy-plain", 311.0, "GB/s");
    tile["group"] = json!("tile-copy");
    tile["claim"] =
        json!({"rate": 311.0, "words": "on another device, of values in L2, without a check"});
    probes.push(tile);
    probes
}

/// What the counters say of [`bench`].
pub fn counters(direction: &str) -> Value {
    let bench = bench(direction);
    let mut record = json!({
        "kind": "counters", "kernel": "fourtap_msda_gather", "launches": 2, "source": "ncu 2025.3.1",
        "metrics": {
            "dram__bytes_read.sum": 480e6, "dram__bytes_write.sum": 91e6, "lts__t_sectors.sum": 62e6,
            "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed": 91.5,
            "lts__t_sectors.avg.pct_of_peak_sustained_elapsed": 44.0,
            "dram__throughput.avg.pct_of_peak_sustained_elapsed": 31.2,
            "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active": 27.0,
            "sm__issue_active.avg.pct_of_peak_sustained_elapsed": 58.6,
            "l1tex__t_sector_hit_rate.pct": 78.0},
        "binding": {"limit": "l1", "busy": 0.915, "words": "The data pipe of L1 is busy 91.5 % of the time."},
    });
    for name in [
        "workload",
        "distribution",
        "problem",
        "dtypes",
        "direction",
        "device",
    ] {
        record[name] = bench[name].clone();
    }
    with_origin(record)
}

/// One per line.
pub fn lines(records: &[Value]) -> String {
    records.iter().map(|record| format!("{record}\n")).collect()
}
