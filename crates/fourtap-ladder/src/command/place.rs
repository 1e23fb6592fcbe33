//! The GPUs that rungs run on.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver;
use fourtap_lab::extension::{Device, DeviceChoice, DevicesChoice, Result, devices};

use crate::cli::LadderArgs;
use crate::error::LadderError;

/// A device by its number, and as records name it.
pub struct Place {
    /// Its number.
    pub ordinal: usize,
    /// For the record.
    pub device: Device,
}

/// Where rungs run. Nothing is made on the devices here: a context would be in the way of the rungs'.
pub fn places(arguments: &LadderArgs) -> Result<Vec<Place>> {
    let found = match (arguments.devices, arguments.device) {
        (Some(DevicesChoice::All), _) => devices::all()?,
        (None, DeviceChoice::Cpu) => return Err(LadderError::OnCpu.into()),
        (None, DeviceChoice::Auto) => vec![find(0)?],
        (None, DeviceChoice::Cuda(ordinal)) => vec![find(ordinal as usize)?],
    };
    let place = |device: &driver::Device| Place {
        ordinal: device.ordinal(),
        device: Device::of_cuda(device),
    };
    Ok(found.iter().map(place).collect())
}

fn find(ordinal: usize) -> Result<driver::Device> {
    Cuda::find(ordinal).map_err(|source| LadderError::NoDevice(Box::new(source)).into())
}
