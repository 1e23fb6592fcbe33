//! The machine: processor, caches and memory, as far as known.

use std::fs;
use std::path::Path;

use crate::record::Reading;

pub use fourtap_admin::machine::{cpu_model, memory_available, nvidia_driver};

const PROCESSORS: &str = "/sys/devices/system/cpu";

/// Bytes of the processor's caches, as far as the system tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCaches {
    /// The first level's for data, of one core.
    pub l1: Option<u64>,
    /// The second level's, of one core or of those that share it.
    pub l2: Option<u64>,
    /// The last level's, of all cores together.
    pub last_level: Option<u64>,
}

/// What caches this processor has.
pub fn cpu_caches() -> CpuCaches {
    caches_in(Path::new(PROCESSORS))
}

/// Bytes of the largest cache, of all cores together.
pub fn last_level_cache() -> Option<u64> {
    cpu_caches().last_level
}

fn caches_in(processors: &Path) -> CpuCaches {
    let text = |file: &Path| fs::read_to_string(file).ok();
    let online = text(&processors.join("online"));
    let online = online.and_then(|list| count_of_list(&list)).unwrap_or(1);
    let mut caches = CpuCaches::default();
    let mut last = 0;
    // Few processors have five caches; where a number is missing there are no more.
    for index in 0..16 {
        let cache = processors.join(format!("cpu0/cache/index{index}"));
        let said = |name: &str| text(&cache.join(name)).map(|text| text.trim().to_string());
        let (Some(level), Some(kind)) = (said("level"), said("type")) else {
            break;
        };
        let size = said("size").and_then(|size| bytes_of_size(&size));
        let (Ok(level), Some(size), false) = (level.parse(), size, kind == "Instruction") else {
            continue;
        };
        match level {
            1 => caches.l1 = Some(size),
            2 => caches.l2 = Some(size),
            _ => {}
        }
        if level > last {
            last = level;
            let sharing = said("shared_cpu_list").and_then(|list| count_of_list(&list));
            let instances = online.div_ceil(sharing.unwrap_or(online).max(1));
            caches.last_level = size.checked_mul(instances);
        }
    }
    caches
}

/// Bytes of "48K" or "2M".
fn bytes_of_size(text: &str) -> Option<u64> {
    let units = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("", 1)];
    let parsed = units.iter().find_map(|(unit, factor)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*factor)
    });
    parsed.filter(|&bytes| bytes > 0)
}

/// How many numbers a list such as "0-3,8,10-11" has.
fn count_of_list(text: &str) -> Option<u64> {
    let count = |part: &str| -> Option<u64> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    let mut parts = text.trim().split(',').map(count);
    parts.try_fold(0u64, |sum, count| sum.checked_add(count?))
}

/// How the processor is at this moment.
pub fn reading() -> Reading {
    Reading {
        clock_mhz: clock_mhz(),
        load: load(),
        ..Reading::default()
    }
}

/// The mean clock of the cores.
pub fn clock_mhz() -> Option<u32> {
    mean_clock(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn mean_clock(cpuinfo: &str) -> Option<u32> {
    let clocks: Vec<f64> = cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(key, _)| key.trim() == "cpu MHz")
        .filter_map(|(_, clock)| clock.trim().parse().ok())
        .collect();
    (!clocks.is_empty()).then(|| (clocks.iter().sum::<f64>() / clocks.len() as f64).round() as u32)
}

/// Processes that wanted to run, on average over the last minute.
pub fn load() -> Option<f64> {
    minute_load(&fs::read_to_string("/proc/loadavg").ok()?)
}

fn minute_load(loadavg: &str) -> Option<f64> {
    let load: f64 = loadavg.split_whitespace().next()?.parse().ok()?;
    load.is_finite().then_some(load)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (level, type, size, shared_cpu_list) of each cache.
    type Cache = (&'static str, &'static str, &'static str, &'static str);

    fn caches(online: &str, caches: &[Cache]) -> CpuCaches {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("online"), online).unwrap();
        for (index, (level, kind, size, shared)) in caches.iter().enumerate() {
            let cache = folder.path().join(format!("cpu0/cache/index{index}"));
            fs::create_dir_all(&cache).unwrap();
            for (name, text) in [
                ("level", level),
                ("type", kind),
                ("size", size),
                ("shared_cpu_list", shared),
            ] {
                fs::write(cache.join(name), format!("{text}\n")).unwrap();
            }
        }
        caches_in(folder.path())
    }

    #[test]
    fn reads_the_caches_of_a_processor() {
        let found = caches(
            "0-15\n",
            &[
                ("1", "Data", "32K", "0,8"),
                ("1", "Instruction", "64K", "0,8"),
                ("2", "Unified", "1024K", "0,8"),
                ("3", "Unified", "32M", "0-3,8-11"),
            ],
        );
        let expected = CpuCaches {
            l1: Some(32 << 10),
            l2: Some(1 << 20),
            // Two halves of the processor have one each.
            last_level: Some(64 << 20),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn the_second_level_can_be_the_last() {
        let found = caches(
            "0",
            &[("1", "Data", "32K", "0"), ("2", "Unified", "512K", "0")],
        );
        assert_eq!(found.last_level, Some(512 << 10));
    }

    #[test]
    fn what_the_system_does_not_tell_is_absent() {
        assert_eq!(caches("", &[]), CpuCaches::default());
        let strange = caches(
            "0-",
            &[("one", "Data", "32K", "x"), ("2", "Unified", "?", "0")],
        );
        assert_eq!(strange, CpuCaches::default());
        assert_eq!(caches("0", &[("1", "Data", "0K", "0")]).l1, None);
        assert_eq!(mean_clock("model name : A\n"), None);
        assert_eq!(minute_load(""), None);
    }

    #[test]
    fn reads_the_clock_and_the_load() {
        let cpuinfo =
            "processor\t: 0\ncpu MHz\t\t: 2100.000\nprocessor\t: 1\ncpu MHz\t\t: 3300.500\n";
        assert_eq!(mean_clock(cpuinfo), Some(2700));
        assert_eq!(minute_load("0.52 0.58 0.59 1/389 12345\n"), Some(0.52));
    }

    #[test]
    fn counts_lists_of_processors() {
        let counts = [
            "0",
            "0-3",
            "0-3,8,10-11",
            "",
            "3-1",
            "0-18446744073709551615",
        ]
        .map(count_of_list);
        assert_eq!(counts, [Some(1), Some(4), Some(7), None, None, None]);
    }
}
