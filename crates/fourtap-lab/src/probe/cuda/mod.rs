//! What a CUDA device can do at most.

mod arithmetic;
mod atomic;
mod experiment;
mod gather;
mod matrix;
mod memory;
mod pattern;
#[cfg(test)]
mod tests;
mod tile;

use fourtap::cuda::driver::TensorElement;

use self::experiment::{Experiment, launch};
use self::gather::{distributed, gather, gather_shared};
use self::tile::tiles;
use super::Probe;
use crate::error::Error;

/// Every ceiling, by its name.
fn ceilings() -> Vec<(&'static str, Experiment)> {
    vec![
        ("copy", memory::copy()),
        ("dram-read", memory::dram_read()),
        ("l2-read", memory::l2_read()),
        ("gather-64-l1", gather(64, 64 << 10, "L1")),
        ("gather-128-l1", gather(128, 64 << 10, "L1")),
        ("gather-64-shared", gather_shared(64, 64 << 10)),
        ("gather-64-1mb", gather(64, 1_250_048, "1.25 MB")),
        ("gather-64-10mb", gather(64, 10_000_000, "10 MB")),
        ("gather-64-40mb", gather(64, 40_000_000, "40 MB")),
        ("dsmem-read-2", distributed(2)),
        ("dsmem-read-8", distributed(8)),
        ("tile-tma-l2", tiles(TensorElement::F16)),
        ("tile-tma-l2-f32", tiles(TensorElement::F32)),
        ("atomic-v4f32-spread", atomic::spread()),
        ("atomic-v4f32-contended", atomic::contended()),
        ("fma-f32", arithmetic::fma()),
        ("tensor-mma-f16", matrix::mma()),
        ("tensor-wgmma-f16", matrix::wgmma()),
        ("launch-latency-graph", launch()),
    ]
}

/// Everything that can be found out about a CUDA device.
pub fn probes() -> Vec<Probe> {
    let probe = |(name, experiment): (_, Experiment)| {
        Probe::new(name, experiment.what.clone(), move |setting, record| {
            let Some(stopwatch) = setting.stopwatch else {
                return Err(Error::Misplaced {
                    option: "--device",
                    expected: "a CUDA device",
                    found: "the CPU".to_string(),
                });
            };
            experiment.measure(record, stopwatch, setting.budget)
        })
    };
    ceilings().into_iter().map(probe).collect()
}
