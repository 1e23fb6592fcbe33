//! Results on a CUDA device: a table a pass, because what is worth knowing differs.

use comfy_table::Table;

use super::{VERIFIED, align_right, milliseconds, on_device, shortened, with_header};
use crate::cli::Direction;
use crate::cuda::Mode;
use crate::record::{Beside, Ceiling, CudaResult, Record};

/// What the columns of both tables mean.
const CAPTION: &str = "\
hot: caches as the launch before left them; ±: half the 95 % confidence interval of its median;
cold: second-level cache overwritten before. % of DRAM: time to copy what must move at least once.
x ruler: how many times faster than one thread a channel. error: distance to the oracle over its
length, in the 2-norm, of the worst tensor. Shares, ratios and x ruler are of hot.";

const FORWARD_CAPTION: &str = "gather: bytes the samples ask of value.";

const BACKWARD_CAPTION: &str = "\
Backward computes all three gradients; it must move what forward reads, grad_out and the gradients.
det.: in deterministic mode, in the same run; same: what was timed gives the same bits every run.
MB: workspace, given beforehand.";

/// Letters of a workload's name that fit a table of 100 columns.
const FORWARD_NAME_WIDTH: usize = 18;
const BACKWARD_NAME_WIDTH: usize = 15;

/// Every result on CUDA a row.
pub fn cuda_results(records: &[Record], ceilings: &[Ceiling; 2]) -> String {
    let of_pass = |pass| -> Vec<(&Record, &CudaResult)> {
        let records = records.iter().filter(|record| record.direction == pass);
        records
            .filter_map(|record| Some((record, record.cuda.as_ref()?)))
            .collect()
    };
    let [forward, backward] = Direction::ALL.map(of_pass);
    let (mut text, mut captions) = (String::new(), CAPTION.to_string());
    if !forward.is_empty() {
        text += &format!("Forward\n{}\n", forward_table(&forward));
        captions += &format!("\n{FORWARD_CAPTION}");
    }
    if let Some((_, first)) = backward.first() {
        let mode = first.mode.map_or("", Mode::name);
        text += &format!("Backward, {mode} mode\n{}\n", backward_table(&backward));
        captions += &format!("\n{BACKWARD_CAPTION}");
    }
    let device = on_device(records);
    let coordinates = match records.first() {
        Some(record) if record.dtypes.locations != "f32" => {
            "Locations and weights are of value's type.\n"
        }
        _ => "",
    };
    let [copy, gather] = ceilings;
    let ceilings = format!(
        "Ceilings, measured in this run: {:.2} TB/s copying device memory; {:.2} TB/s reading random\n\
         64-byte segments of {} KiB, which L1 holds.",
        copy.gb_s / 1e3,
        gather.gb_s / 1e3,
        gather.buffer_bytes >> 10
    );
    format!("{text}{device}{coordinates}{ceilings}\n{VERIFIED}\n{captions}\n")
}

fn forward_table(results: &[(&Record, &CudaResult)]) -> Table {
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
        "x\nruler",
        "error",
    ]);
    for (record, cuda) in results {
        let share = cuda.share_of_gather_ceiling;
        table.add_row([
            shortened(&record.workload, FORWARD_NAME_WIDTH),
            record.dtypes.value.clone(),
            record.distribution.clone(),
            milliseconds(record.median_ms),
            spread(record),
            milliseconds(cuda.cold_median_ms),
            format!("{:.2}", record.gathered_gb_s / 1e3),
            or_dash(share.map(|share| format!("{:.0}", 100.0 * share))),
            format!("{:.0}", 100.0 * cuda.share_of_dram_floor),
            times_ruler(record, cuda),
            error(record),
        ]);
    }
    narrow(table, 1)
}

fn backward_table(results: &[(&Record, &CudaResult)]) -> Table {
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
        "x\nruler",
        "MB",
        "det.\nMB",
        "error",
    ]);
    for (record, cuda) in results {
        let beside = cuda.deterministic.as_ref();
        table.add_row([
            shortened(&record.workload, BACKWARD_NAME_WIDTH),
            record.dtypes.value.clone(),
            record.distribution.clone(),
            milliseconds(record.median_ms),
            spread(record),
            milliseconds(cuda.cold_median_ms),
            match cuda.reproducible {
                true => "same".to_string(),
                false => or_dash(beside.map(|beside| milliseconds(beside.median_ms))),
            },
            or_dash(beside.map(|beside| format!("{:.2}", beside.median_ms / record.median_ms))),
            format!("{:.0}", 100.0 * cuda.share_of_dram_floor),
            times_ruler(record, cuda),
            megabytes(cuda.workspace_bytes),
            megabytes(beside.and_then(|beside| beside.workspace_bytes)),
            error(record),
        ]);
    }
    narrow(table, 0)
}

fn spread(record: &Record) -> String {
    format!("{:.1}%", 100.0 * record.summary().relative_spread())
}

fn times_ruler(record: &Record, cuda: &CudaResult) -> String {
    // Two digits that matter: more would claim what the interval does not.
    let times = |ruler: &Beside| format!("{:.1}", ruler.median_ms / record.median_ms);
    or_dash(cuda.ruler.as_ref().map(times))
}

fn error(record: &Record) -> String {
    let errors = record.verification.tensors.iter();
    let worst = errors
        .map(|tensor| tensor.relative_error)
        .fold(0.0, f64::max);
    format!("{worst:.1e}")
}

fn megabytes(bytes: Option<usize>) -> String {
    or_dash(bytes.map(|bytes| format!("{:.1}", bytes as f64 / 1e6)))
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or("-".to_string())
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
        json!({"rows": 200, "tensors": [{"tensor": "out", "elements": 6400, "max_error": 1e-4,
            "max_allowed": 1e-3, "relative_error": 2.1e-4, "relative_allowed": 1e-3}]})
    }

    fn beside(median_ms: f64) -> Value {
        json!({"kernel": "a", "kernel_fingerprint": "b", "verification": verification(),
            "samples_ms": [1.0], "median_ms": median_ms, "ci_low_ms": 1.0, "ci_high_ms": 1.0})
    }

    fn on_an_h200(workload: &str) -> Record {
        let cuda = json!({"kernel": "a", "kernel_fingerprint": "b", "reproducible": true, "launches_a_sample": 1,
            "cold_samples_ms": [1.0], "cold_median_ms": 0.01234, "cold_ci_low_ms": 1.0, "cold_ci_high_ms": 1.0,
            "share_of_gather_ceiling": 1.23, "share_of_dram_floor": 1.05, "ruler": beside(1234.5)});
        read(json!({
            "schema": 1, "version": "0", "unix_time": 0, "workload": workload, "distribution": "uniform", "seed": 0,
            "problem": {"images": 1, "queries": 1, "heads": 1, "channels": 1, "points": 1, "pixels": 1, "levels": []},
            "dtypes": {"value": "bf16", "locations": "bf16", "weights": "bf16"}, "direction": "forward",
            "device": device(), "verification": verification(), "samples_ms": [123.4], "median_ms": 123.4,
            "ci_low_ms": 98.0, "ci_high_ms": 130.0, "in_bounds_fraction": 1.0, "gathered_gb_s": 12345.6,
            "gflop_s": 1.0, "traffic": {"compulsory_bytes": 1, "gathered_bytes": 1, "flop": 1}, "cuda": cuda}))
    }

    /// The same of backward, in fast mode with the deterministic one beside it.
    fn backward_on_an_h200(workload: &str) -> Record {
        let mut record = on_an_h200(workload);
        record.direction = Direction::Backward;
        let cuda = record.cuda.as_mut().unwrap();
        cuda.mode = Some(Mode::Fast);
        cuda.reproducible = false;
        cuda.workspace_bytes = Some(987_600_000);
        cuda.share_of_gather_ceiling = None;
        cuda.ruler = Some(read(beside(0.1234)));
        let mut deterministic: Beside = read(beside(0.01839));
        deterministic.workspace_bytes = Some(1_234_500_000);
        cuda.deterministic = Some(deterministic);
        (record.median_ms, record.ci_low_ms, record.ci_high_ms) = (0.01234, 0.01, 0.013);
        record
    }

    fn shown(records: &[Record]) -> String {
        let ceiling = |name: &str| {
            read(json!({
            "schema": 1, "version": "0", "kind": "ceiling", "unix_time": 0, "name": name, "device": device(),
            "buffer_bytes": 1251840, "moved_bytes": 1, "samples_ms": [1.0], "median_ms": 1.0, "ci_low_ms": 1.0,
            "ci_high_ms": 1.0, "gb_s": 4321.0}))
        };
        let text = cuda_results(records, &["copy", "gather"].map(ceiling));
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
        let cuda = record.cuda.as_mut().unwrap();
        (cuda.reproducible, cuda.deterministic) = (true, None);
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
