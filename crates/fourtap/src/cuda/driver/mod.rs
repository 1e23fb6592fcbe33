//! A thin, safe layer over the CUDA driver.
//!
//! Start at [`Driver::get`], which finds the driver at run time, then [`Context::primary`] for a device. Everything a
//! type owns is released when it is dropped; nothing here synchronises or allocates unless its name says so.
//!
//! ```
//! use fourtap::cuda::driver::Driver;
//! match Driver::get() {
//!     Ok(driver) => println!("CUDA {:?}, {} devices", driver.version(), driver.device_count()),
//!     Err(reason) => println!("{reason}"),
//! }
//! ```

use std::sync::{Mutex, OnceLock};

mod context;
mod device;
mod error;
mod event;
mod graph;
mod launch;
mod library;
mod memory;
mod module;
mod stream;
mod tensor_map;

pub use context::{Context, ContextGuard, MemoryInfo};
pub use device::{Device, DeviceFacts};
pub use error::{DriverError, DriverResult};
pub use event::Event;
pub use graph::{Graph, GraphExec};
pub use launch::{Launch, active_clusters, launch};
pub use memory::{Buffer, Plain, StreamMemory, pointer_device, zero};
pub use module::{Kernel, KernelFacts, Library};
pub use stream::{CaptureMode, OwnedStream, Stream};
pub use tensor_map::{Swizzle, TensorElement, TensorMap, TensorMapDesc};

use library::Api;

/// The initialised driver of this process.
pub struct Driver {
    api: Api,
    version: (u32, u32),
    slots: Vec<Slot>,
    /// Held while a slot is filled, so that a context is retained once.
    filling: Mutex<()>,
}

/// Cached properties and context of a device.
#[derive(Default)]
struct Slot {
    facts: OnceLock<DeviceFacts>,
    context: OnceLock<Context>,
}

impl Driver {
    /// The driver, found and started by the first call; later calls return the same, success or failure.
    pub fn get() -> DriverResult<&'static Driver> {
        static DRIVER: OnceLock<DriverResult<Driver>> = OnceLock::new();
        match DRIVER.get_or_init(Driver::start) {
            Ok(driver) => Ok(driver),
            Err(error) => Err(error.clone()),
        }
    }

    fn start() -> DriverResult<Driver> {
        let (api, version) = library::load()?;
        // SAFETY: may be called at any time; 0 is the only flag there is.
        let status = unsafe { (api.cuInit)(0) };
        if status != library::SUCCESS {
            return Err(api.init_failure(status));
        }
        let mut count = 0;
        // SAFETY: writes one number.
        let status = unsafe { (api.cuDeviceGetCount)(&mut count) };
        if status != library::SUCCESS {
            return Err(api.init_failure(status));
        }
        Ok(Driver {
            api,
            version,
            slots: (0..count).map(|_| Slot::default()).collect(),
            filling: Mutex::new(()),
        })
    }

    /// The newest CUDA version this driver runs, as (major, minor).
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// How many devices this process sees.
    pub fn device_count(&self) -> usize {
        self.slots.len()
    }

    /// The device with this index, as `CUDA_VISIBLE_DEVICES` orders them.
    pub fn device(&'static self, ordinal: usize) -> DriverResult<Device> {
        Device::look_up(self, ordinal)
    }

    /// All devices.
    pub fn devices(&'static self) -> impl Iterator<Item = DriverResult<Device>> {
        (0..self.device_count()).map(|ordinal| self.device(ordinal))
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("version", &self.version)
            .field("devices", &self.slots.len())
            .finish()
    }
}

/// The driver's functions, for holders of a handle, which proves that the driver was initialised.
fn api() -> DriverResult<&'static Api> {
    Ok(&Driver::get()?.api)
}
