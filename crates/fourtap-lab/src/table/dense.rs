//! Results of dense attention, on whatever device.

use super::{VERIFIED, align_right, milliseconds, on_device, or_dash, shortened, with_header};
use crate::record::BenchRecord;

/// What the columns mean.
const CAPTION: &str = "\
hot: the same inputs again and again; ±: half the 95 % confidence interval of its median; cold:
copies of them in turn, more than caches hold. FLOP/s: 2 operations a channel for each key that a
query sees, for either product, of hot. roof: the least time that ceilings measured in this run allow
over hot, and which of them says so. error: distance to the oracle over its length, in the 2-norm.";

/// Letters of a workload's name that fit a table of 100 columns.
const NAME_WIDTH: usize = 28;

/// Every result a row.
pub fn dense_results(records: &[&BenchRecord]) -> String {
    let mut table = with_header(&[
        "workload", "dtype", "hot ms", "±", "cold ms", "FLOP/s", "roof", "by", "error",
    ]);
    for record in records {
        let Some(hot) = &record.hot else { continue };
        let cold = record.cold.as_ref();
        let roof = record.roof.as_ref();
        table.add_row([
            shortened(&record.workload, NAME_WIDTH),
            record.dtypes.value.clone(),
            milliseconds(hot.median_ms),
            format!("{:.1} %", 100.0 * hot.uncertainty()),
            or_dash(cold.map(|cold| milliseconds(cold.median_ms))),
            or_dash(record.gflop_s().map(operations)),
            or_dash(roof.map(|roof| format!("{:.0} %", 100.0 * roof.hot_ms / hot.median_ms))),
            or_dash(roof.map(|roof| roof.hot_limit.clone())),
            format!("{:.1e}", record.verification.relative_error()),
        ]);
    }
    align_right(&mut table, 2..7);
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    let device = on_device(records);
    format!("Dense attention\n{table}\n{device}{VERIFIED}\n{CAPTION}\n")
}

/// As in "454 T" and "98.1 G".
fn operations(giga: f64) -> String {
    let (number, unit) = match giga >= 1e3 {
        true => (giga / 1e3, "T"),
        false => (giga, "G"),
    };
    match number >= 100.0 {
        true => format!("{number:.0} {unit}"),
        false => format!("{number:.1} {unit}"),
    }
}
