//! Streams: queues of work that a device executes in order.

use std::ffi::c_void;
use std::marker::PhantomData;

use super::api;
use super::context::Context;
use super::error::DriverResult;
use super::event::Event;
use super::graph::Graph;
use super::library::{Handle, NOT_READY};

/// A borrowed stream: the device's default, the caller's or that of an [`OwnedStream`].
///
/// Its functions need a context of the stream's device, so call them while it is [entered](Context::enter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream<'a> {
    raw: Handle,
    owner: PhantomData<&'a ()>,
}

// SAFETY: the driver takes calls on a stream from any thread.
unsafe impl Send for Stream<'_> {}
// SAFETY: as above.
unsafe impl Sync for Stream<'_> {}

/// Which other driver calls a capture forbids, because they would not be part of the graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// Unsafe calls of any thread.
    Global,
    /// Unsafe calls of this thread.
    #[default]
    ThreadLocal,
    /// None.
    Relaxed,
}

impl Stream<'static> {
    /// The stream that waits for, and is waited for by, every other stream not made non-blocking.
    pub fn legacy_default() -> Self {
        Stream {
            raw: std::ptr::null_mut(),
            owner: PhantomData,
        }
    }
}

impl<'a> Stream<'a> {
    /// A stream of someone else: a `CUstream`, which is also what the runtime calls `cudaStream_t`.
    ///
    /// # Safety
    /// `raw` is null or a stream that lives for `'a`.
    pub unsafe fn from_raw(raw: *mut c_void) -> Self {
        Stream {
            raw,
            owner: PhantomData,
        }
    }

    /// The driver's handle.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw
    }

    /// Waits until all its work is done.
    pub fn synchronize(&self) -> DriverResult<()> {
        let api = api()?;
        // SAFETY: the stream lives.
        let status = unsafe { (api.cuStreamSynchronize)(self.raw) };
        api.check(status, "finish the stream's work")
    }

    /// Whether all its work is done.
    pub fn is_idle(&self) -> DriverResult<bool> {
        let api = api()?;
        // SAFETY: the stream lives.
        let status = unsafe { (api.cuStreamQuery)(self.raw) };
        if status == NOT_READY {
            return Ok(false);
        }
        api.check(status, "ask whether the stream is idle")?;
        Ok(true)
    }

    /// Makes later work wait for what `event` recorded last.
    pub fn wait(&self, event: &Event) -> DriverResult<()> {
        let api = api()?;
        // SAFETY: stream and event live; 0 is the flag for an ordinary wait.
        let status = unsafe { (api.cuStreamWaitEvent)(self.raw, event.as_raw(), 0) };
        api.check(status, "let the stream wait for an event")
    }

    /// From now on, work is recorded into a graph instead of run. The legacy default stream refuses.
    pub fn begin_capture(&self, mode: CaptureMode) -> DriverResult<()> {
        let api = api()?;
        let mode = match mode {
            CaptureMode::Global => 0,
            CaptureMode::ThreadLocal => 1,
            CaptureMode::Relaxed => 2,
        };
        // SAFETY: the stream lives, and the mode is one of cuda.h's.
        let status = unsafe { (api.cuStreamBeginCapture_v2)(self.raw, mode) };
        api.check(status, "begin to capture the stream")
    }

    /// Ends the capture, with the recorded work; fails if something that cannot be recorded was attempted.
    pub fn end_capture(&self) -> DriverResult<Graph> {
        let api = api()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream lives, and one handle is written: null if the capture was invalidated.
        let status = unsafe { (api.cuStreamEndCapture)(self.raw, &mut graph) };
        api.check(status, "capture the stream's work")?;
        // SAFETY: the graph is ours.
        Ok(unsafe { Graph::from_raw(graph) })
    }

    /// Whether work is being recorded.
    pub fn is_capturing(&self) -> DriverResult<bool> {
        let api = api()?;
        let mut status_of_capture = 0;
        // SAFETY: the stream lives, and one number is written.
        let status = unsafe { (api.cuStreamIsCapturing)(self.raw, &mut status_of_capture) };
        api.check(status, "ask whether the stream is captured")?;
        Ok(status_of_capture != 0)
    }
}

/// A stream of ours. Dropping it does not wait: work it was given is still done.
#[derive(Debug)]
pub struct OwnedStream {
    raw: Handle,
    context: &'static Context,
}

// SAFETY: the driver takes calls on a stream from any thread.
unsafe impl Send for OwnedStream {}
// SAFETY: as above.
unsafe impl Sync for OwnedStream {}

impl OwnedStream {
    /// A stream on the context's device; a non-blocking one and the legacy default stream do not wait for each other.
    pub fn new(context: &'static Context, non_blocking: bool) -> DriverResult<Self> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: one handle is written; 0 and 1 are cuda.h's flags for blocking and non-blocking.
        let status = unsafe { (context.api().cuStreamCreate)(&mut raw, non_blocking.into()) };
        context.api().check(status, "make a stream")?;
        Ok(OwnedStream { raw, context })
    }

    /// The handle to launch on.
    pub fn stream(&self) -> Stream<'_> {
        Stream {
            raw: self.raw,
            owner: PhantomData,
        }
    }

    /// The context it was made for.
    pub fn context(&self) -> &'static Context {
        self.context
    }

    /// Waits until all its work is done.
    pub fn synchronize(&self) -> DriverResult<()> {
        let _entered = self.context.enter()?;
        self.stream().synchronize()
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        // Errors here come from earlier work and are reported to whoever waits for that.
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: made in `new`, and no `Stream` borrows it any more.
            unsafe { (self.context.api().cuStreamDestroy_v2)(self.raw) };
        }
    }
}
