//! Results of one run that were measured on one device.

use crate::operators::Operator;
use crate::record::{
    AttemptRecord, BenchRecord, CountersRecord, ProbeRecord, Run, RungRecord, TunedRecord,
};
use crate::target::Device;

/// Records of one run that belong together.
#[derive(Debug)]
pub struct Part<'a> {
    /// What to call it among others; none if there are no others.
    pub title: Option<String>,
    /// What to put before names of files.
    pub prefix: String,
    /// On what.
    pub device: &'a Device,
    /// Benchmarks, in the order measured.
    pub benches: Vec<&'a BenchRecord>,
    /// Probes, likewise.
    pub probes: Vec<&'a ProbeRecord>,
    /// Counters, likewise.
    pub counters: Vec<&'a CountersRecord>,
    /// Rungs of the ladder, likewise.
    pub rungs: Vec<&'a RungRecord>,
    /// What tuning tried, likewise.
    pub attempts: Vec<&'a AttemptRecord>,
    /// What tuning found, likewise.
    pub tuned: Vec<&'a TunedRecord>,
}

impl<'a> Part<'a> {
    /// Benchmarks of an operator, in the order measured.
    pub fn of(&self, operator: &'static dyn Operator) -> Vec<&'a BenchRecord> {
        let benches = self.benches.iter().copied();
        benches.filter(|it| it.operator() == operator).collect()
    }
}

/// What belongs together, run by run.
pub fn parts(runs: &[Run]) -> Vec<Part<'_>> {
    let mut parts = vec![];
    for run in runs {
        for device in devices(run) {
            let same = |other: &Device| is_same(other, device);
            parts.push(Part {
                title: None,
                prefix: String::new(),
                device,
                benches: run.benches.iter().filter(|it| same(&it.device)).collect(),
                probes: run.probes.iter().filter(|it| same(&it.device)).collect(),
                counters: run.counters.iter().filter(|it| same(&it.device)).collect(),
                rungs: run.rungs.iter().filter(|it| same(&it.device)).collect(),
                attempts: run
                    .attempts
                    .iter()
                    .filter(|it| same(&it.subject.device))
                    .collect(),
                tuned: run
                    .tuned
                    .iter()
                    .filter(|it| same(&it.subject.device))
                    .collect(),
            });
        }
    }
    if parts.len() < 2 {
        return parts;
    }
    let names = runs
        .iter()
        .flat_map(|run| devices(run).into_iter().map(|_| run.name()));
    for (index, (part, name)) in parts.iter_mut().zip(names).enumerate() {
        let model = part.device.model.as_deref().unwrap_or("unknown processor");
        part.title = Some(format!("{name}, {model}"));
        part.prefix = format!("{}-", index + 1);
    }
    parts
}

/// The devices of a run, in the order met.
pub fn devices(run: &Run) -> Vec<&Device> {
    let mut devices: Vec<&Device> = vec![];
    let all = run.benches.iter().map(|it| &it.device);
    let all = all.chain(run.probes.iter().map(|it| &it.device));
    let all = all.chain(run.counters.iter().map(|it| &it.device));
    let all = all.chain(run.rungs.iter().map(|it| &it.device));
    let all = all.chain(run.attempts.iter().map(|it| &it.subject.device));
    let all = all.chain(run.turns.iter().map(|it| &it.device));
    for device in all.chain(run.tuned.iter().map(|it| &it.subject.device)) {
        if !devices.iter().any(|known| is_same(known, device)) {
            devices.push(device);
        }
    }
    devices
}

/// Versions of drivers and compilers may differ between the files of a run; what computes does not.
fn is_same(a: &Device, b: &Device) -> bool {
    let key = |device: &Device| {
        (
            device.kind.clone(),
            device.model.clone(),
            device.simd.clone(),
            device.threads,
            device.cuda.as_ref().map(|cuda| cuda.ordinal),
        )
    };
    key(a) == key(b)
}
