//! What a CUDA device can do at most, and what of it works.

mod atomic;
mod cluster;
mod copy;
mod dsmem;
mod facts;
mod fma;
mod gather;
mod kernel;
mod latency;
mod matrix;
mod pattern;
mod read;
mod refusals;
mod slice;
mod stand;
mod sums;
#[cfg(test)]
mod tests;
mod tile;
mod tma;

use std::time::Duration;

use self::stand::{Stand, Subject};
use super::Probe;
use crate::cuda::Stopwatch;
use crate::error::Result;
use crate::record::ProbeRecord;
use crate::target::Device;

/// Everything that can be found out about a CUDA device.
pub fn probes() -> Vec<Probe> {
    let mut probes = vec![
        facts::subject().probe(facts::read),
        copy::subject().probe(copy::measure),
        read::dram_subject().probe(read::measure_dram),
        read::l2_subject().probe(read::measure_l2),
    ];
    for gather in gather::ALL {
        let subject = gather.subject();
        probes.push(subject.probe(move |stand, subject| gather.measure(stand, subject)));
    }
    for blocks in cluster::SIZES {
        let subject = dsmem::subject(blocks);
        probes.push(subject.probe(move |stand, subject| dsmem::measure(stand, subject, blocks)));
    }
    probes.extend(atomic::probes());
    for kind in fma::Kind::ALL {
        let subject = kind.subject();
        probes.push(subject.probe(move |stand, subject| kind.measure(stand, subject)));
    }
    for kind in matrix::Kind::ALL {
        let subject = kind.subject();
        probes.push(subject.probe(move |stand, subject| kind.measure(stand, subject)));
    }
    probes.push(latency::stream_subject().probe(latency::measure_stream));
    probes.push(latency::graph_subject().probe(latency::measure_graph));
    probes.extend(tma::probes());
    probes.push(refusals::probe());
    probes.extend(cluster::probes());
    probes.extend(tile::probes());
    probes.extend(slice::probes());
    probes
}

/// How fast device memory is copied; bytes read and bytes written both count.
pub fn copy(stopwatch: &Stopwatch, device: &Device, budget: Duration) -> Result<ProbeRecord> {
    ceiling(stopwatch, device, budget, copy::subject(), copy::measure)
}

/// How fast device memory is read.
pub fn dram_read(stopwatch: &Stopwatch, device: &Device, budget: Duration) -> Result<ProbeRecord> {
    let subject = read::dram_subject();
    ceiling(stopwatch, device, budget, subject, read::measure_dram)
}

/// How fast the second-level cache is read.
pub fn l2_read(stopwatch: &Stopwatch, device: &Device, budget: Duration) -> Result<ProbeRecord> {
    let subject = read::l2_subject();
    ceiling(stopwatch, device, budget, subject, read::measure_l2)
}

/// How fast random 64-byte segments are read from the first-level cache.
pub fn gather_64_l1(
    stopwatch: &Stopwatch,
    device: &Device,
    budget: Duration,
) -> Result<ProbeRecord> {
    let gather = gather::L1_64;
    ceiling(
        stopwatch,
        device,
        budget,
        gather.subject(),
        |stand, subject| gather.measure(stand, subject),
    )
}

/// How fast random 128-byte segments are read from the first-level cache.
pub fn gather_128_l1(
    stopwatch: &Stopwatch,
    device: &Device,
    budget: Duration,
) -> Result<ProbeRecord> {
    let gather = gather::L1_128;
    ceiling(
        stopwatch,
        device,
        budget,
        gather.subject(),
        |stand, subject| gather.measure(stand, subject),
    )
}

/// How fast numbers of 32 bits are multiplied and added.
pub fn fma_f32(stopwatch: &Stopwatch, device: &Device, budget: Duration) -> Result<ProbeRecord> {
    let kind = fma::Kind::F32;
    ceiling(
        stopwatch,
        device,
        budget,
        kind.subject(),
        |stand, subject| kind.measure(stand, subject),
    )
}

fn ceiling(
    stopwatch: &Stopwatch,
    device: &Device,
    budget: Duration,
    subject: Subject,
    measure: impl Fn(&Stand<'_>, &Subject) -> Result<ProbeRecord>,
) -> Result<ProbeRecord> {
    let stand = Stand {
        stopwatch,
        device,
        budget,
    };
    measure(&stand, &subject)
}
