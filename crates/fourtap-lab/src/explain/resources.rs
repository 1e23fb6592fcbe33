//! What a kernel takes: from the compiler if there is one, else from the committed table.

use fourtap::cuda::jit::{Architecture, Nvrtc, Resources};
use fourtap::cuda::{KERNEL_TABLE, SpecialisedKernel};
use serde::Serialize;

/// Registers, stack and shared memory of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelResources {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of stack per thread, where spilled registers go.
    pub stack_bytes: u32,
    /// Bytes of shared memory per block.
    pub shared_bytes: u32,
    /// Who says so.
    pub source: String,
}

impl KernelResources {
    /// By a kernel on a device of this compute capability, if anybody knows.
    pub fn by(kernel: &dyn SpecialisedKernel, (major, minor): (u32, u32)) -> Option<Self> {
        compiled(kernel, (major, minor)).or_else(|| {
            let architecture = Architecture::of_device(major, minor).to_string();
            listed(&kernel.to_string(), &architecture)
        })
    }
}

fn compiled(kernel: &dyn SpecialisedKernel, (major, minor): (u32, u32)) -> Option<KernelResources> {
    let nvrtc = Nvrtc::get().ok()?;
    let program = kernel.program(nvrtc.best_for(major, minor).ok()?);
    let code = nvrtc.compile(&program).ok()?.code;
    let kernels = Resources::of(&code).ok()?;
    let taken = kernels.iter().find(|taken| taken.name == kernel.entry())?;
    Some(KernelResources {
        registers: taken.registers,
        stack_bytes: taken.stack_bytes,
        shared_bytes: u32::try_from(taken.static_shared_bytes).ok()?,
        source: format!("NVRTC {}", nvrtc.version()),
    })
}

fn listed(kernel: &str, architecture: &str) -> Option<KernelResources> {
    let words = KERNEL_TABLE
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut rows = words.filter_map(|words| <[&str; 6]>::try_from(words).ok());
    let row = rows.find(|row| row[0] == kernel && row[1] == architecture)?;
    let [_, _, _fingerprint, registers, stack_bytes, shared_bytes] = row;
    Some(KernelResources {
        registers: registers.parse().ok()?,
        stack_bytes: stack_bytes.parse().ok()?,
        shared_bytes: shared_bytes.parse().ok()?,
        source: "kernels/table.txt".to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let taken = listed("msda-forward-channel-f16", "sm_90a").unwrap();
        assert!(taken.registers > 0 && taken.registers < 256);
        assert_eq!(listed("msda-forward-channel-f16", "sm_75"), None);
        assert_eq!(listed("msda-forward-channel", "sm_90a"), None);
        assert_eq!(listed("#", "What"), None);
    }
}
