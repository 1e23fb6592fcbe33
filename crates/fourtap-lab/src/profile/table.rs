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
const NAME_WIDTH: usize = 29;

/// Every kernel a row, and below what binds it.
pub fn counters(records: &[CountersRecord]) -> String {
    let mut table = with_header(&[
        "kernel", "ms", "L1\npipe", "L2", "DRAM", "FMA", "tensor", "issue", "L1\nhits", "L2\nhits",
        "warps", "binds",
    ]);
    for record in records {
        let metrics = &record.metrics;
        let percent = |value: Option<f64>| or_dash(value.map(|value| format!("{value:.0}")));
        let share = |limit: &str| percent(busy(metrics, limit));
        let metric = |name: &str| percent(metrics.get(name).copied());
        table.add_row([
            shortened(&record.kernel, NAME_WIDTH),
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
