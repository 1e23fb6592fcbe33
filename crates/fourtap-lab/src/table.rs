//! Records for people.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table, TableComponent};
use fourtap::cuda::jit::{Entry, State};

use crate::record::{Ceiling, Record};
use crate::units;
use crate::workload::{Queries, Workload};

/// What the columns of [`results`] mean.
const CAPTION: &str = "\
±: half the 95 % confidence interval of the median. GB/s: bytes the samples gather from value;
GFLOP/s: 10 operations a channel and sample. Backward counts both twice.";

/// What the columns of [`cuda_results`] mean.
const CUDA_CAPTION: &str = "\
hot: caches as the launch before left them; ±: half the 95 % confidence interval of its median;
cold: second-level cache overwritten before. gather: bytes the samples ask of value. % of DRAM: time
to copy what must move at least once. x ruler: how many times faster than one thread a channel.
error: distance to the oracle over its length, in the 2-norm. Shares and x ruler are of hot.";

const VERIFIED: &str = "Every result was verified against the f64 oracle.";

/// Letters of a workload's name that fit a table of 100 columns.
const NAME_WIDTH: usize = 28;
const CUDA_NAME_WIDTH: usize = 18;
const KERNEL_NAME_WIDTH: usize = 44;

/// Every result a row.
pub fn results(records: &[Record]) -> String {
    let mut table = with_header(&[
        "workload",
        "points",
        "dtype",
        "pass",
        "median ms",
        "±",
        "GB/s",
        "GFLOP/s",
    ]);
    for record in records {
        table.add_row([
            shortened(&record.workload, NAME_WIDTH),
            record.distribution.clone(),
            record.dtypes.value.clone(),
            record.direction.name().to_string(),
            milliseconds(record.median_ms),
            format!("{:.1} %", 100.0 * record.summary().relative_spread()),
            format!("{:.1}", record.gathered_gb_s),
            format!("{:.1}", record.gflop_s),
        ]);
    }
    align_right(&mut table, 4..8);
    let device = on_device(records);
    format!("{table}\n{device}{VERIFIED}\n{CAPTION}\n")
}

/// Every result on CUDA a row.
pub fn cuda_results(records: &[Record], [copy, gather]: &[Ceiling; 2]) -> String {
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
    for record in records {
        let Some(cuda) = &record.cuda else { continue };
        let times_ruler = cuda.ruler.as_ref().map(|ruler| {
            // Two digits that matter: more would claim what the interval does not.
            format!("{:.1}", ruler.median_ms / record.median_ms)
        });
        let errors = record.verification.tensors.iter();
        let error = errors
            .map(|tensor| tensor.relative_error)
            .fold(0.0, f64::max);
        table.add_row([
            shortened(&record.workload, CUDA_NAME_WIDTH),
            record.dtypes.value.clone(),
            record.distribution.clone(),
            milliseconds(record.median_ms),
            format!("{:.1}%", 100.0 * record.summary().relative_spread()),
            milliseconds(cuda.cold_median_ms),
            format!("{:.2}", record.gathered_gb_s / 1e3),
            format!("{:.0}", 100.0 * cuda.share_of_gather_ceiling),
            format!("{:.0}", 100.0 * cuda.share_of_dram_floor),
            times_ruler.unwrap_or("-".to_string()),
            format!("{error:.1e}"),
        ]);
    }
    align_right(&mut table, 3..11);
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    let device = on_device(records);
    let coordinates = match records.first() {
        Some(record) if record.dtypes.locations != "f32" => {
            "Locations and weights are of value's type.\n"
        }
        _ => "",
    };
    let ceilings = format!(
        "Ceilings, measured in this run: {:.2} TB/s copying device memory; {:.2} TB/s reading random\n\
         64-byte segments of {} KiB, which L1 holds.",
        copy.gb_s / 1e3,
        gather.gb_s / 1e3,
        gather.buffer_bytes >> 10
    );
    format!("{table}\n{device}{coordinates}{ceilings}\n{VERIFIED}\n{CUDA_CAPTION}\n")
}

fn on_device(records: &[Record]) -> String {
    let device = records.first().map(|record| record.device.in_words());
    device.map_or(String::new(), |device| format!("On {device}.\n"))
}

/// The built-in workloads.
pub fn workloads(workloads: &[Workload]) -> String {
    let mut table = with_header(&["name", "N", "Q", "M", "D", "P", "levels (H x W)"]);
    let mut descriptions = String::new();
    for workload in workloads {
        let levels: Vec<_> = workload
            .levels
            .iter()
            .map(|[height, width]| format!("{height}x{width}"))
            .collect();
        table.add_row([
            workload.name.clone(),
            workload.images.to_string(),
            match workload.queries {
                Queries::Pixels => "pixels".to_string(),
                Queries::Count(count) => count.to_string(),
            },
            workload.heads.to_string(),
            workload.channels.to_string(),
            workload.points.to_string(),
            levels.join(" "),
        ]);
        descriptions += &format!("{:16}{}\n", workload.name, workload.description);
    }
    align_right(&mut table, 1..6);
    let letters = "N images, Q queries, M heads, D channels a head, P points a level.";
    format!("{table}\n{letters}\n\n{descriptions}")
}

/// The kernels of a cache.
pub fn cached(entries: &[Entry]) -> String {
    let mut table = with_header(&["kernel", "for", "NVRTC", "size", "unused for", ""]);
    let or_unknown = |text: Option<String>| text.unwrap_or("?".to_string());
    for entry in entries {
        let unused = entry.last_used.elapsed().unwrap_or_default();
        table.add_row([
            shortened(&entry.name, KERNEL_NAME_WIDTH),
            or_unknown(entry.architecture.map(|it| it.to_string())),
            or_unknown(entry.nvrtc.map(|it| it.to_string())),
            units::bytes(entry.size),
            units::age(unused),
            match entry.state {
                State::Sound => "".to_string(),
                State::Damaged(_) => "damaged".to_string(),
            },
        ]);
    }
    align_right(&mut table, 2..5);
    format!("{table}\n")
}

/// "1 thread", "2 threads".
pub fn threads(count: usize) -> String {
    format!("{count} thread{}", if count == 1 { "" } else { "s" })
}

fn with_header(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY);
    // Lines around the header and at the end, none between the rows.
    for between in [
        TableComponent::HorizontalLines,
        TableComponent::MiddleIntersections,
        TableComponent::LeftBorderIntersections,
        TableComponent::RightBorderIntersections,
    ] {
        table.remove_style(between);
    }
    table.set_header(header);
    table
}

fn align_right(table: &mut Table, columns: std::ops::Range<usize>) {
    for index in columns {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Three digits that matter, or more, whatever the scale.
fn milliseconds(milliseconds: f64) -> String {
    let decimals = match milliseconds {
        time if time >= 1000.0 => 0,
        time if time >= 100.0 => 1,
        time if time >= 10.0 => 2,
        time if time >= 0.1 => 3,
        _ => 5,
    };
    format!("{milliseconds:.decimals$}")
}

/// The end of a long name tells more than its beginning.
fn shortened(name: &str, width: usize) -> String {
    let count = name.chars().count();
    if count <= width {
        return name.to_string();
    }
    let end: String = name.chars().skip(count - width + 1).collect();
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("detr-encoder", NAME_WIDTH), "detr-encoder");
        let long = "/a/very/long/path/to/some/folder/with/inputs.safetensors";
        let short = shortened(long, NAME_WIDTH);
        assert_eq!(short.chars().count(), NAME_WIDTH);
        assert!(short.ends_with("inputs.safetensors"));
    }

    #[test]
    fn times_keep_at_least_three_digits() {
        let times = [0.00456, 0.456, 12.3456, 123.456, 4321.0].map(milliseconds);
        assert_eq!(times, ["0.00456", "0.456", "12.35", "123.5", "4321"]);
    }

    fn on_an_h200(workload: &str) -> (Record, [Ceiling; 2]) {
        let device = json!({"kind": "cuda", "model": "NVIDIA H200", "cuda": {
            "ordinal": 0, "compute_capability": "9.0", "multiprocessors": 132, "l2_bytes": 62914560,
            "memory_bytes": 150_000_000_000u64, "driver_cuda": "13.0", "driver": "580.1", "nvrtc": "13.0"}});
        let verification = json!({"rows": 200, "tensors": [{"tensor": "out", "elements": 6400, "max_error": 1e-4,
            "max_allowed": 1e-3, "relative_error": 2.1e-4, "relative_allowed": 1e-3}]});
        let ruler = json!({"kernel": "a", "kernel_fingerprint": "b", "verification": verification,
            "samples_ms": [1.0], "median_ms": 1234.5, "ci_low_ms": 1.0, "ci_high_ms": 1.0});
        let record = json!({
            "schema": 1, "version": "0", "unix_time": 0, "workload": workload, "distribution": "uniform", "seed": 0,
            "problem": {"images": 1, "queries": 1, "heads": 1, "channels": 1, "points": 1, "pixels": 1, "levels": []},
            "dtypes": {"value": "bf16", "locations": "bf16", "weights": "bf16"}, "direction": "forward",
            "device": device, "verification": verification, "samples_ms": [123.4], "median_ms": 123.4,
            "ci_low_ms": 98.0, "ci_high_ms": 130.0, "in_bounds_fraction": 1.0, "gathered_gb_s": 12345.6,
            "gflop_s": 1.0, "traffic": {"compulsory_bytes": 1, "gathered_bytes": 1, "flop": 1},
            "cuda": {"kernel": "a", "kernel_fingerprint": "b", "launches_a_sample": 1, "cold_samples_ms": [1.0],
                "cold_median_ms": 0.01234, "cold_ci_low_ms": 1.0, "cold_ci_high_ms": 1.0,
                "share_of_gather_ceiling": 1.23, "share_of_dram_floor": 1.05, "ruler": ruler}});
        let ceiling = |name| {
            json!({
            "schema": 1, "version": "0", "kind": "ceiling", "unix_time": 0, "name": name, "device": device,
            "buffer_bytes": 1251840, "moved_bytes": 1, "samples_ms": [1.0], "median_ms": 1.0, "ci_low_ms": 1.0,
            "ci_high_ms": 1.0, "gb_s": 4321.0})
        };
        let read = |value| serde_json::from_value(value).unwrap();
        let ceilings = [ceiling("copy"), ceiling("gather")];
        (
            read(record),
            ceilings.map(|one| serde_json::from_value(one).unwrap()),
        )
    }

    #[test]
    fn results_on_cuda_fit_100_columns() {
        let (record, ceilings) = on_an_h200("folder/of/inputs.safetensors");
        let text = cuda_results(&[record], &ceilings);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{text}");
        for part in [
            "…nputs.safetensors",
            "123.4",
            "0.01234",
            "10.0",
            "2.1e-4",
            "4.32 TB/s",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
