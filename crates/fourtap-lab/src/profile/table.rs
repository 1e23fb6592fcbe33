//! Counters for people.

use super::binding::busy;
use super::metrics::TIME;
use crate::record::CountersRecord;
use crate::table::{align_right, milliseconds, or_dash, shortened, with_header};

const CAPTION: &str = "\
L1 pipe, L2, DRAM, FMA, tensor, issue: how busy, in % of what is possible. hits: % of the sectors
asked for. warps: % of those a multiprocessor can hold. Unless ncu was told otherwise, caches
were empty before each launch.";

/// Letters of a kernel's name that fit a table of 100 columns.
const NAME_WIDTH: usize = 26;

/// What the names of all our kernels begin with, which tells nothing here.
const OURS: &str = "msda_";

/// One row per kernel, and below its bottleneck.
pub fn counters(records: &[CountersRecord]) -> String {
    let mut table = with_header(&[
        "kernel",
        "ms",
        "L1\npipe",
        "L2",
        "DRAM",
        "FMA",
        "tensor",
        "issue",
        "L1\nhits",
        "L2\nhits",
        "warps",
        "bottle-\nneck",
    ]);
    for record in records {
        let metrics = &record.metrics;
        let percent = |value: Option<f64>| or_dash(value.map(|value| format!("{value:.0}")));
        let share = |limit: &str| percent(busy(metrics, limit));
        let metric = |name: &str| percent(metrics.get(name).copied());
        table.add_row([
            shortened(record.kernel.trim_start_matches(OURS), NAME_WIDTH),
            or_dash(metrics.get(TIME).map(|time| milliseconds(time * 1e3))),
            share("l1"),
            share("l2"),
            share("dram"),
            share("fma"),
            share("tensor"),
            share("issue"),
            metric("l1tex__t_sector_hit_rate.pct"),
            metric("lts__t_sector_hit_rate.pct"),
            metric("sm__warps_active.avg.pct_of_peak_sustained_active"),
            record.binding.limit.clone(),
        ]);
    }
    align_right(&mut table, 1..11);
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    let mut text = format!("{table}\n{CAPTION}\n\n");
    for record in records {
        let words = format!("- {}: {}.", record.kernel, record.binding.words);
        text += &crate::table::wrapped(&words, 2);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_longest_names_and_times_fit_100_columns() {
        let record = |kernel: &str| -> CountersRecord {
            serde_json::from_value(json!({
                "schema": 2, "version": "0", "unix_time": 0, "workload": "w", "distribution": "local",
                "problem": {"images": 1, "queries": 1, "heads": 1, "channels": 1, "points": 1, "pixels": 1, "levels": []},
                "dtypes": {"value": "f16", "locations": "f32", "weights": "f32"}, "direction": "backward",
                "device": {"kind": "cuda", "model": "NVIDIA H200"}, "kernel": kernel, "launches": 1, "source": "ncu",
                "metrics": {"gpu__time_duration.sum": 9.254e-5, "l1tex__t_sector_hit_rate.pct": 100.0,
                    "lts__t_sector_hit_rate.pct": 100.0, "sm__warps_active.avg.pct_of_peak_sustained_active": 100.0},
                "binding": {"limit": "latency", "busy": 0.1, "words": "nothing is busy"}}))
            .unwrap()
        };
        let long = "msda_backward_samples_gather_of_a_kernel_with_a_longer_name";
        let text = counters(&[record(long), record("msda_backward_value_matrix")]);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{text}");
        assert!(text.contains("\nbackward_value_matrix "), "{text}");
    }
}
