//! What this processor can do at most.
use crate::error::Result;
use crate::record::{ProbeRecord, Timing};
use crate::target::Device;
use std::time::Duration;
pub fn copy(device: &Device, _: Duration) -> Result<ProbeRecord> {
    Ok(ProbeRecord::ceiling(
        "copy",
        "",
        device,
        10_000_000_000,
        Timing::of(vec![1000.0]),
    ))
}
pub fn read_dram(device: &Device, _: Duration) -> Result<ProbeRecord> {
    Ok(ProbeRecord::ceiling(
        "dram-read",
        "",
        device,
        10_000_000_000,
        Timing::of(vec![1000.0]),
    ))
}
pub fn gather_128_l1(device: &Device, _: Duration) -> Result<ProbeRecord> {
    Ok(ProbeRecord::ceiling(
        "gather-128-l1",
        "",
        device,
        100_000_000_000,
        Timing::of(vec![1000.0]),
    ))
}
pub fn fma_f32(device: &Device, _: Duration) -> Result<ProbeRecord> {
    Ok(ProbeRecord::ceiling(
        "fma-f32",
        "",
        device,
        100_000_000_000,
        Timing::of(vec![1000.0]),
    ))
}

/// What can be found out about this processor.
pub fn probes() -> Vec<super::Probe> {
    Vec::new()
}
