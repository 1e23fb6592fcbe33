//! Events: marks in a stream's work.

use std::ffi::c_void;

use super::context::Context;
use super::error::DriverResult;
use super::library::{Handle, NOT_READY};
use super::stream::Stream;

const DISABLE_TIMING: u32 = 2;

/// A mark that a stream reaches when the work before it is done.
#[derive(Debug)]
pub struct Event {
    raw: Handle,
    context: &'static Context,
}

// SAFETY: the driver takes calls on an event from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event whose time can be read.
    pub fn timing(context: &'static Context) -> DriverResult<Self> {
        Event::with_flags(context, 0)
    }

    /// An event without timing, only for ordering: cheaper.
    pub fn ordering(context: &'static Context) -> DriverResult<Self> {
        Event::with_flags(context, DISABLE_TIMING)
    }

    fn with_flags(context: &'static Context, flags: u32) -> DriverResult<Self> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: one handle is written, and the flags are cuda.h's.
        let status = unsafe { (context.api().cuEventCreate)(&mut raw, flags) };
        context.api().check(status, "make an event")?;
        Ok(Event { raw, context })
    }

    /// The driver's handle.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw
    }

    /// Puts the mark behind what the stream was given so far; an earlier mark is forgotten.
    pub fn record(&self, stream: Stream<'_>) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        let api = self.context.api();
        // SAFETY: event and stream live.
        let status = unsafe { (api.cuEventRecord)(self.raw, stream.as_raw()) };
        api.check(status, "record an event")
    }

    /// Whether the mark was reached; true if there is none.
    pub fn query(&self) -> DriverResult<bool> {
        let _entered = self.context.enter()?;
        let api = self.context.api();
        // SAFETY: the event lives.
        let status = unsafe { (api.cuEventQuery)(self.raw) };
        if status == NOT_READY {
            return Ok(false);
        }
        api.check(status, "ask whether an event was reached")?;
        Ok(true)
    }

    /// Waits until the mark is reached.
    pub fn synchronize(&self) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        let api = self.context.api();
        // SAFETY: the event lives.
        let status = unsafe { (api.cuEventSynchronize)(self.raw) };
        api.check(status, "wait for an event")
    }

    /// Milliseconds from `since` to this mark. Both must be [timing](Event::timing) events that were reached.
    pub fn elapsed_ms(&self, since: &Event) -> DriverResult<f32> {
        let _entered = self.context.enter()?;
        let api = self.context.api();
        let mut milliseconds = 0.0;
        // SAFETY: both events live, and one number is written.
        let status = unsafe { (api.cuEventElapsedTime)(&mut milliseconds, since.raw, self.raw) };
        api.check(status, "read the time between two events")?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // An event that is not reached yet is released when it is; this does not wait.
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: made in `with_flags`, and nothing else destroys it.
            unsafe { (self.context.api().cuEventDestroy_v2)(self.raw) };
        }
    }
}
