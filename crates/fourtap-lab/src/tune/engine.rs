//! What computes a subject, and how a choice would be carried out there.

use fourtap::cpu::Cpu;
use fourtap::cuda::driver::DeviceFacts;
use fourtap::cuda::jit::{self, Architecture, Program};
use fourtap::cuda::{DeviceSize, SpecialisedKernel};
use fourtap::tuning::Choice;

use super::{ExternalKernel, Subject};
use crate::cuda::Hardware;
use crate::error::Result;

/// What computes.
#[derive(Clone, Debug)]
pub enum Engine {
    /// The library, on the processor.
    Cpu,
    /// The library, on a CUDA device.
    Cuda(Gpu),
    /// A kernel of another crate, on a CUDA device.
    External(&'static dyn ExternalKernel, Gpu),
}

/// A CUDA device by what can be known of it without using it.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// Its number.
    pub ordinal: usize,
    /// Compute capability.
    pub capability: (u32, u32),
    /// What the library's plans go by.
    pub size: DeviceSize,
    /// What the plans of other kernels go by.
    pub hardware: Hardware,
}

impl Gpu {
    /// As the driver says.
    pub fn of(facts: &DeviceFacts) -> Self {
        Gpu {
            ordinal: facts.ordinal,
            capability: facts.compute_capability,
            size: DeviceSize::from(facts),
            hardware: Hardware::of(facts),
        }
    }

    fn architecture(&self) -> Result<Architecture> {
        let (major, minor) = self.capability;
        Ok(jit::architecture_for(major, minor)?)
    }
}

impl Engine {
    /// The same on another device of its model; the processor stays what it is.
    pub fn on(&self, device: Gpu) -> Self {
        match self {
            Engine::Cpu => Engine::Cpu,
            Engine::Cuda(_) => Engine::Cuda(device),
            Engine::External(kernel, _) => Engine::External(*kernel, device),
        }
    }
}

impl Subject {
    /// What a choice comes to, equal for choices that say the same in different ways; in words if it cannot be carried out.
    pub fn carried(&self, choice: &Choice) -> std::result::Result<String, String> {
        match &self.engine {
            Engine::Cpu => {
                Cpu::new().with_choice(choice)?;
                Ok(choice.to_string())
            }
            Engine::Cuda(gpu) => {
                let planned = self.planned(gpu, choice).map_err(|error| why(&error))?;
                Ok(planned.key)
            }
            Engine::External(kernel, gpu) => {
                kernel.accepts(self, &gpu.hardware, choice)?;
                Ok(choice.to_string())
            }
        }
    }

    /// What must be compiled for a choice.
    pub fn programs(&self, choice: &Choice) -> Result<std::result::Result<Vec<Program>, String>> {
        match &self.engine {
            Engine::Cpu => Ok(Ok(Vec::new())),
            Engine::Cuda(gpu) => {
                let architecture = gpu.architecture()?;
                let planned = self.planned(gpu, choice);
                Ok(planned
                    .map(|planned| (planned.programs)(architecture))
                    .map_err(|error| why(&error)))
            }
            Engine::External(kernel, gpu) => {
                kernel.programs(self, &gpu.hardware, choice, gpu.architecture()?)
            }
        }
    }

    /// The library's plan for a choice.
    fn planned(&self, gpu: &Gpu, choice: &Choice) -> Result<LaunchPlan> {
        let pass = (self.dtype, self.direction);
        self.workload.planned(gpu.size, pass, choice)
    }
}

/// A plan of the library.
pub struct LaunchPlan {
    /// The same for choices that come to the same.
    key: String,
    /// What must be compiled for it.
    programs: Box<dyn Fn(Architecture) -> Vec<Program>>,
}

impl LaunchPlan {
    /// Of kernels, whose plan `key` tells from others.
    pub fn new(key: String, kernels: Vec<impl SpecialisedKernel + 'static>) -> Self {
        LaunchPlan {
            key,
            programs: Box::new(move |to| kernels.iter().map(|it| it.program(to)).collect()),
        }
    }
}

/// Why the library does not do it, in few words: many choices are refused for the same reason.
fn why(error: &crate::error::Error) -> String {
    match error {
        crate::error::Error::Library(library) => match &**library {
            fourtap::Error::Unsupported { found, .. } => found.clone(),
            other => other.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Distribution;
    use crate::operators::Operator;
    use crate::operators::dense::Dense;
    use crate::selection;
    use crate::tune::{BuildResult, Points, Tunable, hints};
    use fourtap::DType;
    use std::path::PathBuf;

    /// An H200.
    fn gpu() -> Gpu {
        Gpu {
            ordinal: 0,
            capability: (9, 0),
            size: DeviceSize {
                multiprocessors: 132,
                l2_bytes: 62_914_560,
                shared_bytes: 232_448,
                has_wgmma: true,
            },
            hardware: Hardware {
                multiprocessors: 132,
                shared_bytes: 232_448,
                threads: 2048,
                l2_bytes: 62_914_560,
                has_clusters: true,
                has_tensor_maps: true,
            },
        }
    }

    fn subject(kernel: &str, workload: &str) -> Subject {
        let tunable = Tunable::named(kernel).unwrap();
        let named = PathBuf::from(workload);
        Subject {
            space: tunable.space,
            engine: Engine::Cuda(gpu()),
            direction: tunable.computes().1,
            workload: selection::workload(&named, None).unwrap(),
            named,
            distribution: Distribution::Local,
            dtype: DType::F16,
        }
    }

    fn points(subject: &Subject, allow_rounding_changes: bool) -> Points {
        let carried = |choice: &Choice| subject.carried(choice);
        Points::new(subject.space, &[], allow_rounding_changes, carried).unwrap()
    }

    const MSDA: [&str; 5] = [
        "seed-full",
        "detr-encoder",
        "dino-decoder",
        "rtdetr-decoder",
        "bev-d64",
    ];

    #[test]
    fn every_workload_has_choices() {
        for workload in MSDA {
            for kernel in ["cuda-msda-forward", "cuda-msda-backward"] {
                let subject = subject(kernel, workload);
                assert_eq!(subject.is_backward(), kernel.ends_with("backward"));
                let [few, many] = [false, true]
                    .map(|allow_rounding_changes| points(&subject, allow_rounding_changes));
                assert!(many.all.len() > 50, "{kernel} on {workload}");
                assert!((2..=many.all.len()).contains(&few.all.len()));
                assert_eq!(few.all[0], subject.space.defaults());
                assert!(!hints(&many, &subject).is_empty(), "{kernel} on {workload}");
            }
        }
        for (workload, _) in Dense.built_in() {
            let subject = subject("cuda-dense-forward", workload);
            let many = points(&subject, true);
            assert!(many.all.len() > 50, "{workload}: {}", many.all.len());
            assert!(!hints(&many, &subject).is_empty(), "{workload}");
        }
    }

    /// Where there is a compiler, which on machines that need one there is.
    #[test]
    fn what_a_choice_needs_is_compiled() {
        if jit::Nvrtc::get().is_err() {
            assert!(std::env::var_os("FOURTAP_REQUIRE_NVRTC").is_none());
            return;
        }
        let subject = subject("cuda-msda-forward", "rtdetr-decoder");
        let choice = subject.space.choice(&[("threads", 128)]).unwrap();
        let built = BuildResult::new(&subject, &choice).unwrap();
        assert_eq!((built.failed.as_deref(), built.kernels.len()), (None, 1));
        assert!(built.registers().unwrap() > 16, "{built:?}");
        let choice = subject.space.choice(&[("heads_together", 1)]).unwrap();
        let choice = choice.with("phases", 4).with("split", 4);
        let built = BuildResult::new(&subject, &choice).unwrap();
        assert!(built.failed.is_some(), "{built:?}");
    }
}
