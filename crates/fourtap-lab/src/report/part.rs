//! Results of one run that were measured on one device.

use crate::operators::Operator;
use crate::record::{
    AttemptRecord, BenchRecord, CountersRecord, Origin, ProbeRecord, Run, RungRecord, TunedRecord,
};
use crate::target::Device;

/// Records of one run that belong together, each kind in the order measured.
#[derive(Debug)]
pub struct Part<'a> {
    /// What to call it among others; none if there are no others.
    pub title: Option<String>,
    /// On what.
    pub device: &'a Device,
    /// Benchmarks.
    pub benches: Vec<&'a BenchRecord>,
    /// Probes.
    pub probes: Vec<&'a ProbeRecord>,
    /// Counters.
    pub counters: Vec<&'a CountersRecord>,
    /// Rungs of the ladder.
    pub rungs: Vec<&'a RungRecord>,
    /// What tuning tried.
    pub attempts: Vec<&'a AttemptRecord>,
    /// What tuning found.
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
    let of_run = |run| {
        let devices = devices(run).into_iter();
        devices.map(move |device| (run, device))
    };
    let all: Vec<(&Run, &Device)> = runs.iter().flat_map(of_run).collect();
    let are_several = all.len() > 1;
    let title = |run: &Run, device: &Device| {
        let model = device.model.as_deref().unwrap_or("unknown processor");
        are_several.then(|| format!("{}, {model}", run.name()))
    };
    all.into_iter()
        .map(|(run, device)| Part {
            title: title(run, device),
            device,
            benches: of(&run.benches, device, |it| &it.device),
            probes: of(&run.probes, device, |it| &it.device),
            counters: of(&run.counters, device, |it| &it.device),
            rungs: of(&run.rungs, device, |it| &it.device),
            attempts: of(&run.attempts, device, |it| &it.subject.device),
            tuned: of(&run.tuned, device, |it| &it.subject.device),
        })
        .collect()
}

fn of<'a, R>(records: &'a [R], device: &Device, on: impl Fn(&R) -> &Device) -> Vec<&'a R> {
    let records = records.iter();
    records.filter(|it| is_same(on(it), device)).collect()
}

/// What records of every kind say that were measured by this program.
pub struct Measured<'a> {
    pub origin: &'a Origin,
    pub device: &'a Device,
    /// None for what is about the hardware alone.
    pub operator: Option<&'static dyn Operator>,
    pub workload: &'a str,
}

/// All records of a run that were measured by this program.
pub fn measured(run: &Run) -> Vec<Measured<'_>> {
    let mut all = vec![];
    let mut add = |origin, device, operator, workload| {
        all.push(Measured {
            origin,
            device,
            operator,
            workload,
        })
    };
    for it in &run.benches {
        add(
            &it.origin,
            &it.device,
            Some(it.operator()),
            it.workload.as_str(),
        );
    }
    for it in &run.probes {
        add(&it.origin, &it.device, None, "");
    }
    for it in &run.counters {
        add(
            &it.origin,
            &it.device,
            Some(it.problem.operator()),
            &it.workload,
        );
    }
    for it in &run.rungs {
        add(
            &it.origin,
            &it.device,
            Some(it.operator().operator()),
            &it.workload,
        );
    }
    let attempts = run.attempts.iter().map(|it| (&it.origin, &it.subject));
    let tuned = run.tuned.iter().map(|it| (&it.origin, &it.subject));
    for (origin, it) in attempts.chain(tuned) {
        add(
            origin,
            &it.device,
            Some(it.problem.operator()),
            &it.workload,
        );
    }
    for it in &run.turns {
        add(&it.origin, &it.device, None, "");
    }
    all
}

/// The devices of a run, in the order met.
pub fn devices(run: &Run) -> Vec<&Device> {
    let mut devices: Vec<&Device> = vec![];
    for Measured { device, .. } in measured(run) {
        if !devices.iter().any(|known| is_same(known, device)) {
            devices.push(device);
        }
    }
    devices
}

/// Versions of drivers and compilers may differ between the files of a run; what computes does not.
fn is_same(a: &Device, b: &Device) -> bool {
    let ordinal = |device: &Device| device.cuda.as_ref().map(|cuda| cuda.ordinal);
    let key = |device| (ordinal(device), device.threads);
    (&a.kind, &a.model, &a.simd, key(a)) == (&b.kind, &b.model, &b.simd, key(b))
}
