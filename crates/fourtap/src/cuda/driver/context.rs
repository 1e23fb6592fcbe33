//! Contexts: a thread must have entered one before it can use a device.

use std::marker::PhantomData;

use super::Driver;
use super::device::Device;
use super::error::DriverResult;
use super::library::{Api, Handle, SUCCESS};

/// A device's primary context: the one that CUDA's runtime, and every library built on it, shares.
///
/// It is retained once for the process and never released. Others (PyTorch, the CUDA runtime) use the same context,
/// buffers and kernels in static variables outlive any scope this crate could see, and by the time static destructors
/// run the driver may have shut itself down; the end of the process releases everything.
pub struct Context {
    api: &'static Api,
    raw: Handle,
    device: Device,
}

// SAFETY: the driver may be called with a context from any thread; what is current is a matter of each thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Device memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes not allocated by any process.
    pub free: usize,
    /// Bytes in total.
    pub total: usize,
}

impl Context {
    /// The primary context of `device`.
    pub fn primary(device: Device) -> DriverResult<&'static Context> {
        let slot = device.slot();
        if let Some(context) = slot.context.get() {
            return Ok(context);
        }
        let driver = Driver::get()?;
        // A panic here leaves no partial state: the slot is empty or filled.
        let _filling = driver.filling.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(context) = slot.context.get() {
            return Ok(context);
        }
        let api = &driver.api;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device exists, and one handle is written.
        let status = unsafe { (api.cuDevicePrimaryCtxRetain)(&mut raw, device.raw()) };
        api.check(status, "make a context on the device")?;
        Ok(slot.context.get_or_init(|| Context { api, raw, device }))
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.device
    }

    pub(super) fn api(&self) -> &'static Api {
        self.api
    }

    /// Whether this is the calling thread's current context: then default allocations of other libraries are on this device.
    pub fn is_current(&self) -> bool {
        let mut current = std::ptr::null_mut();
        // SAFETY: writes one handle, null if there is none.
        let status = unsafe { (self.api.cuCtxGetCurrent)(&mut current) };
        status == SUCCESS && current == self.raw
    }

    /// Makes sure that a context of this device is current on this thread until the guard is dropped.
    ///
    /// If the thread is already in one, this or the caller's own, nothing changes: streams and memory of that context
    /// keep working. Guards must be dropped in reverse order.
    pub fn enter(&self) -> DriverResult<ContextGuard<'_>> {
        let mut current = std::ptr::null_mut();
        // SAFETY: writes one handle, null if there is none.
        let status = unsafe { (self.api.cuCtxGetCurrent)(&mut current) };
        self.api.check(status, "find the thread's context")?;
        let there = current == self.raw || (!current.is_null() && self.owns_current());
        if !there {
            // SAFETY: the context is retained for the life of the process.
            let status = unsafe { (self.api.cuCtxPushCurrent_v2)(self.raw) };
            self.api.check(status, "enter the device's context")?;
        }
        Ok(ContextGuard {
            context: self,
            pushed: !there,
            thread: PhantomData,
        })
    }

    /// Whether the thread's context, which exists, is of this device.
    fn owns_current(&self) -> bool {
        let mut device = -1;
        // SAFETY: writes one number. A context that was destroyed while current fails, and is then replaced by ours.
        let status = unsafe { (self.api.cuCtxGetDevice)(&mut device) };
        status == SUCCESS && device == self.device.raw()
    }

    /// Free and total memory of the device.
    pub fn memory_info(&self) -> DriverResult<MemoryInfo> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        let status = unsafe { (self.api.cuMemGetInfo_v2)(&mut free, &mut total) };
        self.api.check(status, "ask for the free memory")?;
        Ok(MemoryInfo { free, total })
    }

    /// Waits for all work queued in the current context.
    pub fn synchronize(&self) -> DriverResult<()> {
        let _entered = self.enter()?;
        // SAFETY: takes nothing.
        let status = unsafe { (self.api.cuCtxSynchronize)() };
        self.api.check(status, "finish the device's work")
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Context").field(&self.device).finish()
    }
}

/// While this lives, the thread is in a context of the device.
#[must_use = "the context is left when this is dropped"]
pub struct ContextGuard<'a> {
    context: &'a Context,
    pushed: bool,
    /// The current context is a property of the thread, so the guard is not `Send`.
    thread: PhantomData<*const ()>,
}

impl ContextGuard<'_> {
    /// The context that was entered.
    pub fn context(&self) -> &Context {
        self.context
    }
}

impl Drop for ContextGuard<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut left = std::ptr::null_mut();
            // SAFETY: this thread pushed a context in `enter`. It fails only if someone else popped that already.
            unsafe { (self.context.api.cuCtxPopCurrent_v2)(&mut left) };
        }
    }
}
