//! Results on a CUDA device: a table a pass, because what is worth knowing differs.

use comfy_table::Table;

use crate::cli::Direction;
use crate::cuda::Mode;
use crate::record::{BenchRecord, ProbeRecord, Timing, billions_a_second};
use crate::table::{
    VERIFIED, align_right, milliseconds, on_device, or_dash, shortened, with_header,
};

/// What the columns of both tables mean.
const CAPTION: &str = "\
hot: the same inputs repeatedly; ±: half the 95 % confidence interval of its median; cold:
rotating copies, more than L2 holds. % of DRAM: time to copy what must move at least once.
x baseline: speedup over one thread per channel. error: relative error in the 2-norm, of the worst
tensor. Shares, ratios and x baseline are of hot.";

const FORWARD_CAPTION: &str = "gather: bytes of value that samples read.";

const BACKWARD_CAPTION: &str = "\
Backward computes all gradients; it must move what forward reads, grad_out and the gradients.
det.: in deterministic mode, in the same run; same: what was timed is bitwise reproducible.
MB: workspace, allocated beforehand.";

/// Letters of a workload's name that fit a table of 100 columns.
const FORWARD_NAME_WIDTH: usize = 18;
const BACKWARD_NAME_WIDTH: usize = 15;

/// A result that was right, and its hot timing.
type Row<'a> = (&'a BenchRecord, &'a Timing);

/// Every right result on CUDA a row.
pub fn on_cuda(records: &[&BenchRecord], ceilings: &[ProbeRecord]) -> String {
    let of_pass = |pass| -> Vec<Row<'_>> {
        let records = records.iter().filter(|record| record.direction == pass);
        records
            .copied()
            .filter_map(|record| Some((record, record.hot.as_ref()?)))
            .collect()
    };
    let ceiling = |name: &str| {
        let found = ceilings.iter().find(|ceiling| ceiling.name == name);
        found.and_then(|ceiling| ceiling.rate)
    };
    let (copy, gather) = (ceiling("copy"), ceiling("gather-64-l1"));
    let [forward, backward] = Direction::ALL.map(of_pass);
    let (mut text, mut captions) = (String::new(), CAPTION.to_string());
    if !forward.is_empty() {
        let table = forward_table(&forward, copy, gather);
        text += &format!("Forward\n{table}\n");
        captions += &format!("\n{FORWARD_CAPTION}");
    }
    if let Some((first, _)) = backward.first() {
        let mode = first.kernel.mode.map_or("", Mode::name);
        let table = backward_table(&backward, copy);
        text += &format!("Backward, {mode} mode\n{table}\n");
        captions += &format!("\n{BACKWARD_CAPTION}");
    }
    let device = on_device(records);
    let coordinates = match records.first() {
        Some(record)
            if record.problem.variant().is_none()
                && record.dtypes.locations.as_deref() != Some("f32") =>
        {
            "Locations and weights are of value's type.\n"
        }
        _ => "",
    };
    let terabytes = |rate: Option<f64>| or_dash(rate.map(|rate| format!("{:.2}", rate / 1e3)));
    let ceilings = format!(
        "Ceilings, measured in this run: {} TB/s copying device memory; {} TB/s reading random\n\
         64-byte segments that L1 holds.",
        terabytes(copy),
        terabytes(gather),
    );
    format!("{text}{device}{coordinates}{ceilings}\n{VERIFIED}\n{captions}\n")
}

fn forward_table(rows: &[Row<'_>], copy: Option<f64>, gather: Option<f64>) -> Table {
    let mut table = with_header(&[
        "workload",
        "dtype",
        "points",
        "hot ms",
        "±",
        "cold ms",
        "gather\nTB/s",
        "% of\ngather",
        "% of\nDRAM",
        "x\nbaseline",
        "error",
    ]);
    for (record, hot) in rows {
        let gathered = billions_a_second(record.traffic.gathered_bytes, hot.median_ms);
        table.add_row([
            shortened(&record.workload, FORWARD_NAME_WIDTH),
            record.dtypes.value.clone(),
            record.distribution.clone(),
            milliseconds(hot.median_ms),
            uncertainty(hot),
            cold(record),
            format!("{:.2}", gathered / 1e3),
            or_dash(gather.map(|ceiling| percent(gathered / ceiling))),
            share_of_dram(record, hot, copy),
            times_baseline(record),
            error(record),
        ]);
    }
    narrow(table, 1)
}

fn backward_table(rows: &[Row<'_>], copy: Option<f64>) -> Table {
    let mut table = with_header(&[
        "workload",
        "dtype",
        "points",
        "hot ms",
        "±",
        "cold ms",
        "det.\nms",
        "det./\nfast",
        "% of\nDRAM",
        "x\nbaseline",
        "MB",
        "det.\nMB",
        "error",
    ]);
    for (record, hot) in rows {
        let beside = record.beside("deterministic");
        let deterministic = beside.and_then(|beside| beside.hot.as_ref());
        table.add_row([
            shortened(&record.workload, BACKWARD_NAME_WIDTH),
            record.dtypes.value.clone(),
            record.distribution.clone(),
            milliseconds(hot.median_ms),
            uncertainty(hot),
            cold(record),
            match record.kernel.reproducible {
                true => "same".to_string(),
                false => or_dash(deterministic.map(|beside| milliseconds(beside.median_ms))),
            },
            or_dash(deterministic.map(|beside| format!("{:.2}", beside.median_ms / hot.median_ms))),
            share_of_dram(record, hot, copy),
            times_baseline(record),
            megabytes(record.kernel.workspace_bytes),
            megabytes(beside.and_then(|beside| beside.kernel.workspace_bytes)),
            error(record),
        ]);
    }
    narrow(table, 0)
}

fn uncertainty(hot: &Timing) -> String {
    format!("{:.1}%", 100.0 * hot.uncertainty())
}

fn cold(record: &BenchRecord) -> String {
    or_dash(
        record
            .cold
            .as_ref()
            .map(|cold| milliseconds(cold.median_ms)),
    )
}

fn percent(share: f64) -> String {
    format!("{:.0}", 100.0 * share)
}

fn share_of_dram(record: &BenchRecord, hot: &Timing, copy: Option<f64>) -> String {
    let moved = billions_a_second(record.least_bytes(), hot.median_ms);
    or_dash(copy.map(|ceiling| percent(moved / ceiling)))
}

fn times_baseline(record: &BenchRecord) -> String {
    // Two digits that matter: more would claim what the interval does not.
    or_dash(record.times_baseline().map(|times| format!("{times:.1}")))
}

fn error(record: &BenchRecord) -> String {
    format!("{:.1e}", record.verification.relative_error())
}

fn megabytes(bytes: Option<usize>) -> String {
    or_dash(bytes.map(|bytes| format!("{:.1}", bytes as f64 / 1e6)))
}

/// Numbers to the right, and between columns one space and so many `more`.
fn narrow(mut table: Table, more: u16) -> Table {
    let columns = table.column_count();
    align_right(&mut table, 3..columns);
    for column in table.column_iter_mut() {
        column.set_padding((0, more));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::AlternativeResult;
    use serde_json::{Value, json};

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn device() -> Value {
        json!({"kind": "cuda", "model": "NVIDIA H200", "cuda": {
            "ordinal": 0, "compute_capability": "9.0", "multiprocessors": 132, "l2_bytes": 62914560,
            "memory_bytes": 150_000_000_000u64, "driver_cuda": "13.0", "driver": "580.1", "nvrtc": "13.0"}})
    }

    fn verification() -> Value {
        json!({"passed": true, "rows": 200, "tensors": [{"tensor": "out", "elements": 6400, "max_error": 1e-4,
            "max_allowed": 1e-3, "relative_error": 2.1e-4, "relative_allowed": 1e-3}]})
    }

    fn timing(median_ms: f64) -> Value {
        json!({"samples_ms": [median_ms], "median_ms": median_ms, "ci_low_ms": 0.9 * median_ms,
            "ci_high_ms": 1.1 * median_ms, "spread": 0.0, "launches_a_sample": 1, "input_sets": 1})
    }

    fn beside(role: &str, median_ms: f64) -> AlternativeResult {
        read(
            json!({"role": role, "kernel": {"words": "a", "reproducible": true},
            "verification": verification(), "hot": timing(median_ms)}),
        )
    }

    fn on_an_h200(workload: &str) -> BenchRecord {
        let mut record: BenchRecord = read(json!({
            "schema": 2, "version": "0", "unix_time": 0, "workload": workload, "distribution": "uniform", "seed": 0,
            "problem": {"images": 1, "queries": 1, "heads": 1, "channels": 1, "points": 1, "pixels": 1, "levels": []},
            "dtypes": {"value": "bf16", "locations": "bf16", "weights": "bf16"}, "direction": "forward",
            "device": device(), "kernel": {"words": "a", "reproducible": true}, "verification": verification(),
            "hot": timing(123.4), "cold": timing(0.01234), "in_bounds_fraction": 1.0,
            "traffic": {"compulsory_bytes": 560_000_000_000u64, "gathered_bytes": 1_523_456_000_000u64, "flop": 1}}));
        record.beside = vec![beside("baseline", 1234.5)];
        record
    }

    /// The same of backward, in fast mode with the deterministic one beside it.
    fn backward_on_an_h200(workload: &str) -> BenchRecord {
        let mut record = on_an_h200(workload);
        record.direction = Direction::Backward;
        record.kernel.mode = Some(Mode::Fast);
        record.kernel.reproducible = false;
        record.kernel.workspace_bytes = Some(987_600_000);
        record.hot = Some(read(timing(0.01234)));
        let mut deterministic = beside("deterministic", 0.01839);
        deterministic.kernel.workspace_bytes = Some(1_234_500_000);
        record.beside = vec![deterministic, beside("baseline", 0.1234)];
        record.traffic.compulsory_bytes = 1;
        record
    }

    fn shown(records: &[BenchRecord]) -> String {
        let device = read(device());
        let ceiling = |name| {
            let timing = read(timing(1.0));
            ProbeRecord::ceiling(name, "", &device, 4_321_000_000, timing)
        };
        let records: Vec<_> = records.iter().collect();
        let text = on_cuda(&records, &["copy", "gather-64-l1"].map(ceiling));
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{text}");
        text
    }

    #[test]
    fn forward_fits_100_columns() {
        let text = shown(&[on_an_h200("folder/of/inputs.safetensors")]);
        for part in [
            "…nputs.safetensors",
            "123.4",
            "0.01234",
            "10.0",
            "2.1e-4",
            "4.32 TB/s",
            "gather: bytes",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("ackward"), "{text}");
    }

    #[test]
    fn backward_shows_both_modes_in_100_columns() {
        let text = shown(&[backward_on_an_h200("folder/of/inputs.safetensors")]);
        for part in [
            "Backward, fast mode",
            "…ts.safetensors",
            "0.01234",
            "0.01839",
            "1.49",
            "987.6",
            "1234.5",
            "MB: workspace",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("Forward"), "{text}");
    }

    #[test]
    fn backward_that_is_deterministic_as_it_is_stands_alone() {
        let mut record = backward_on_an_h200("a");
        record.kernel.reproducible = true;
        record.beside.remove(0);
        let text = shown(&[record]);
        let row = text.lines().find(|line| line.starts_with('a')).unwrap();
        assert!(row.contains(" same "), "{text}");
    }

    #[test]
    fn passes_have_a_table_each() {
        let text = shown(&[backward_on_an_h200("a"), on_an_h200("b")]);
        let places = ["Forward\n", "Backward, "].map(|title| text.find(title).unwrap());
        assert!(places.is_sorted(), "{text}");
    }
}
