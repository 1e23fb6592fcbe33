//! Properties of this machine, if the system reports them.

use std::fs;

use fourtap::cpu::Cpu;

/// The processor's name.
pub fn cpu_model() -> Option<String> {
    Cpu::model().map(str::to_string)
}

/// The version of the NVIDIA driver.
pub fn nvidia_driver() -> Option<String> {
    let text = fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_string())
}

/// Bytes of memory the machine has.
pub fn memory_total() -> Option<u64> {
    bounded(meminfo("MemTotal:"))
}

/// Bytes of memory available without swapping.
pub fn memory_available() -> Option<u64> {
    bounded(meminfo("MemAvailable:"))
}

fn meminfo(key: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// A container may have less than its machine.
fn bounded(bytes: Option<u64>) -> Option<u64> {
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse().ok());
    [bytes, limit].into_iter().flatten().min()
}
