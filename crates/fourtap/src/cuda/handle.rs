//! `Cuda`: device, stream and options of calls.

use std::ffi::c_void;

use super::device_size::DeviceSize;
use super::driver::{Context, Device, Driver, Stream};
use super::error::CudaError;
use super::{dense, msda};
use crate::place::Place;

/// The oldest devices with bf16 arithmetic and minima that keep NaN.
const OLDEST: (u32, u32) = (8, 0);

/// A CUDA device and the stream to work on. Cheap to copy; all copies share the kernels loaded so far.
#[derive(Clone, Copy, Debug)]
pub struct Cuda {
    context: &'static Context,
    /// As a number, because a pointer would not be `Send`; streams may be used from any thread.
    stream: usize,
    settings: Settings,
}

/// What plans depend on besides the device; part of the key of the plan cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub deterministic: bool,
    /// If fewer than all of the device's.
    pub multiprocessors: Option<u32>,
    pub msda: msda::Options,
    pub dense: dense::Options,
}

impl Cuda {
    /// Device number `ordinal`, if this library supports it. Creates no context.
    pub fn find(ordinal: usize) -> Result<Device, CudaError> {
        let device = Driver::get()?.device(ordinal)?;
        let found = device.compute_capability();
        if found < OLDEST {
            return Err(CudaError::OldDevice {
                ordinal,
                name: device.name().to_string(),
                found,
                needed: OLDEST,
            });
        }
        Ok(device)
    }

    /// Device number `ordinal` and its default stream.
    pub fn new(ordinal: usize) -> Result<Self, CudaError> {
        let device = Cuda::find(ordinal)?;
        Ok(Cuda {
            context: Context::primary(device)?,
            stream: 0,
            settings: Settings::default(),
        })
    }

    /// The same device, on the stream with this handle (a `CUstream`, as PyTorch and candle hand out).
    ///
    /// # Safety
    /// The stream belongs to this device and lives as long as calls are made with the result.
    pub unsafe fn on_stream(self, stream: *mut c_void) -> Self {
        Cuda {
            stream: stream as usize,
            ..self
        }
    }

    /// The same, with these options for deformable attention.
    pub fn with_msda(mut self, options: impl Into<msda::Options>) -> Self {
        self.settings.msda = options.into();
        self
    }

    /// The same, with these options for dense attention.
    pub fn with_dense(mut self, options: dense::Options) -> Self {
        self.settings.dense = options;
        self
    }

    /// The same, with results that are bitwise reproducible from run to run and with any tuning table. Forward always is
    /// while the tables stay the same. So is backward, except that small f32 problems use atomic additions by default, which
    /// are faster.
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.settings.deterministic = deterministic;
        self
    }

    /// The same, with work split as if the device had that many multiprocessors: to share a device, or to test how large
    /// and small problems are split on any device.
    pub fn for_multiprocessors(mut self, count: u32) -> Self {
        self.settings.multiprocessors = Some(count);
        self
    }

    /// What plans depend on.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The device properties that plans are made for.
    pub(super) fn size(&self) -> DeviceSize {
        let whole = DeviceSize::from(self.device().facts());
        DeviceSize {
            multiprocessors: self
                .settings
                .multiprocessors
                .unwrap_or(whole.multiprocessors),
            ..whole
        }
    }

    /// The memory of the device.
    pub(super) fn place(&self) -> Place {
        Place::Cuda {
            ordinal: self.ordinal(),
        }
    }

    /// The device's number.
    pub fn ordinal(&self) -> usize {
        self.device().ordinal()
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.context.device()
    }

    /// The context used if the calling thread has none for this device.
    pub fn context(&self) -> &'static Context {
        self.context
    }

    /// The stream work is queued on.
    pub fn stream(&self) -> Stream<'_> {
        // SAFETY: null is the default stream; any other handle was promised to be alive in `on_stream`.
        unsafe { Stream::from_raw(self.stream as *mut c_void) }
    }
}
