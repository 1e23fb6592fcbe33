//! The program that is profiled: computes a case once, and says whether the result is right.

use std::fs;
use std::path::Path;

use fourtap::msda::Inputs;
use serde::{Deserialize, Serialize};

use crate::cli::{DeviceChoice, Direction, TargetArgs};
use crate::cuda::DeviceTrial;
use crate::error::{Error, Result};
use crate::explain::Case;
use crate::generate;
use crate::target::{Device, Target};
use crate::trial::Trial;
use crate::verification::{Verification, verify};

/// Seed of the random numbers: the one `fourtap bench` has unless told otherwise.
const SEED: u64 = 0;

/// What it leaves for whoever started the profiler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statement {
    /// What computed.
    pub device: Device,
    /// Whether that was right.
    pub verification: Verification,
}

impl Statement {
    /// What the file holds; none if nothing was said.
    pub fn read(file: &Path) -> Option<Self> {
        let text = fs::read_to_string(file).ok()?;
        serde_json::from_str(&text).ok()
    }
}

/// Computes `case` on a CUDA device and writes a [`Statement`] to `file`.
pub fn compute(case: &Case, device: DeviceChoice, file: &Path) -> Result<()> {
    let target = Target::new(&TargetArgs {
        // Without a device there is nothing to profile: better its reason than another backend.
        device: match device {
            DeviceChoice::Auto => DeviceChoice::Cuda(0),
            other => other,
        },
        kernel: None,
        deterministic: false,
        simd: None,
    })?;
    let (sizes, types) = (&case.sizes, case.types);
    let (levels, reference) = (&case.levels, case.workload.reference);
    let locations = generate::locations(sizes, levels, reference, case.distribution, SEED)?;
    let locations = locations.rounded("sampling_locations", types.locations)?;
    let weights = generate::weights(sizes, SEED)?.rounded("attention_weights", types.weights)?;
    let value = generate::value(sizes, types.value, SEED)?;
    let inputs = Inputs {
        value: value.view(),
        levels: levels.into(),
        sampling_locations: locations.view(),
        attention_weights: weights.view(),
    };
    let grad_out = generate::grad_out(sizes, types.value, SEED)?;
    let trial = match case.direction {
        Direction::Forward => Trial::forward(target.backend, inputs)?,
        Direction::Backward => Trial::backward(target.backend, inputs, grad_out.view())?,
    };
    let Some(cuda) = target.cuda() else {
        return Err(Error::Misplaced {
            option: "profile",
            expected: "a CUDA device",
            found: "the CPU".to_string(),
        });
    };
    let mut on_device = DeviceTrial::new(&trial, cuda.context())?;
    if let Some(bytes) = on_device.explain(&cuda)?.workspace_bytes {
        on_device.give_workspace(cuda.context(), bytes)?;
    }
    on_device.poison(cuda.stream())?;
    on_device.queue(&cuda)?;
    cuda.context().synchronize()?;
    let outputs = on_device.download()?;
    let statement = Statement {
        device: target.device,
        verification: verify(&trial, &outputs, SEED)?,
    };
    let failed = |source| Error::Write {
        file: file.to_path_buf(),
        source,
    };
    let text = serde_json::to_string(&statement).map_err(|error| failed(error.into()))?;
    fs::write(file, text).map_err(failed)
}
