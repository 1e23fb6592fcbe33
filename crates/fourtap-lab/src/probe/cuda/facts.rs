//! Device.

use serde_json::Value;

use super::cluster;
use super::device::{ProbeDevice, Subject};
use crate::cuda::Grid;
use crate::error::Result;
use crate::record::{Outcome, ProbeRecord};
use crate::target::dotted;

/// What it is about.
pub fn subject() -> Subject {
    Subject::new("device", "device", "what the driver and the sensors report")
}

/// What they say.
pub fn read(gpu: &ProbeDevice<'_>, subject: &Subject) -> Result<ProbeRecord> {
    let facts = gpu.facts();
    let (clock, memory_clock) = (facts.core_clock_khz, facts.memory_clock_khz);
    let sensors = gpu.stopwatch.reading();
    let named: [(&str, Value); 23] = [
        ("name", facts.name.clone().into()),
        ("pci_bus_id", facts.pci_bus_id.clone().into()),
        (
            "compute_capability",
            dotted(facts.compute_capability).into(),
        ),
        ("multiprocessors", facts.multiprocessors.into()),
        ("memory_bytes", facts.memory_bytes.into()),
        ("memory_bus_bits", facts.memory_bus_bits.into()),
        ("memory_clock_khz", memory_clock.into()),
        ("clock_khz", clock.into()),
        ("clock_mhz_now", sensors.clock_mhz.into()),
        ("memory_clock_mhz_now", sensors.memory_clock_mhz.into()),
        ("temperature_c", sensors.temperature_c.into()),
        ("power_w", sensors.power_w.into()),
        ("ecc", facts.has_ecc.into()),
        ("l2_bytes", facts.l2_bytes.into()),
        ("l2_persisting_bytes", facts.persisting_l2_bytes.into()),
        (
            "shared_bytes_a_multiprocessor",
            facts.shared_bytes_per_multiprocessor.into(),
        ),
        ("shared_bytes_a_block", facts.shared_bytes_per_block.into()),
        (
            "shared_bytes_a_block_on_request",
            facts.shared_bytes_per_block_opt_in.into(),
        ),
        (
            "shared_bytes_reserved_a_block",
            facts.shared_bytes_reserved_per_block.into(),
        ),
        (
            "registers_a_multiprocessor",
            facts.registers_per_multiprocessor.into(),
        ),
        (
            "threads_a_multiprocessor",
            facts.threads_per_multiprocessor.into(),
        ),
        (
            "blocks_a_multiprocessor",
            facts.blocks_per_multiprocessor.into(),
        ),
        ("tensor_maps", facts.has_tensor_maps.into()),
    ];
    let words = "as reported by the driver and the sensors";
    let mut record = subject
        .record(gpu, Outcome::Works, words)
        .with("clusters", facts.has_clusters);
    for (name, value) in named {
        // What nobody says is left out.
        if !value.is_null() {
            record = record.with(name, value);
        }
    }
    for (size, count) in clusters(gpu)? {
        record = record.with(&format!("clusters_of_{size}_at_once"), count);
    }
    Ok(record)
}

/// How many clusters of each size, of blocks of 256 threads and 1 KiB, the device runs at once.
fn clusters(gpu: &ProbeDevice<'_>) -> Result<Vec<(u32, u32)>> {
    if cluster::missing(gpu).is_some() {
        return Ok(Vec::new());
    }
    let kernel = cluster::source().load(gpu.cuda())?;
    let mut counts = Vec::new();
    for size in cluster::SIZES {
        let grid = Grid {
            blocks: size,
            threads: 256,
            shared_bytes: 1 << 10,
            cluster: Some(size),
        };
        counts.push((size, kernel.clusters(gpu.cuda(), grid)?));
    }
    Ok(counts)
}
