//! What this processor can do at most, on all threads of the current pool.
//!
//! Each probe compares what it computed with something computed another way, and returns an error if they differ: what
//! did not happen was not fast.

mod copy;
mod fma;
mod reading;
mod rows;
mod threads;
mod vector;

use std::time::{Duration, Instant};

use super::Probe;
use crate::error::{Error, Result};
use crate::machine;
use crate::measure::repeat;
use crate::record::{ProbeRecord, Timing};
use crate::target::Device;

use copy::copy;
use fma::fma_f32;
use reading::{dram_read, gather_128_dram, gather_128_l1, gather_128_l2, read_l1, read_l2};

/// A probe: measures for about so long.
type Measure = fn(&Device, Duration) -> Result<ProbeRecord>;

/// Every probe: its name, what it does, and itself.
const ALL: &[(&str, &str, Measure)] = &[
    (copy::NAME, copy::WHAT, copy),
    (reading::DRAM_READ.name, reading::DRAM_READ.what, dram_read),
    (reading::READ_L1.name, reading::READ_L1.what, read_l1),
    (reading::READ_L2.name, reading::READ_L2.what, read_l2),
    (
        reading::GATHER_L1.name,
        reading::GATHER_L1.what,
        gather_128_l1,
    ),
    (
        reading::GATHER_L2.name,
        reading::GATHER_L2.what,
        gather_128_l2,
    ),
    (
        reading::GATHER_DRAM.name,
        reading::GATHER_DRAM.what,
        gather_128_dram,
    ),
    (fma::NAME, fma::WHAT, fma_f32),
];

/// What can be found out about this processor.
pub fn probes() -> Vec<Probe> {
    let probe = |&(name, what, measure): &(&str, &str, Measure)| {
        Probe::new(name, "ceiling", what, move |setting| {
            Ok(vec![measure(setting.device, setting.budget)?])
        })
    };
    ALL.iter().map(probe).collect()
}

/// Caches of most processors have at least this; for those that do not tell.
const USUAL_L1: u64 = 32 << 10;
const USUAL_L2: u64 = 512 << 10;
const USUAL_LAST_LEVEL: u64 = 32 << 20;

/// How long a repetition shall take at least: long beside the tens of microseconds it takes to wake all threads.
const REPETITION: Duration = Duration::from_millis(2);

/// Bytes of memory that the last level of cache cannot hold much of, if the machine has as many to spare.
fn beyond_the_caches() -> u64 {
    let last_level = machine::last_level_cache().unwrap_or(USUAL_LAST_LEVEL);
    let wanted = last_level.saturating_mul(2).max(128 << 20);
    let spare = machine::memory_available().map_or(wanted, |available| available / 4);
    wanted.min(spare)
}

/// How many rounds of some work take [`REPETITION`], found by doubling.
fn rounds_of(mut work: impl FnMut(u64)) -> u64 {
    let mut rounds = 1;
    loop {
        let mut took = || {
            let begun = Instant::now();
            work(rounds);
            begun.elapsed()
        };
        // Three times, since any one of them may have been interrupted.
        if [took(), took(), took()].into_iter().min() >= Some(REPETITION) || rounds >= 1 << 20 {
            return rounds;
        }
        rounds *= 2;
    }
}

/// How long each repetition of some work takes.
fn timed(budget: Duration, mut work: impl FnMut()) -> Result<Timing> {
    let samples = repeat(budget, || {
        let begun = Instant::now();
        work();
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    })?;
    Ok(Timing::of(samples))
}

/// A vector of the given length, or an error if there is no memory for it.
fn allocated<T: Clone>(probe: &'static str, value: T, count: usize) -> Result<Vec<T>> {
    let mut elements = Vec::new();
    elements
        .try_reserve_exact(count)
        .map_err(|_| Error::Memory {
            what: format!("probe {probe}"),
            needed: (count * size_of::<T>()) as u64,
            available: machine::memory_available(),
        })?;
    elements.resize(count, value);
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Unit;

    pub(super) fn device() -> Device {
        Device {
            kind: "cpu".to_string(),
            model: None,
            simd: None,
            threads: Some(rayon::current_num_threads()),
            cuda: None,
        }
    }

    #[test]
    fn every_probe_of_the_caches_measures_what_it_is_named_for() {
        for (name, what, probe) in ALL {
            // Those of memory are tried with less of it, beside their code.
            if [
                copy::NAME,
                reading::DRAM_READ.name,
                reading::GATHER_DRAM.name,
            ]
            .contains(name)
            {
                continue;
            }
            let record = probe(&device(), Duration::ZERO).unwrap();
            assert_eq!((record.name.as_str(), record.what.as_str()), (*name, *what));
            assert_eq!(record.group, "ceiling");
            assert!(
                record.is_measured() && record.rate > Some(0.0),
                "{record:?}"
            );
            assert!(!record.words.is_empty(), "{name}: says what was compared");
            let expected = match *name {
                "fma-f32" => Unit::GigaflopASecond,
                _ => Unit::GigabytesASecond,
            };
            assert_eq!(record.unit, Some(expected));
        }
    }
}
