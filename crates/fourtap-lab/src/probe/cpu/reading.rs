//! How fast caches and memory are read: rows in turn, and rows in no order as the operator reads them.

use std::time::Duration;

use fourtap::cpu::Simd;

use super::rows::{Order, ROW_BYTES, Rows, rows_of};
use super::threads::Parts;
use super::{USUAL_L1, USUAL_L2, beyond_the_caches, rounds_of, timed};
use crate::error::{Error, Result};
use crate::machine;
use crate::record::{ProbeRecord, Timing};
use crate::target::Device;

/// What is read, and how.
pub struct Reading {
    /// The probe's name.
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    order: Order,
}

/// The first-level cache, in turn.
pub const READ_L1: Reading = Reading {
    name: "read-l1",
    what: "read a buffer that a core's first-level cache holds, repeatedly",
    order: Order::InTurn,
};
/// The L2 cache, in turn.
pub const READ_L2: Reading = Reading {
    name: "read-l2",
    what: "read a buffer that a core's L2 cache holds, repeatedly",
    order: Order::InTurn,
};
/// The first-level cache, in no order.
pub const GATHER_L1: Reading = Reading {
    name: "gather-128-l1",
    what: "read random 128-byte rows that a core's first-level cache holds",
    order: Order::Random,
};
/// The L2 cache, in no order.
pub const GATHER_L2: Reading = Reading {
    name: "gather-128-l2",
    what: "read random 128-byte rows that a core's L2 cache holds",
    order: Order::Random,
};
/// Memory, in turn.
pub const DRAM_READ: Reading = Reading {
    name: "dram-read",
    what: "read memory beyond the last-level cache sequentially",
    order: Order::InTurn,
};
/// Memory, in no order.
pub const GATHER_DRAM: Reading = Reading {
    name: "gather-128-dram",
    what: "read random 128-byte rows of memory beyond the last-level cache",
    order: Order::Random,
};

/// Rows of memory that a thread reads in one repetition: the next each time, so that every one was last touched a whole
/// turn ago.
const DRAM_ROWS: usize = 1 << 15;

/// Reads the first-level cache of each core.
pub fn read_l1(device: &Device, budget: Duration) -> Result<ProbeRecord> {
    from_cache(&READ_L1, half_of_l1(), device, budget)
}

/// Reads the L2 cache of each core.
pub fn read_l2(device: &Device, budget: Duration) -> Result<ProbeRecord> {
    from_cache(&READ_L2, half_of_l2(), device, budget)
}

/// Gathers from the first-level cache of each core.
pub fn gather_128_l1(device: &Device, budget: Duration) -> Result<ProbeRecord> {
    from_cache(&GATHER_L1, half_of_l1(), device, budget)
}

/// Gathers from the L2 cache of each core.
pub fn gather_128_l2(device: &Device, budget: Duration) -> Result<ProbeRecord> {
    from_cache(&GATHER_L2, half_of_l2(), device, budget)
}

/// Reads memory.
pub fn dram_read(device: &Device, budget: Duration) -> Result<ProbeRecord> {
    from_memory(&DRAM_READ, beyond_the_caches(), device, budget)
}

/// Gathers from memory.
pub fn gather_128_dram(device: &Device, budget: Duration) -> Result<ProbeRecord> {
    from_memory(&GATHER_DRAM, beyond_the_caches(), device, budget)
}

fn half_of_l1() -> u64 {
    machine::cpu_caches().l1.unwrap_or(USUAL_L1) / 2
}

fn half_of_l2() -> u64 {
    machine::cpu_caches().l2.unwrap_or(USUAL_L2) / 2
}

/// Of so many bytes, each thread.
fn from_cache(
    reading: &Reading,
    bytes: u64,
    device: &Device,
    budget: Duration,
) -> Result<ProbeRecord> {
    let parts = Parts::new(|| Rows::new(reading.name, bytes, reading.order))?;
    let simd = Simd::best();
    let rows = rows_of(bytes) as u64;
    let turns = |turns| parts.each(|part| part.add_up(simd, turns * rows));
    let rounds = rounds_of(turns);
    let timing = timed(budget, || turns(rounds))?;
    record(reading, &parts, bytes, device, (rounds * rows, timing))
}

/// Of so many bytes, all threads' together.
fn from_memory(
    reading: &Reading,
    bytes: u64,
    device: &Device,
    budget: Duration,
) -> Result<ProbeRecord> {
    let bytes = bytes / rayon::current_num_threads() as u64;
    let parts = Parts::new(|| Rows::new(reading.name, bytes, reading.order))?;
    let simd = Simd::best();
    let rows = DRAM_ROWS.min(rows_of(bytes)) as u64;
    let timing = timed(budget, || parts.each(|part| part.add_up(simd, rows)))?;
    // The sums that are compared are of whole turns.
    parts.each(|part| part.end_turn(simd));
    record(reading, &parts, bytes, device, (rows, timing))
}

/// The record of a probe that read so many rows per thread in such a time, of so many bytes each, if its sums are right.
fn record(
    reading: &Reading,
    parts: &Parts<Rows>,
    bytes: u64,
    device: &Device,
    (rows, timing): (u64, Timing),
) -> Result<ProbeRecord> {
    if let Some((expected, found)) = parts.find(Rows::wrong) {
        return Err(Error::Probe {
            probe: reading.name.to_string(),
            expected,
            found,
        });
    }
    let moved = rows * (parts.count() * ROW_BYTES) as u64;
    Ok(
        ProbeRecord::ceiling(reading.name, reading.what, device, moved, timing)
            .verified("the sums of all 32 channels over all rows read")
            .with("buffer_bytes", rows_of(bytes) * ROW_BYTES)
            .with("threads", parts.count())
            .with("simd", Simd::best().name()),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::device;
    use super::*;

    #[test]
    fn memory_is_read_in_slices() {
        for reading in [&DRAM_READ, &GATHER_DRAM] {
            let record = from_memory(reading, 16 << 20, &device(), Duration::ZERO).unwrap();
            let threads = rayon::current_num_threads();
            let rows = DRAM_ROWS.min(rows_of((16 << 20) / threads as u64));
            assert_eq!(record.amount, Some((threads * rows * 128) as u64));
        }
    }
}
