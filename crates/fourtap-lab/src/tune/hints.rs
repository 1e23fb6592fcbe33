//! What the machine's own sizes suggest.

use fourtap::tuning::Choice;

use super::{Engine, Gpu, Points, Subject};
use crate::machine::{self, CpuCaches};

/// Choices worth trying first; those that do not fit are left out by the search.
pub fn hints(points: &Points, subject: &Subject) -> Vec<Choice> {
    let mut hints = match &subject.engine {
        Engine::Cpu => caches(points, &machine::cpu_caches()),
        Engine::Cuda(gpu) => subject.workload.hints(points, gpu),
        Engine::External(_, gpu) => threads(points, gpu),
    };
    let mut seen = Vec::new();
    hints.retain(|hint| {
        let is_new = points.has(hint) && *hint != points.defaults && !seen.contains(hint);
        seen.push(hint.clone());
        is_new
    });
    hints
}

/// Choices that fill each cache, or half of it: for every parameter that counts bytes, the value nearest to that.
fn caches(points: &Points, caches: &CpuCaches) -> Vec<Choice> {
    let sizes = [caches.l2, caches.l1, caches.last_level];
    let sizes = sizes.into_iter().flatten();
    let targets = sizes.flat_map(|size| [size / 2, size]);
    let with = |target: u64| {
        let mut choice = points.defaults.clone();
        for (parameter, values) in &points.free {
            if parameter.name.ends_with("_bytes")
                && let Some(&nearest) = values.iter().min_by_key(|&&value| distance(value, target))
            {
                choice = choice.with(parameter.name, nearest);
            }
        }
        choice
    };
    targets.map(with).collect()
}

/// How many times apart two sizes are, in thousandths of a doubling.
fn distance(value: u32, target: u64) -> u64 {
    let ratio = f64::from(value.max(1)) / target.max(1) as f64;
    (ratio.log2().abs() * 1e3) as u64
}

/// Blocks that share the threads a multiprocessor holds, or half or a quarter of them, among one, two and four.
pub fn threads(points: &Points, gpu: &Gpu) -> Vec<Choice> {
    let all = gpu.hardware.threads;
    let shares = [1, 2, 4].into_iter().flat_map(|blocks| {
        let parts = [all, all / 2, all / 4];
        parts.map(|threads| (blocks, threads / blocks))
    });
    let with = |(blocks, threads): (u32, u32)| {
        let choice = points.defaults.clone().with("blocks", blocks);
        choice.with("threads", threads).with("block", threads)
    };
    shares.map(with).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourtap::tuning::Space;

    #[test]
    fn caches_suggest_sizes() {
        let space = Space::named("cpu-msda-forward").unwrap();
        let points = Points::new(space, &[], false, |it| Ok(it.to_string())).unwrap();
        let found = CpuCaches {
            l1: Some(48 << 10),
            l2: Some(2 << 20),
            last_level: None,
        };
        let hints = caches(&points, &found);
        let sizes: Vec<_> = hints.iter().map(|hint| hint.get("task_bytes")).collect();
        assert_eq!(sizes, [1 << 20, 2 << 20, 32 << 10, 64 << 10]);
        assert!(hints.iter().all(|hint| hint.get("tasks_each") == 4));
        assert_eq!(caches(&points, &CpuCaches::default()), []);
    }
}
