//! The bottleneck of a kernel, by how busy its units were.

use std::collections::BTreeMap;

use super::metrics::TIME;
use crate::record::Binding;

/// From here on a unit counts as the bottleneck: pipes that are requested at random times do not get much busier than that
/// before requests queue. Below it for all units, latency is.
const BUSY: f64 = 60.0;

/// Points behind the busiest that still deserve a word.
const CLOSE: f64 = 10.0;

type Metrics = BTreeMap<String, f64>;

/// A part of the machine, and the metrics that say how busy it is: the first one there counts.
struct Part {
    limit: &'static str,
    words: &'static str,
    metrics: &'static [&'static str],
}

const PARTS: [Part; 6] = [
    Part {
        limit: "l1",
        words: "the L1 load/store pipe",
        metrics: &[
            "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
            "l1tex__throughput.avg.pct_of_peak_sustained_active",
        ],
    },
    Part {
        limit: "l2",
        words: "L2",
        metrics: &[
            "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
            "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        ],
    },
    Part {
        limit: "dram",
        words: "DRAM",
        metrics: &[
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        ],
    },
    Part {
        limit: "fma",
        words: "the FMA pipe",
        metrics: &["sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed"],
    },
    Part {
        limit: "tensor",
        words: "the tensor cores",
        metrics: &["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"],
    },
    Part {
        limit: "issue",
        words: "instruction issue",
        metrics: &[
            "smsp__issue_active.avg.pct_of_peak_sustained_elapsed",
            "sm__issue_active.avg.pct_of_peak_sustained_elapsed",
        ],
    },
];

/// What warps wait for, in words.
const STALLS: [(&str, &str); 10] = [
    ("long_scoreboard", "loads from L2 or DRAM"),
    ("short_scoreboard", "shared memory"),
    ("lg_throttle", "room in the load/store queue (LG throttle)"),
    (
        "mio_throttle",
        "room in the shared-memory queue (MIO throttle)",
    ),
    ("math_pipe_throttle", "an arithmetic pipe"),
    ("barrier", "other warps at a barrier"),
    ("wait", "the fixed latency of instructions"),
    ("not_selected", "their turn to issue"),
    ("no_instruction", "instructions to be fetched"),
    ("branch_resolving", "branches"),
];

/// How busy a part was, in percent.
pub fn busy(metrics: &Metrics, limit: &str) -> Option<f64> {
    let part = PARTS.iter().find(|part| part.limit == limit)?;
    part.busy(metrics)
}

impl Part {
    fn busy(&self, metrics: &Metrics) -> Option<f64> {
        let found = self.metrics.iter().find_map(|&name| metrics.get(name));
        found.copied()
    }
}

/// The bottleneck; none if no metric says how busy anything was.
pub fn binding(metrics: &Metrics) -> Option<Binding> {
    let known = PARTS
        .iter()
        .filter_map(|part| Some((part, part.busy(metrics)?)));
    let mut parts: Vec<(&Part, f64)> = known.collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let &(first, most) = parts.first()?;
    let close: Vec<String> = parts[1..]
        .iter()
        .filter(|(_, busy)| *busy > most - CLOSE)
        .map(|(part, busy)| format!("{} at {busy:.0} %", part.words))
        .collect();
    let mut words = match most >= BUSY {
        true => format!("bottleneck: {}, busy {most:.0} % of the time", first.words),
        false => format!(
            "bottleneck: latency, nothing is busy for {BUSY:.0} % of the time; the busiest is {} at {most:.0} %",
            first.words
        ),
    };
    if !close.is_empty() {
        words += &format!(", close to it {}", close.join(" and "));
    }
    for more in [amounts(metrics), stalls(metrics)].into_iter().flatten() {
        words += &format!("; {more}");
    }
    Some(Binding {
        limit: match most >= BUSY {
            true => first.limit,
            false => "latency",
        }
        .to_string(),
        busy: most / 100.0,
        words,
    })
}

fn amounts(metrics: &Metrics) -> Option<String> {
    let get = |name: &str| metrics.get(name).copied();
    let mut parts = Vec::new();
    for (level, name) in [
        ("L1", "l1tex__t_sector_hit_rate.pct"),
        ("L2", "lts__t_sector_hit_rate.pct"),
    ] {
        parts.extend(get(name).map(|rate| format!("{level} hits {rate:.0} %")));
    }
    let read = get("dram__bytes_read.sum").zip(get("dram__bytes_write.sum"));
    if let Some((read, written)) = read {
        let bytes = |count: f64| crate::units::bytes(count as u64);
        let rate = get(TIME).filter(|&time| time > 0.0);
        let rate = rate.map_or(String::new(), |time| {
            format!(" ({:.2} TB/s)", (read + written) / time / 1e12)
        });
        parts.push(format!(
            "{} from DRAM and {} to it{rate}",
            bytes(read),
            bytes(written)
        ));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The two things warps wait for longest.
fn stalls(metrics: &Metrics) -> Option<String> {
    let name = |stall| format!("smsp__average_warps_issue_stalled_{stall}_per_issue_active.ratio");
    let known = STALLS
        .iter()
        .filter_map(|(stall, words)| Some((words, *metrics.get(&name(stall))?)));
    let mut stalls: Vec<_> = known.filter(|(_, cycles)| *cycles > 0.0).collect();
    stalls.sort_by(|a, b| b.1.total_cmp(&a.1));
    let longest: Vec<String> = stalls
        .iter()
        .take(2)
        .map(|(words, cycles)| format!("{words} ({cycles:.1} cycles per instruction)"))
        .collect();
    (!longest.is_empty()).then(|| format!("warps wait most for {}", longest.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const L1: &str = "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed";
    const L2: &str = "lts__t_sectors.avg.pct_of_peak_sustained_elapsed";
    const DRAM: &str = "dram__throughput.avg.pct_of_peak_sustained_elapsed";
    const FMA: &str = "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed";
    const TENSOR: &str = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed";
    const ISSUE: &str = "smsp__issue_active.avg.pct_of_peak_sustained_elapsed";

    fn metrics(values: &[(&str, f64)]) -> Metrics {
        let pairs = values.iter();
        pairs
            .map(|&(name, value)| (name.to_string(), value))
            .collect()
    }

    fn limit(values: &[(&str, f64)]) -> String {
        binding(&metrics(values)).unwrap().limit
    }

    #[test]
    fn the_busiest_part_binds() {
        assert_eq!(limit(&[(L1, 82.0), (L2, 73.0), (ISSUE, 71.0)]), "l1");
        assert_eq!(limit(&[(L1, 20.0), (L2, 75.0)]), "l2");
        assert_eq!(limit(&[(DRAM, 91.0), (L2, 40.0)]), "dram");
        assert_eq!(limit(&[(FMA, 88.0), (ISSUE, 80.0)]), "fma");
        assert_eq!(limit(&[(TENSOR, 90.0), (L1, 30.0)]), "tensor");
        assert_eq!(limit(&[(ISSUE, 73.0), (L1, 70.0)]), "issue");
    }

    #[test]
    fn when_nothing_is_busy_latency_binds() {
        let found = binding(&metrics(&[
            (L1, 37.0),
            (ISSUE, 38.0),
            (DRAM, 59.9),
            (
                "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
                12.0,
            ),
            (
                "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",
                2.0,
            ),
        ]))
        .unwrap();
        assert_eq!((found.limit.as_str(), found.busy), ("latency", 0.599));
        assert!(
            found.words.contains(
                "warps wait most for loads from L2 or DRAM (12.0 cycles per instruction)"
            ),
            "{}",
            found.words
        );
    }

    #[test]
    fn a_close_second_is_named() {
        let words = binding(&metrics(&[(ISSUE, 73.0), (L1, 70.0), (DRAM, 20.0)]))
            .unwrap()
            .words;
        assert!(words.contains("the L1 load/store pipe at 70 %"), "{words}");
        assert!(!words.contains("DRAM at"), "{words}");
    }

    #[test]
    fn without_a_share_nobody_can_say() {
        assert_eq!(binding(&metrics(&[(TIME, 1.0)])), None);
    }
}
