//! What a CUDA device can do at most, and what of it works.

mod atomic;
mod cluster;
mod copy;
mod device;
mod dsmem;
mod facts;
mod fma;
mod gather;
mod latency;
mod matrix;
mod pattern;
mod read;
mod refusals;
mod slice;
mod sums;
#[cfg(test)]
mod tests;
mod tile;
mod tma;

use super::Probe;

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
        probes.push(subject.probe(move |gpu, subject| gather.measure(gpu, subject)));
    }
    for blocks in cluster::SIZES {
        let subject = dsmem::subject(blocks);
        probes.push(subject.probe(move |gpu, subject| dsmem::measure(gpu, subject, blocks)));
    }
    probes.extend(atomic::probes());
    for kind in fma::Kind::ALL {
        let subject = kind.subject();
        probes.push(subject.probe(move |gpu, subject| kind.measure(gpu, subject)));
    }
    for kind in matrix::Kind::ALL {
        let subject = kind.subject();
        probes.push(subject.probe(move |gpu, subject| kind.measure(gpu, subject)));
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
