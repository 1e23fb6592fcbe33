//! The program that is profiled: computes a case once, and says whether the result is right.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cli::{CaseArgs, DeviceChoice, Direction, TargetArgs};
use crate::cuda::DeviceTrial;
use crate::error::{Error, Result};
use crate::operators::{DataSpec, Workload};
use crate::target::{Device, Target};
use crate::verification::Verification;

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

/// Computes a case of a workload on a CUDA device and writes a [`Statement`] to `file`.
pub fn compute(
    workload: &dyn Workload,
    arguments: &CaseArgs,
    device: DeviceChoice,
    file: &Path,
) -> Result<()> {
    // Without a device there is nothing to profile: better its reason than another backend.
    let device = match device {
        DeviceChoice::Auto => DeviceChoice::Cuda(0),
        other => other,
    };
    let target = Target::new(&TargetArgs::on(device))?;
    let tensors = workload.filled(&DataSpec {
        dtype: arguments.dtype.into(),
        coordinates: arguments.coordinates.dtype(arguments.dtype.into()),
        distribution: arguments.distribution,
        backward: arguments.direction == Direction::Backward,
        seed: SEED,
    })?;
    let trial = tensors.trial(target.backend, arguments.direction)?;
    let Some(cuda) = target.cuda() else {
        return Err(Error::Misplaced {
            option: "profile",
            expected: "a CUDA device",
            found: "the CPU".to_string(),
        });
    };
    let mut on_device = DeviceTrial::new(&*trial, cuda.context())?;
    if let Some(bytes) = on_device.explain(&cuda)?.workspace_bytes {
        on_device.give_workspace(cuda.context(), bytes)?;
    }
    on_device.poison(cuda.stream())?;
    on_device.queue(&cuda)?;
    cuda.context().synchronize()?;
    let outputs = on_device.download()?;
    let statement = Statement {
        device: target.device,
        verification: trial.verified(&outputs, SEED)?,
    };
    let failed = |source| Error::Write {
        file: file.to_path_buf(),
        source,
    };
    let text = serde_json::to_string(&statement).map_err(|error| failed(error.into()))?;
    fs::write(file, text).map_err(failed)
}
