//! How fast others are, as measured on their own.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::cli::Direction;
use crate::cuda::Mode;
use crate::operators::msda::ProblemSizes;
use crate::record::BenchRecord;
use crate::report::Peer;
use crate::target::Device;

static PEERS: LazyLock<Peers> = LazyLock::new(|| {
    toml::from_str(include_str!("../../../../peers.toml"))
        .expect("peers.toml is tested to be sound")
});

/// Everything known of others.
#[derive(Debug, Deserialize)]
struct Peers {
    /// How and when, in words.
    measured: String,
    device: String,
    sizes: BTreeMap<String, Sizes>,
    figures: Vec<Figures>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Sizes {
    images: usize,
    queries: usize,
    heads: usize,
    channels: usize,
    points: usize,
}

#[derive(Debug, Deserialize)]
struct Figures {
    workload: String,
    points: String,
    dtype: String,
    forward: BTreeMap<String, f64>,
    backward: BTreeMap<String, f64>,
}

/// Those who did the very same, the fastest first.
pub fn peers(record: &BenchRecord) -> Vec<Peer<'static>> {
    PEERS.of(record)
}

impl Peers {
    /// Whether they were measured on such a device: elsewhere their times say nothing.
    fn apply_to(&self, device: &Device) -> bool {
        let model = device.model.as_deref().unwrap_or("");
        device.kind == "cuda" && model.contains(&self.device)
    }

    fn of(&self, record: &BenchRecord) -> Vec<Peer<'_>> {
        let usual = record.problem.variant().is_none()
            && record.dtypes.locations.as_deref() == Some("f32")
            && record.kernel.asked.is_none()
            && record.kernel.mode != Some(Mode::Deterministic);
        let sizes = record.problem.of().map(Sizes::of);
        let same_sizes = sizes.is_some() && self.sizes.get(&record.workload) == sizes.as_ref();
        if !usual || !same_sizes || !self.apply_to(&record.device) {
            return vec![];
        }
        let figures = self.figures.iter().find(|figures| {
            figures.workload == record.workload
                && figures.points == record.distribution
                && figures.dtype == record.dtypes.value
        });
        let mut peers: Vec<_> = figures
            .into_iter()
            .flat_map(|figures| match record.direction {
                Direction::Forward => &figures.forward,
                Direction::Backward => &figures.backward,
            })
            .map(|(name, ms)| Peer {
                name,
                ms: *ms,
                measured: &self.measured,
            })
            .collect();
        peers.sort_by(|a, b| a.ms.total_cmp(&b.ms));
        peers
    }
}

impl Sizes {
    fn of(problem: &ProblemSizes) -> Self {
        Sizes {
            images: problem.images,
            queries: problem.queries,
            heads: problem.heads,
            channels: problem.channels,
            points: problem.points,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::msda::Workload;
    use std::path::Path;

    #[test]
    fn peers_did_the_built_in_workloads() {
        let peers = &*PEERS;
        assert_eq!(peers.figures.len(), 12);
        for (name, sizes) in &peers.sizes {
            let workload = Workload::named(Path::new(name), None).unwrap();
            let levels = workload.levels().unwrap();
            let ours = workload.sizes(&levels);
            let ours = Sizes {
                images: ours.images,
                queries: ours.queries,
                heads: ours.heads,
                channels: ours.channels,
                points: ours.points,
            };
            assert_eq!(*sizes, ours, "{name}");
        }
        for figures in &peers.figures {
            assert!(peers.sizes.contains_key(&figures.workload), "{figures:?}");
            assert!(figures.forward.keys().eq(figures.backward.keys()));
        }
    }
}
