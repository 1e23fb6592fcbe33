//! What the machine's own sizes suggest.

use fourtap::tuning::Choice;

use super::Points;
use crate::machine::CpuCaches;

/// Choices that fill each cache, or half of it: for every parameter that counts bytes, the value nearest to that.
pub fn hints(points: &Points, caches: &CpuCaches) -> Vec<Choice> {
    let sizes = [caches.l2, caches.l1, caches.last_level];
    let sizes = sizes.into_iter().flatten();
    let targets = sizes.flat_map(|size| [size / 2, size]);
    let mut hints: Vec<Choice> = Vec::new();
    for target in targets {
        let mut choice = points.defaults.clone();
        for (parameter, values) in &points.free {
            if parameter.name.ends_with("_bytes")
                && let Some(&nearest) = values.iter().min_by_key(|&&value| distance(value, target))
            {
                choice = choice.with(parameter.name, nearest);
            }
        }
        if !hints.contains(&choice) {
            hints.push(choice);
        }
    }
    hints
}

/// How many times apart two sizes are, in thousandths of a doubling.
fn distance(value: u32, target: u64) -> u64 {
    let ratio = f64::from(value.max(1)) / target.max(1) as f64;
    (ratio.log2().abs() * 1e3) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourtap::tuning::Space;

    #[test]
    fn caches_suggest_sizes() {
        let space = Space::named("cpu-msda-forward").unwrap();
        let points = Points::new(space, &[], false, |_| Ok(())).unwrap();
        let caches = CpuCaches {
            l1: Some(48 << 10),
            l2: Some(2 << 20),
            last_level: None,
        };
        let hints = hints(&points, &caches);
        let sizes: Vec<_> = hints.iter().map(|hint| hint.get("task_bytes")).collect();
        assert_eq!(sizes, [1 << 20, 2 << 20, 32 << 10, 64 << 10]);
        assert!(hints.iter().all(|hint| hint.get("tasks_each") == 4));
        assert_eq!(super::hints(&points, &CpuCaches::default()), []);
    }
}
