//! Graphs: work recorded once, launched many times.

use super::api;
use super::error::DriverResult;
use super::library::Handle;
use super::stream::Stream;

/// Recorded work, from [`Stream::end_capture`].
#[derive(Debug)]
pub struct Graph {
    raw: Handle,
}

// SAFETY: a graph may be used from any thread, by one at a time: it is not `Sync`.
unsafe impl Send for Graph {}

impl Graph {
    /// # Safety
    /// `raw` is a graph that nothing else destroys.
    pub(super) unsafe fn from_raw(raw: Handle) -> Self {
        Graph { raw }
    }

    /// How many operations were recorded.
    pub fn node_count(&self) -> DriverResult<usize> {
        let api = api()?;
        let mut count = 0;
        // SAFETY: the graph lives; without a place for nodes only their number is written.
        let status = unsafe { (api.cuGraphGetNodes)(self.raw, std::ptr::null_mut(), &mut count) };
        api.check(status, "count the graph's nodes")?;
        Ok(count)
    }

    /// Makes the graph ready to launch, in the context that is entered.
    pub fn instantiate(&self) -> DriverResult<GraphExec> {
        let api = api()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph lives, and one handle is written; 0 asks for nothing special.
        let status = unsafe { (api.cuGraphInstantiateWithFlags)(&mut raw, self.raw, 0) };
        api.check(status, "instantiate the graph")?;
        Ok(GraphExec { raw })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(api) = api() {
            // SAFETY: ours, and executable graphs made of it do not need it.
            unsafe { (api.cuGraphDestroy)(self.raw) };
        }
    }
}

/// A graph ready to launch. Two launches of one never overlap; the second waits.
#[derive(Debug)]
pub struct GraphExec {
    raw: Handle,
}

// SAFETY: as for `Graph`.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// Queues the recorded work on a stream, in the current context.
    ///
    /// # Safety
    /// All memory the recorded work touches is still allocated when it runs, and nothing else uses it meanwhile in a
    /// way that the recorded kernels do not allow.
    pub unsafe fn launch(&self, stream: Stream<'_>) -> DriverResult<()> {
        let api = api()?;
        // SAFETY: graph and stream live; the memory is the caller's promise.
        let status = unsafe { (api.cuGraphLaunch)(self.raw, stream.as_raw()) };
        api.check(status, "launch the graph")
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        if let Ok(api) = api() {
            // SAFETY: ours; a launch that still runs keeps what it needs.
            unsafe { (api.cuGraphExecDestroy)(self.raw) };
        }
    }
}
