//! Results on a processor.

use crate::record::BenchRecord;
use crate::table::{
    NAME_WIDTH, VERIFIED, align_right, milliseconds, on_device, or_dash, shortened, with_header,
};

/// What the columns of [`on_cpu`] mean.
const CAPTION: &str = "\
hot: the same inputs repeatedly; ±: half the 95 % confidence interval of its median; cold:
rotating copies, more than caches hold. GB/s: bytes the samples gather from value; GFLOP/s: 10 FLOP
per channel and sample; both of hot. Backward counts both twice.";

/// One row per result on a CPU.
pub fn on_cpu(records: &[&BenchRecord]) -> String {
    let mut table = with_header(&[
        "workload", "points", "dtype", "pass", "hot ms", "±", "cold ms", "GB/s", "GFLOP/s",
    ]);
    for record in records {
        let Some(hot) = &record.hot else { continue };
        table.add_row([
            shortened(&record.workload, NAME_WIDTH),
            record.distribution.clone(),
            record.dtypes.value.clone(),
            record.direction.name().to_string(),
            milliseconds(hot.median_ms),
            format!("{:.1} %", 100.0 * hot.uncertainty()),
            or_dash(
                record
                    .cold
                    .as_ref()
                    .map(|cold| milliseconds(cold.median_ms)),
            ),
            or_dash(record.gathered_gb_s().map(|rate| format!("{rate:.1}"))),
            or_dash(record.gflop_s().map(|rate| format!("{rate:.1}"))),
        ]);
    }
    align_right(&mut table, 4..9);
    let device = on_device(records);
    format!("{table}\n{device}{VERIFIED}\n{CAPTION}\n")
}
