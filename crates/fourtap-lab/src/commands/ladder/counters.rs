//! Hardware counters of a rung's launches, and what they say binds.

use std::path::PathBuf;
use std::process::Command;

use super::super::note;
use crate::error::Result;
use crate::profile::{Ncu, binding, launches, wanted};
use crate::record::{RungLaunch, RungRecord};

/// How long a launch took, by the profiler.
const TIME: &str = "gpu__time_duration.sum";

/// Says of each record what binds its longest kernel. `program` computes the records' cases once, in their order.
pub fn count(records: &mut [RungRecord], program: &Command) -> Result<()> {
    let ncu = Ncu::find(None)?;
    let wanted = wanted(&[], &ncu.known_metrics()?);
    let profiled = ncu.profile(&wanted.metrics, program)?;
    if let Some(failure) = profiled.failure() {
        note(&format!(
            "note: {}: no counters: {failure}",
            records[0].rung
        ));
        return Ok(());
    }
    let name = PathBuf::from(format!("ncu {}", ncu.version));
    let mut all = launches(&name, &profiled.stdout)?.into_iter();
    for record in records {
        // The library's own forward is one launch; a rung that refused has none.
        let count = match (record.launches.len(), &record.hot) {
            (0, Some(_)) => 1,
            (count, _) => count,
        };
        let of_case: Vec<_> = all.by_ref().take(count).collect();
        let time = |metrics: &std::collections::BTreeMap<String, f64>| {
            metrics.get(TIME).copied().unwrap_or(0.0)
        };
        let repeated = of_case.iter().enumerate().filter(|(place, _)| {
            let launch: Option<&RungLaunch> = record.launches.get(*place);
            !launch.is_some_and(|launch| launch.prepares)
        });
        let longest =
            repeated.max_by(|(_, a), (_, b)| time(&a.metrics).total_cmp(&time(&b.metrics)));
        record.binding = longest.and_then(|(_, launch)| binding(&launch.metrics));
    }
    Ok(())
}
