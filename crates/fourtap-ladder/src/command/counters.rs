//! Hardware counters of a rung's launches, and the bottleneck they show.

use std::path::PathBuf;
use std::process::Command;

use fourtap_lab::extension::profile::{Launch, Ncu, TIME, binding, launches, wanted};
use fourtap_lab::extension::record::{Binding, RungLaunch, RungRecord};
use fourtap_lab::extension::{Error, Result, note};

/// The profiler, and what to ask it: found out once, before the first rung, so that a missing one costs nothing.
#[derive(Debug)]
pub struct Counter {
    ncu: Ncu,
    metrics: Vec<String>,
}

impl Counter {
    /// With the profiler on the PATH or where CUDA installs it.
    pub fn new() -> Result<Self> {
        let ncu = Ncu::find(None)?;
        let wanted = wanted(&[], &ncu.known_metrics()?);
        match wanted.is_blind() {
            true => Err(ncu.without(&wanted.missing)),
            false => Ok(Counter {
                ncu,
                metrics: wanted.metrics,
            }),
        }
    }

    /// Names the bottleneck of each record's longest kernel. `program` computes the records' cases once, in their order.
    /// A rung without counters keeps its times.
    pub fn count(&self, records: &mut [RungRecord], program: &Command) {
        match self.counted(program) {
            Ok(all) => tell(records, all),
            Err(error) => {
                let rung = records.first().map_or("", |record| &record.rung);
                note(&format!("note: {rung}: no counters: {error}"));
            }
        }
    }

    fn counted(&self, program: &Command) -> std::result::Result<Vec<Launch>, Error> {
        let profiled = self.ncu.profile(&self.metrics, program)?;
        match profiled.failure() {
            Some(failure) => Err(failure),
            None => {
                let name = PathBuf::from(format!("ncu {}", self.ncu.version));
                launches(&name, &profiled.stdout)
            }
        }
    }
}

/// Launches come in the order of the records, and within one in that of its plan.
fn tell(records: &mut [RungRecord], all: Vec<Launch>) {
    let mut all = all.into_iter();
    for record in records {
        // The library's own forward is one launch; a rung that refused has none.
        let count = match (record.launches.len(), &record.hot) {
            (0, Some(_)) => 1,
            (count, _) => count,
        };
        let of_case: Vec<Launch> = all.by_ref().take(count).collect();
        record.binding = of_longest(&of_case, &record.launches);
    }
}

/// The bottleneck of the longest launch of those that are repeated with every call.
fn of_longest(launches: &[Launch], planned: &[RungLaunch]) -> Option<Binding> {
    let time = |launch: &Launch| launch.metrics.get(TIME).copied().unwrap_or(0.0);
    let repeated = launches.iter().enumerate().filter(|(place, _)| {
        let planned = planned.get(*place);
        !planned.is_some_and(|launch| launch.prepares)
    });
    let longest = repeated.max_by(|(_, a), (_, b)| time(a).total_cmp(&time(b)))?;
    binding(&longest.1.metrics)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(seconds: f64, issue: f64) -> Launch {
        let metrics = [
            (TIME, seconds),
            (
                "smsp__issue_active.avg.pct_of_peak_sustained_elapsed",
                issue,
            ),
        ];
        let metrics = metrics.map(|(name, value)| (name.to_string(), value));
        Launch {
            kernel: "ladder_a00".to_string(),
            metrics: metrics.into_iter().collect(),
        }
    }

    fn planned(prepares: bool) -> RungLaunch {
        RungLaunch {
            entry: "ladder_a00".to_string(),
            blocks: 1,
            threads: 32,
            cluster: None,
            registers: 32,
            local_bytes: 0,
            shared_bytes: 0,
            prepares,
        }
    }

    #[test]
    fn the_longest_launch_that_is_repeated_counts() {
        let launches = [launch(9.0, 10.0), launch(1.0, 70.0), launch(2.0, 80.0)];
        let plan = [planned(true), planned(false), planned(false)];
        let found = of_longest(&launches, &plan).unwrap();
        assert_eq!((found.limit.as_str(), found.busy), ("issue", 0.8));
        assert_eq!(of_longest(&[], &plan), None);
    }
}
