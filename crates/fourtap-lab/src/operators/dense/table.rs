//! Dense attention for people.

use fourtap::dense::Sizes;

use super::MaskRecord;
use super::record::seen_in_words;
use super::workload::{BUILT_IN, Workload};
use crate::error::Result;
use crate::record::BenchRecord;
use crate::table::{
    NAME_WIDTH, VERIFIED, align_right, milliseconds, on_device, or_dash, shortened, with_header,
};

/// What the columns mean.
const CAPTION: &str = "\
hot: the same inputs repeatedly; ±: half the 95 % confidence interval of its median; cold:
rotating copies, more than caches hold. FLOP/s: 4 per channel and pair of a query and a key it sees,
of hot. roof: the least time that ceilings measured in this run allow over hot, and which ceiling.
error: relative error in the 2-norm.";

/// One row per result, on whatever device.
pub fn results(records: &[&BenchRecord]) -> String {
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

/// The built-in workloads.
pub fn workloads() -> Result<String> {
    let mut table = with_header(&["name", "B", "Hq", "Hk", "Sq", "Sk", "D", "keys seen"]);
    for (name, text) in BUILT_IN {
        let workload = Workload::parse(name, text)?;
        let Sizes {
            batch,
            query_heads,
            key_heads,
            queries,
            keys,
            channels,
            ..
        } = workload.sizes();
        let sizes = [batch, query_heads, key_heads, queries, keys, channels];
        let mask = MaskRecord::of(workload.options().mask);
        let mut row = vec![workload.name.clone()];
        row.extend(sizes.map(|size| size.to_string()));
        row.push(seen_in_words(mask.as_ref(), workload.attn_mask, "all"));
        table.add_row(row);
    }
    align_right(&mut table, 1..7);
    let letters = "\
B sequences, Hq heads of queries, Hk of keys and values, Sq queries, Sk keys, D channels per head.";
    Ok(format!(
        "Dense attention (`fourtap bench dense`)\n{table}\n{letters}\n"
    ))
}
