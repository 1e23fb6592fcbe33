//! Bottlenecks, by hardware counters.

use super::number::percent;
use super::page::{Block, Cell, Section, Table};
use super::part::Part;
use crate::record::CountersRecord;

/// Shares worth a column: how the profiler's names begin, and what they mean.
const SHARES: [(&str, &str); 9] = [
    ("l1tex__data_pipe_lsu_wavefronts", "L1 data pipe"),
    ("lts__t_sectors", "L2"),
    ("lts__throughput", "L2"),
    ("dram__throughput", "DRAM"),
    ("sm__inst_executed_pipe_fma", "FMA"),
    ("sm__pipe_tensor", "tensor cores"),
    ("sm__inst_executed_pipe_tensor", "tensor cores"),
    ("sm__issue_active", "issue slots"),
    ("sm__warps_active", "warps"),
];

/// Hit rates are shares too, but never a bottleneck.
const HITS: [(&str, &str); 2] = [
    ("l1tex__t_sector_hit_rate", "L1 hits"),
    ("lts__t_sector_hit_rate", "L2 hits"),
];

/// The section; none without counters.
pub fn section(parts: &[Part<'_>]) -> Option<Section> {
    let mut blocks = vec![];
    for part in parts.iter().filter(|part| !part.counters.is_empty()) {
        blocks.extend(part.title.as_ref().map(Block::heading));
        blocks.push(Block::Table {
            table: table(&part.counters),
        });
    }
    if blocks.is_empty() {
        return None;
    }
    let lead = "One row per kernel. The bars show how busy each unit was, as a share of its sustained peak; the \
                busiest is the bottleneck, and if none is busy, latency is.";
    blocks.insert(0, Block::words(lead));
    Some(Section {
        id: "counters",
        title: "Counters",
        blocks,
    })
}

fn table(counters: &[&CountersRecord]) -> Table {
    let mut columns: Vec<&str> = vec![];
    for (_, name) in SHARES.iter().chain(&HITS) {
        if !columns.contains(name) {
            columns.push(name);
        }
    }
    let numeric: Vec<String> = columns.iter().map(|name| format!("#{name}")).collect();
    let mut heads = vec!["benchmark and kernel", "~bottleneck"];
    heads.extend(numeric.iter().map(String::as_str));
    let mut table = Table::new("Counters", &heads);
    for record in counters {
        let benchmark = format!(
            "{}/{}/{}/{}",
            record.workload,
            record.distribution,
            record.dtypes.value,
            record.direction.name()
        );
        let binding = &record.binding;
        let binds = format!("{}, busy {}", limit(&binding.limit), percent(binding.busy));
        let mut row = vec![
            Cell::words(benchmark).with_detail(&record.kernel),
            Cell::words(binds)
                .with_detail(format!("{} From {}.", binding.words, record.source))
                .with_share(binding.busy)
                .strong(),
        ];
        for column in &columns {
            let share = share(record, column);
            row.push(match share {
                Some(share) => Cell::number(percent(share), Some(share)).with_share(share),
                None => Cell::words("–"),
            });
        }
        table.rows.push(row);
    }
    table.without_empty_columns()
}

/// From 0 to 1, by the first counter that says so.
fn share(record: &CountersRecord, column: &str) -> Option<f64> {
    let known = SHARES.iter().chain(&HITS);
    let mut prefixes = known.filter(|(_, name)| *name == column);
    prefixes.find_map(|(prefix, _)| {
        let found = record
            .metrics
            .iter()
            .find(|(name, _)| name.starts_with(prefix) && name.contains("pct"));
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
