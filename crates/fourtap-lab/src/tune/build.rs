//! Kernels compiled before they are tried.

use std::time::Instant;

use fourtap::cuda::jit::{self, KernelResources, Origin, Resources};
use fourtap::tuning::Choice;
use serde::{Deserialize, Serialize};

use super::Subject;
use crate::error::Result;

/// The result of compiling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BuildResult {
    /// Kernels compiled now; the others were compiled before.
    pub compiled: usize,
    /// How long that took, in milliseconds.
    pub milliseconds: u64,
    /// What each kernel takes.
    pub kernels: Vec<CompiledKernel>,
    /// Why there is none: what the compiler said, in a line or a few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// A kernel, compiled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompiledKernel {
    /// What it is called.
    pub name: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of stack per thread: where there is any, registers were spilled.
    pub stack_bytes: u32,
    /// Bytes of shared memory that it declares.
    pub shared_bytes: u64,
}

impl BuildResult {
    /// Compiles what a choice needs into the cache.
    pub fn new(subject: &Subject, choice: &Choice) -> Result<Self> {
        let mut built = BuildResult::default();
        let programs = match subject.programs(choice)? {
            Ok(programs) => programs,
            Err(words) => {
                built.failed = Some(words);
                return Ok(built);
            }
        };
        for program in programs {
            let begun = Instant::now();
            match jit::machine_code(&program) {
                Ok((code, origin)) => {
                    if matches!(origin, Origin::Compiled { .. }) {
                        built.compiled += 1;
                        built.milliseconds += begun.elapsed().as_millis() as u64;
                    }
                    for kernel in Resources::of(&code)? {
                        built
                            .kernels
                            .push(CompiledKernel::new(&program.name, &kernel));
                    }
                }
                Err(error) => {
                    built.failed = Some(error.to_string());
                    return Ok(built);
                }
            }
        }
        Ok(built)
    }

    /// The most registers that a thread of any kernel has.
    pub fn registers(&self) -> Option<u32> {
        self.kernels.iter().map(|kernel| kernel.registers).max()
    }

    /// Bytes of stack of the kernel that has the most.
    pub fn stack_bytes(&self) -> u32 {
        let stacks = self.kernels.iter().map(|kernel| kernel.stack_bytes);
        stacks.max().unwrap_or(0)
    }
}

impl CompiledKernel {
    fn new(name: &str, kernel: &KernelResources) -> Self {
        CompiledKernel {
            name: name.to_string(),
            registers: kernel.registers,
            stack_bytes: kernel.stack_bytes,
            shared_bytes: kernel.static_shared_bytes,
        }
    }
}
