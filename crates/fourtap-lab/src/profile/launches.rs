//! Launches as the profiler lists them, and kernels as the sum of theirs.

use std::collections::BTreeMap;

use super::metrics::TIME;

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The kernel's function.
    pub kernel: String,
    /// By the profiler's names, in base units.
    pub metrics: BTreeMap<String, f64>,
}

/// All launches of a kernel together.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCounters {
    /// The kernel's function.
    pub kernel: String,
    /// How many launches.
    pub launches: u32,
    /// Sums of what counts, means weighted by time of what is a share.
    pub metrics: BTreeMap<String, f64>,
}

/// The kernels in the order of their first launch.
pub fn by_kernel(launches: &[Launch]) -> Vec<KernelCounters> {
    let mut kernels: Vec<(&str, Vec<&Launch>)> = Vec::new();
    for launch in launches {
        match kernels.iter_mut().find(|(name, _)| *name == launch.kernel) {
            Some((_, same)) => same.push(launch),
            None => kernels.push((&launch.kernel, vec![launch])),
        }
    }
    let one = |(kernel, same): (&str, Vec<&Launch>)| KernelCounters {
        kernel: kernel.to_string(),
        launches: same.len() as u32,
        metrics: together(&same),
    };
    kernels.into_iter().map(one).collect()
}

fn together(launches: &[&Launch]) -> BTreeMap<String, f64> {
    // What only some launches have would be a sum of some: left out.
    let everywhere = |name: &&String| {
        let has = |launch: &&Launch| launch.metrics.contains_key(name.as_str());
        launches.iter().all(has)
    };
    let names = launches.first().into_iter();
    let names = names.flat_map(|launch| launch.metrics.keys());
    let value = |name: &String| {
        let values = launches.iter().map(|launch| launch.metrics[name]);
        if name.ends_with(".sum") {
            return values.sum();
        }
        let weights = launches
            .iter()
            .map(|launch| match launch.metrics.get(TIME) {
                Some(&time) if time > 0.0 => time,
                _ => 1.0,
            });
        let total: f64 = weights.clone().sum();
        values
            .zip(weights)
            .map(|(value, weight)| value * weight)
            .sum::<f64>()
            / total
    };
    let names = names.filter(everywhere);
    names.map(|name| (name.clone(), value(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(kernel: &str, metrics: &[(&str, f64)]) -> Launch {
        Launch {
            kernel: kernel.to_string(),
            metrics: metrics
                .iter()
                .map(|&(name, value)| (name.to_string(), value))
                .collect(),
        }
    }

    #[test]
    fn counts_add_up_and_shares_are_weighted_by_time() {
        let kernels = by_kernel(&[
            launch("a", &[(TIME, 1.0), ("x__b.sum", 10.0), ("x__c.pct", 80.0)]),
            launch("b", &[(TIME, 9.0)]),
            launch("a", &[(TIME, 3.0), ("x__b.sum", 30.0), ("x__c.pct", 40.0)]),
        ]);
        assert_eq!(kernels.len(), 2);
        assert_eq!((kernels[0].kernel.as_str(), kernels[0].launches), ("a", 2));
        assert_eq!(kernels[0].metrics[TIME], 4.0);
        assert_eq!(kernels[0].metrics["x__b.sum"], 40.0);
        assert_eq!(kernels[0].metrics["x__c.pct"], 50.0);
    }

    #[test]
    fn what_only_some_launches_have_is_left_out() {
        let kernels = by_kernel(&[
            launch("a", &[(TIME, 1.0), ("x__b.sum", 10.0)]),
            launch("a", &[(TIME, 1.0)]),
        ]);
        assert!(!kernels[0].metrics.contains_key("x__b.sum"));
    }
}
