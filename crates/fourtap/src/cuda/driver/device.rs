//! A GPU and its properties.

use std::ffi::{CStr, c_char, c_int};

use super::error::{DriverError, DriverResult};
use super::library::{Api, RawDevice};
use super::{Driver, Slot};

/// A GPU.
#[derive(Clone, Copy)]
pub struct Device {
    slot: &'static Slot,
    facts: &'static DeviceFacts,
}

/// Properties of a device that do not change while the process runs: identity, and the limits that tuning needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// Index among the devices this process sees.
    pub ordinal: usize,
    /// Product name.
    pub name: String,
    /// UUID, independent of device order; of the MIG instance where the device is partitioned.
    pub uuid: [u8; 16],
    /// PCI address, as `domain:bus:device.function`.
    pub pci_bus_id: String,
    /// Compute capability, (9, 0) for Hopper.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u32,
    /// Shared memory per multiprocessor.
    pub shared_bytes_per_multiprocessor: u32,
    /// Shared memory a block may have without opt-in.
    pub shared_bytes_per_block: u32,
    /// Shared memory a block may have after [`Kernel::set_max_dynamic_shared`](super::Kernel::set_max_dynamic_shared).
    pub shared_bytes_per_block_opt_in: u32,
    /// Shared memory per block that the driver reserves.
    pub shared_bytes_reserved_per_block: u32,
    /// 32-bit registers per multiprocessor.
    pub registers_per_multiprocessor: u32,
    /// Maximum resident threads per multiprocessor.
    pub threads_per_multiprocessor: u32,
    /// Maximum resident blocks per multiprocessor.
    pub blocks_per_multiprocessor: u32,
    /// Peak clock of the multiprocessors in kHz, if the driver reports it.
    pub core_clock_khz: Option<u32>,
    /// Peak clock of the memory in kHz, if the driver reports it.
    pub memory_clock_khz: Option<u32>,
    /// Width of the memory bus in bits, if the driver reports it.
    pub memory_bus_bits: Option<u32>,
    /// Bytes of device memory.
    pub memory_bytes: usize,
    /// Whether blocks can be launched in clusters that share their shared memory.
    pub has_clusters: bool,
    /// Whether boxes of a tensor can be loaded by a [`TensorMap`](super::TensorMap).
    pub has_tensor_maps: bool,
    /// Bytes of L2 that can be set aside for persisting accesses; 0 if none.
    pub persisting_l2_bytes: u32,
    /// Whether ECC is enabled.
    pub has_ecc: bool,
    pub(super) raw: RawDevice,
}

/// The numbers cuda.h gives to the attributes read here.
mod attribute {
    use std::ffi::c_int;
    pub(super) const SHARED_PER_BLOCK: c_int = 8;
    pub(super) const CLOCK_RATE: c_int = 13;
    pub(super) const MULTIPROCESSORS: c_int = 16;
    pub(super) const ECC_ENABLED: c_int = 32;
    pub(super) const MEMORY_CLOCK_RATE: c_int = 36;
    pub(super) const MEMORY_BUS_WIDTH: c_int = 37;
    pub(super) const L2_CACHE_SIZE: c_int = 38;
    pub(super) const THREADS_PER_MULTIPROCESSOR: c_int = 39;
    pub(super) const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    pub(super) const COMPUTE_CAPABILITY_MINOR: c_int = 76;
    pub(super) const SHARED_PER_MULTIPROCESSOR: c_int = 81;
    pub(super) const REGISTERS_PER_MULTIPROCESSOR: c_int = 82;
    pub(super) const SHARED_PER_BLOCK_OPT_IN: c_int = 97;
    pub(super) const BLOCKS_PER_MULTIPROCESSOR: c_int = 106;
    pub(super) const PERSISTING_L2: c_int = 108;
    pub(super) const SHARED_RESERVED_PER_BLOCK: c_int = 111;
    pub(super) const CLUSTER_LAUNCH: c_int = 120;
    pub(super) const TENSOR_MAPS: c_int = 127;
}

impl Device {
    pub(super) fn look_up(driver: &'static Driver, ordinal: usize) -> DriverResult<Device> {
        let slot = driver.slots.get(ordinal).ok_or(DriverError::NoSuchDevice {
            ordinal,
            count: driver.slots.len(),
        })?;
        let facts = match slot.facts.get() {
            Some(facts) => facts,
            None => {
                let facts = DeviceFacts::read(&driver.api, ordinal)?;
                slot.facts.get_or_init(|| facts)
            }
        };
        Ok(Device { slot, facts })
    }

    /// Index among the devices this process sees.
    pub fn ordinal(&self) -> usize {
        self.facts.ordinal
    }

    /// Product name.
    pub fn name(&self) -> &'static str {
        &self.facts.name
    }

    /// Compute capability, (9, 0) for Hopper.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.facts.compute_capability
    }

    /// All properties.
    pub fn facts(&self) -> &'static DeviceFacts {
        self.facts
    }

    pub(super) fn raw(&self) -> RawDevice {
        self.facts.raw
    }

    pub(super) fn slot(&self) -> &'static Slot {
        self.slot
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}: {})", self.facts.ordinal, self.facts.name)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.facts.ordinal == other.facts.ordinal
    }
}

impl Eq for Device {}

impl DeviceFacts {
    fn read(api: &Api, ordinal: usize) -> DriverResult<DeviceFacts> {
        let mut raw = 0;
        // SAFETY: writes one number.
        let status = unsafe { (api.cuDeviceGet)(&mut raw, ordinal as c_int) };
        api.check(status, "get the device")?;

        let mut uuid = [0; 16];
        // SAFETY: `raw` is a device, and 16 bytes are written.
        let status = unsafe { (api.cuDeviceGetUuid_v2)(&mut uuid, raw) };
        api.check(status, "read the device's UUID")?;

        let mut memory_bytes = 0;
        // SAFETY: `raw` is a device, and one number is written.
        let status = unsafe { (api.cuDeviceTotalMem_v2)(&mut memory_bytes, raw) };
        api.check(status, "read the size of the device's memory")?;

        let name = text(|buffer, length| {
            // SAFETY: `raw` is a device, and at most `length` characters are written.
            let status = unsafe { (api.cuDeviceGetName)(buffer, length, raw) };
            api.check(status, "read the device's name")
        })?;
        let pci_bus_id = text(|buffer, length| {
            // SAFETY: as above.
            let status = unsafe { (api.cuDeviceGetPCIBusId)(buffer, length, raw) };
            api.check(status, "read the device's bus address")
        })?;

        let read = |attribute| -> DriverResult<u32> {
            let mut value = 0;
            // SAFETY: `raw` is a device, and one number is written.
            let status = unsafe { (api.cuDeviceGetAttribute)(&mut value, attribute, raw) };
            api.check(status, "read an attribute of the device")?;
            Ok(value.max(0) as u32)
        };
        // Clocks are on their way out of CUDA and 0 on some virtual devices, and the oldest drivers do not know every
        // attribute: no reason to refuse the device.
        let read_if_known = |attribute| read(attribute).ok().filter(|&value| value > 0);

        Ok(DeviceFacts {
            ordinal,
            name,
            uuid,
            pci_bus_id,
            compute_capability: (
                read(attribute::COMPUTE_CAPABILITY_MAJOR)?,
                read(attribute::COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: read(attribute::MULTIPROCESSORS)?,
            l2_bytes: read(attribute::L2_CACHE_SIZE)?,
            shared_bytes_per_multiprocessor: read(attribute::SHARED_PER_MULTIPROCESSOR)?,
            shared_bytes_per_block: read(attribute::SHARED_PER_BLOCK)?,
            shared_bytes_per_block_opt_in: read(attribute::SHARED_PER_BLOCK_OPT_IN)?,
            shared_bytes_reserved_per_block: read(attribute::SHARED_RESERVED_PER_BLOCK)?,
            registers_per_multiprocessor: read(attribute::REGISTERS_PER_MULTIPROCESSOR)?,
            threads_per_multiprocessor: read(attribute::THREADS_PER_MULTIPROCESSOR)?,
            blocks_per_multiprocessor: read(attribute::BLOCKS_PER_MULTIPROCESSOR)?,
            core_clock_khz: read_if_known(attribute::CLOCK_RATE),
            memory_clock_khz: read_if_known(attribute::MEMORY_CLOCK_RATE),
            memory_bus_bits: read_if_known(attribute::MEMORY_BUS_WIDTH),
            memory_bytes,
            has_clusters: read_if_known(attribute::CLUSTER_LAUNCH).is_some(),
            has_tensor_maps: read_if_known(attribute::TENSOR_MAPS).is_some(),
            persisting_l2_bytes: read_if_known(attribute::PERSISTING_L2).unwrap_or(0),
            has_ecc: read_if_known(attribute::ECC_ENABLED).is_some(),
            raw,
        })
    }
}

/// A string that the driver writes into a buffer it is given.
fn text(read: impl FnOnce(*mut c_char, c_int) -> DriverResult<()>) -> DriverResult<String> {
    let mut buffer = [0u8; 256];
    // One less than there is: the last byte stays 0 whatever the driver writes.
    read(buffer.as_mut_ptr().cast(), buffer.len() as c_int - 1)?;
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}
