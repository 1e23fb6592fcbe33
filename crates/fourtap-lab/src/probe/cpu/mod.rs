//! What this processor can do at most, on all threads of the current pool.
//!
//! Each probe compares what it computed with something computed another way, and returns an error if they differ: what
//! did not happen was not fast.

mod copy;
mod fma;
mod rows;
mod vector;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fourtap::cpu::Simd;

use self::copy::Copying;
use self::fma::Counting;
use self::rows::{Order, Rows};
use super::Probe;
use crate::error::{Error, Result};
use crate::machine;
use crate::measure::repeat;
use crate::record::{ProbeRecord, Timing, Unit};

/// What can be found out about this processor.
pub fn probes() -> Vec<Probe> {
    let in_turn = |bytes| Rows::new(bytes, Order::InTurn);
    let random = |bytes| Rows::new(bytes, Order::Random);
    let counting = |_| Ok(Counting::new(Simd::best()));
    vec![
        probe(
            "copy",
            "copy memory, bytes read and written",
            memory,
            Copying::new,
        ),
        probe("dram-read", "read memory in order", memory, in_turn),
        probe(
            "read-l2",
            "read a core's L2 cache in order",
            half_of_l2,
            in_turn,
        ),
        probe(
            "gather-128-l1",
            "random 128-byte rows of L1",
            half_of_l1,
            random,
        ),
        probe(
            "gather-128-l2",
            "random 128-byte rows of L2",
            half_of_l2,
            random,
        ),
        probe(
            "gather-128-dram",
            "random 128-byte rows of memory",
            memory,
            random,
        ),
        probe(
            "fma-f32",
            "multiply-adds of f32 in registers",
            || 0,
            counting,
        ),
    ]
}

/// What one thread does: rounds that are all alike, on memory of its own.
trait Work: Send {
    /// What a round counts, for the whole kind of work.
    const UNIT: Unit;
    /// What is compared.
    const COMPARED: &str;

    /// So many rounds.
    fn run(&mut self, rounds: u64);

    /// Compares what all rounds together left with what it must be.
    fn verify(&mut self) -> Result<()>;

    /// Bytes or operations of a round.
    fn amount(&self) -> u64;
}

/// A probe of work that is made for each thread, of so many bytes.
fn probe<W: Work + 'static>(
    name: &'static str,
    what: &'static str,
    bytes: fn() -> u64,
    work: fn(u64) -> Result<W>,
) -> Probe {
    Probe::new(name, what, move |setting, record| {
        let bytes = bytes();
        let record = measured(record, setting.budget, || work(bytes))?;
        Ok(match bytes {
            0 => record,
            bytes => record.with("buffer_bytes", bytes),
        })
    })
}

/// The record, with how fast all threads together were.
fn measured<W: Work>(
    record: ProbeRecord,
    budget: Duration,
    make: impl Fn() -> Result<W> + Sync,
) -> Result<ProbeRecord> {
    // Made by the thread that will work on it, so that its memory lies near.
    let works = rayon::broadcast(|_| make().map(Mutex::new));
    let works = works.into_iter().collect::<Result<Vec<_>>>()?;
    // Nobody else ever waits for it; the lock is how the compiler knows.
    let work = |thread: usize| works[thread].lock().unwrap_or_else(PoisonError::into_inner);
    let run = |rounds: u64| {
        let begun = Instant::now();
        rayon::broadcast(|context| work(context.index()).run(rounds));
        begun.elapsed()
    };

    let rounds = rounds_of(run);
    let samples = repeat(budget, || Ok(run(rounds).as_secs_f64() * 1e3))?;
    let verified = rayon::broadcast(|context| work(context.index()).verify());
    verified.into_iter().collect::<Result<()>>()?;
    let amount = (0..works.len())
        .map(|thread| work(thread).amount())
        .sum::<u64>();
    Ok(record
        .measured(W::UNIT, rounds * amount, Timing::of(samples))
        .verified(W::COMPARED)
        .with("threads", works.len())
        .with("simd", Simd::best().name()))
}

/// How long a repetition shall take at least: long beside the tens of microseconds it takes to wake all threads.
const REPETITION: Duration = Duration::from_millis(2);

/// How many rounds of some work take [`REPETITION`], found by doubling.
fn rounds_of(run: impl Fn(u64) -> Duration) -> u64 {
    let mut rounds = 1;
    // Three times, since any one of them may have been interrupted.
    while rounds < 1 << 20 && (0..3).map(|_| run(rounds)).min() < Some(REPETITION) {
        rounds *= 2;
    }
    rounds
}

/// Caches of most processors have at least this; for those that do not tell.
const USUAL_L1: u64 = 32 << 10;
const USUAL_L2: u64 = 512 << 10;
const USUAL_LAST_LEVEL: u64 = 32 << 20;

fn half_of_l1() -> u64 {
    machine::cpu_caches().l1.unwrap_or(USUAL_L1) / 2
}

fn half_of_l2() -> u64 {
    machine::cpu_caches().l2.unwrap_or(USUAL_L2) / 2
}

/// A thread's share of memory that the last level of cache cannot hold much of, if the machine has as much to spare.
fn memory() -> u64 {
    let last_level = machine::last_level_cache().unwrap_or(USUAL_LAST_LEVEL);
    let wanted = last_level.saturating_mul(2).max(128 << 20);
    let spare = machine::memory_available().map_or(wanted, |available| available / 4);
    wanted.min(spare) / rayon::current_num_threads() as u64
}

/// A vector of the given length, or an error if there is no memory for it.
fn allocated<T: Clone>(value: T, count: usize) -> Result<Vec<T>> {
    let mut elements = Vec::new();
    elements
        .try_reserve_exact(count)
        .map_err(|_| Error::Memory {
            what: "the buffers of a probe".to_string(),
            needed: (count * size_of::<T>()) as u64,
            available: machine::memory_available(),
        })?;
    elements.resize(count, value);
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Outcome;
    use crate::target::Device;

    fn found<W: Work>(make: impl Fn() -> Result<W> + Sync) -> ProbeRecord {
        let device = Device::of_cpu(Simd::best());
        let blank = ProbeRecord::new("probe", "ceiling", "", &device, Outcome::Failed);
        measured(blank, Duration::ZERO, make).unwrap()
    }

    #[test]
    fn every_kind_of_work_is_measured_and_verified() {
        for record in [
            found(|| Copying::new(1 << 20)),
            found(|| Rows::new(1 << 14, Order::InTurn)),
            found(|| Rows::new(1 << 20, Order::Random)),
            found(|| Ok(Counting::new(Simd::best()))),
        ] {
            assert!(
                record.is_measured() && record.rate > Some(0.0),
                "{record:?}"
            );
            assert!(!record.words.is_empty(), "{record:?}");
            assert!(record.amount > Some(0), "{record:?}");
        }
    }
}
