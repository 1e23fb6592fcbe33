//! Which counters to read, and whether the profiler knows them.

use std::collections::BTreeSet;

use crate::nearest::nearest;

/// How long a launch took.
pub const TIME: &str = "gpu__time_duration.sum";

/// Metrics of a launch are not counters: the profiler has them always, and does not list them.
const LAUNCH: &str = "launch__";

/// How busy each unit is: without these there is no bottleneck to name.
pub const ESSENTIAL: [&str; 7] = [
    TIME,
    "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "smsp__issue_active.avg.pct_of_peak_sustained_elapsed",
];

/// Amounts, hit rates and what warps wait for.
const MORE: [&str; 31] = [
    "l1tex__data_pipe_lsu_wavefronts.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "l1tex__t_sector_hit_rate.pct",
    "l1tex__m_xbar2l1tex_read_sectors.sum",
    "lts__t_sectors_srcunit_tex.sum",
    "lts__t_sector_hit_rate.pct",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed.sum",
    "sm__inst_executed_pipe_fma.sum",
    "sm__inst_executed_pipe_tensor.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "launch__registers_per_thread",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "launch__occupancy_limit_blocks",
    "launch__block_size",
    "launch__grid_size",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_not_selected_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_no_instruction_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_branch_resolving_per_issue_active.ratio",
];

/// What to ask for, and what must be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricSelection {
    /// To read.
    pub metrics: Vec<String>,
    /// In words, what is left out and why that matters.
    pub notes: Vec<String>,
    /// Of the essential ones, those that are not known.
    pub missing: Vec<&'static str>,
}

impl MetricSelection {
    /// Whether nothing is left that says how busy any part is.
    pub fn is_blind(&self) -> bool {
        let busy = ESSENTIAL.iter().filter(|&&name| name != TIME);
        busy.clone().all(|name| self.missing.contains(name))
    }
}

/// The usual counters and these `more`, as far as the profiler knows their base names; if it named none, all.
pub fn wanted(more: &[String], known: &BTreeSet<String>) -> MetricSelection {
    let mut metrics: Vec<String> = Vec::new();
    let (mut notes, mut missing, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let usual = ESSENTIAL.iter().chain(&MORE).copied();
    let asked = more.iter().map(|name| name.trim());
    for name in usual.chain(asked) {
        let base = name.split('.').next().unwrap_or(name);
        let is_known = known.is_empty() || base.starts_with(LAUNCH) || known.contains(base);
        if name.is_empty() || metrics.iter().any(|other| other == name) {
            continue;
        }
        if is_known {
            metrics.push(name.to_string());
        } else if let Some(essential) = ESSENTIAL.iter().find(|&&essential| essential == name) {
            missing.push(*essential);
            notes.push(format!(
                "{base}: the profiler does not know it on this device, so that unit may be the bottleneck unnoticed"
            ));
        } else if MORE.contains(&name) {
            others.push(base);
        } else {
            let near = nearest(base, known.iter().map(String::as_str));
            let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
            notes.push(format!(
                "{base}: the profiler does not know it on this device, left out{near}"
            ));
        }
    }
    if !others.is_empty() {
        notes.push(format!(
            "not known to the profiler on this device, left out: {}",
            others.join(", ")
        ));
    }
    MetricSelection {
        metrics,
        notes,
        missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    /// Base names of everything asked for by default.
    fn all() -> BTreeSet<String> {
        let names = ESSENTIAL.iter().chain(&MORE);
        names
            .filter_map(|name| Some(name.split('.').next()?.to_string()))
            .collect()
    }

    #[test]
    fn a_name_that_is_not_known_is_left_out_with_the_one_that_is() {
        let more = ["sm__pipe_tensor_active.sum".to_string()];
        let wanted = wanted(&more, &all());
        assert!(wanted.missing.is_empty());
        assert_eq!(wanted.notes.len(), 1);
        assert!(
            wanted.notes[0].contains("did you mean sm__pipe_tensor_cycles_active?"),
            "{:?}",
            wanted.notes
        );
        assert!(!wanted.metrics.contains(&more[0]));
    }

    #[test]
    fn essential_names_that_are_missing_are_named() {
        let mut fewer = all();
        fewer.remove("lts__t_sectors");
        let wanted = wanted(&[], &fewer);
        assert_eq!(
            wanted.missing,
            ["lts__t_sectors.avg.pct_of_peak_sustained_elapsed"]
        );
        assert!(wanted.notes[0].contains("may be the bottleneck unnoticed"));
        assert!(!wanted.is_blind());
    }

    #[test]
    fn metrics_of_the_launch_need_not_be_listed() {
        let wanted = wanted(&[], &known(&["gpu__time_duration"]));
        assert!(
            wanted
                .metrics
                .contains(&"launch__registers_per_thread".to_string())
        );
        assert_eq!(wanted.missing.len(), ESSENTIAL.len() - 1);
        assert!(wanted.is_blind());
    }

    #[test]
    fn a_profiler_that_lists_nothing_is_asked_for_everything() {
        let wanted = wanted(&[String::new(), TIME.to_string()], &known(&[]));
        assert_eq!(wanted.metrics.len(), ESSENTIAL.len() + MORE.len());
        assert!(wanted.notes.is_empty());
    }
}
