//! The device's sensors: clocks, temperature, power, and why clocks are lowered, by NVIDIA's management library.
//!
//! Found at run time. Where it is missing or refuses, a reading is empty: no reason not to measure.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::record::Reading;

type Status = c_int;
type Handle = *mut c_void;

const SUCCESS: Status = 0;
const CLOCK_SM: c_int = 1;
const CLOCK_MEMORY: c_int = 2;
const TEMPERATURE_GPU: c_int = 0;

/// By the bits of nvmlDeviceGetCurrentClocksEventReasons. Bits 0 (idle) and 1 (clocks set by an application) are no
/// reasons to distrust a time.
const REASONS: [(c_ulonglong, &str); 7] = [
    (0x4, "software power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "synchronised boost"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "power brake"),
    (0x100, "display clocks"),
];

/// The sensors of one device.
#[derive(Debug)]
pub struct Sensors(Option<Nvml>);

#[derive(Debug)]
struct Nvml {
    device: Handle,
    clock: unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> Status,
    temperature: unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> Status,
    power: unsafe extern "C" fn(Handle, *mut c_uint) -> Status,
    reasons: unsafe extern "C" fn(Handle, *mut c_ulonglong) -> Status,
    /// After all that points into it.
    _library: libloading::Library,
}

impl Sensors {
    /// Of the device at this place on the bus.
    pub fn of(pci_bus_id: &str) -> Self {
        Sensors(Nvml::open(pci_bus_id))
    }

    /// What they say now.
    pub fn read(&self) -> Reading {
        self.0.as_ref().map_or(Reading::default(), Nvml::read)
    }
}

impl Nvml {
    fn open(pci_bus_id: &str) -> Option<Self> {
        let name = if cfg!(windows) {
            "nvml.dll"
        } else {
            "libnvidia-ml.so.1"
        };
        let bus_id = CString::new(pci_bus_id).ok()?;
        // SAFETY: loading runs the library's constructors, which have no demands on the caller. The signatures are
        // those of nvml.h, which never changes one under an exported name. `init` is called before anything else, and
        // the bus id ends with a zero byte.
        unsafe {
            let library = libloading::Library::new(name).ok()?;
            let init: unsafe extern "C" fn() -> Status = *library.get("nvmlInit_v2").ok()?;
            let by_bus_id: unsafe extern "C" fn(*const c_char, *mut Handle) -> Status =
                *library.get("nvmlDeviceGetHandleByPciBusId_v2").ok()?;
            let mut device = std::ptr::null_mut();
            if init() != SUCCESS || by_bus_id(bus_id.as_ptr(), &mut device) != SUCCESS {
                return None;
            }
            Some(Nvml {
                device,
                clock: *library.get("nvmlDeviceGetClockInfo").ok()?,
                temperature: *library.get("nvmlDeviceGetTemperature").ok()?,
                power: *library.get("nvmlDeviceGetPowerUsage").ok()?,
                reasons: *library
                    .get("nvmlDeviceGetCurrentClocksThrottleReasons")
                    .ok()?,
                _library: library,
            })
        }
    }

    fn read(&self) -> Reading {
        let number = |read: &dyn Fn(*mut c_uint) -> Status| {
            let mut value = 0;
            (read(&mut value) == SUCCESS).then_some(value)
        };
        let device = self.device;
        let mut reasons = 0;
        // SAFETY: the device is one the library gave, which is still loaded, and each function writes one number.
        unsafe {
            if (self.reasons)(device, &mut reasons) != SUCCESS {
                reasons = 0;
            }
            let power = number(&|value| (self.power)(device, value));
            Reading {
                clock_mhz: number(&|value| (self.clock)(device, CLOCK_SM, value)),
                memory_clock_mhz: number(&|value| (self.clock)(device, CLOCK_MEMORY, value)),
                temperature_c: number(&|value| (self.temperature)(device, TEMPERATURE_GPU, value)),
                power_w: power.map(|milliwatts| f64::from(milliwatts) / 1e3),
                throttled_by: in_words(reasons),
                load: None,
            }
        }
    }
}

fn in_words(reasons: c_ulonglong) -> Vec<String> {
    let set = REASONS.iter().filter(|(bit, _)| reasons & bit != 0);
    set.map(|(_, name)| name.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idling_is_no_reason() {
        assert!(in_words(0x1 | 0x2).is_empty());
        assert_eq!(
            in_words(0x4 | 0x40),
            ["software power cap", "hardware thermal slowdown"]
        );
    }

    #[test]
    fn a_device_that_is_not_there_says_nothing() {
        assert_eq!(Sensors::of("0000:ff:1f.7").read(), Reading::default());
        assert_eq!(Sensors::of("not\0an address").read(), Reading::default());
    }
}
