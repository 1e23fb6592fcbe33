//! Bottlenecks, by hardware counters.

use super::number::percent;
use super::page::{Block, Cell, Holds, Section, Table};
use super::part::Part;
use crate::record::CountersRecord;

/// Shares worth a column: what they mean, and how the profiler's names of them begin.
const SHARES: [(&str, &[&str]); 9] = [
    ("L1 data pipe", &["l1tex__data_pipe_lsu_wavefronts"]),
    ("L2", &["lts__t_sectors", "lts__throughput"]),
    ("DRAM", &["dram__throughput"]),
    ("FMA", &["sm__inst_executed_pipe_fma"]),
    (
        "tensor cores",
        &["sm__pipe_tensor", "sm__inst_executed_pipe_tensor"],
    ),
    ("issue slots", &["sm__issue_active"]),
    ("warps", &["sm__warps_active"]),
    // Shares too, but never a bottleneck.
    ("L1 hits", &["l1tex__t_sector_hit_rate"]),
    ("L2 hits", &["lts__t_sector_hit_rate"]),
];

const LEAD: &str = "One row per kernel. The bars show how busy each unit was, as a share of its sustained peak; the \
                    busiest is the bottleneck, and if none is busy, latency is.";

/// The section; none without counters.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts.iter().filter(|part| !part.counters.is_empty()) {
        blocks.extend(part.title.clone().map(Block::Heading));
        blocks.push(Block::Table(table(&part.counters)));
    }
    Section::of("counters", "Counters", LEAD, blocks)
}

fn table(counters: &[&CountersRecord]) -> Table {
    let table = Table::of("Counters", counters)
        .words("benchmark and kernel", |it| {
            let (dtype, pass) = (&it.dtypes.value, it.direction.name());
            let benchmark = format!("{}/{}/{dtype}/{pass}", it.workload, it.distribution);
            Cell::from(benchmark).with_detail(&it.kernel)
        })
        .sentences("bottleneck", |it| {
            let binding = &it.binding;
            let busy = percent(binding.busy);
            Cell::from(format!("{}, busy {busy}", limit(&binding.limit)))
                .with_detail(format!("{} From {}.", binding.words, it.source))
                .with_share(Some(binding.busy))
                .strong()
        });
    let columns = SHARES.iter().fold(table, |table, (head, names)| {
        table.column(head, Holds::Numbers, |it| {
            let share = share(it, names);
            Cell::number(share, percent).with_share(share)
        })
    });
    columns.table()
}

/// From 0 to 1, by the first counter that says so.
fn share(record: &CountersRecord, names: &[&str]) -> Option<f64> {
    names.iter().find_map(|name| {
        let mut metrics = record.metrics.iter();
        let found = metrics.find(|(metric, _)| metric.starts_with(name) && metric.contains("pct"));
        found.map(|(_, percent)| percent / 100.0)
    })
}

/// The bottleneck's usual name.
pub fn limit(limit: &str) -> &str {
    match limit {
        "l1" => "L1",
        "l2" => "L2",
        "dram" => "DRAM",
        "fma" => "FMA units",
        "tensor" => "tensor cores",
        "issue" => "issue slots",
        other => other,
    }
}
