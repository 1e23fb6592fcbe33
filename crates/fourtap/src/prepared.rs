//! A call between its check and its launch.

use std::fmt;

use crate::error::Result;

/// A call that was checked and planned but not launched: what `prepare_forward` and `prepare_backward` of an operator
/// return. Dropping it has no effect.
///
/// ```
/// use fourtap::dense::{self, Inputs, Options};
/// use fourtap::{Backend, View, ViewMut};
///
/// let (query, key, value) = ([0.0f32, 0.0], [1.0f32, 2.0], [10.0f32, 20.0]);
/// let shape = [1, 1, 2, 1];
/// let inputs = Inputs::new(View::new(&query, &shape), View::new(&key, &shape), View::new(&value, &shape));
/// let mut out = [f32::NAN; 2];
/// let outputs = ViewMut::new(&mut out, &[1, 1, 2, 1]);
/// let call = dense::prepare_forward(&Backend::default(), inputs, Options::default(), outputs)?;
/// assert_eq!(call.workspace_bytes(), 0);
/// call.launch()?;
/// assert_eq!(out, [15.0, 15.0]);
/// # Ok::<(), fourtap::Error>(())
/// ```
#[must_use = "nothing is computed until it is launched"]
pub struct Prepared<'a> {
    workspace_bytes: usize,
    launch: Box<dyn FnOnce(Option<Workspace>) -> Result<()> + Send + 'a>,
}

/// Device memory that the caller provides for one call.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "cuda"),
    expect(dead_code, reason = "only devices use a workspace")
)]
pub(crate) struct Workspace {
    /// Address of the first byte.
    pub address: u64,
    /// Its size.
    pub bytes: usize,
}

impl<'a> Prepared<'a> {
    /// `launch` gets the caller's workspace; with `None` it allocates its own.
    pub(crate) fn new(
        workspace_bytes: usize,
        launch: impl FnOnce(Option<Workspace>) -> Result<()> + Send + 'a,
    ) -> Self {
        Prepared {
            workspace_bytes,
            launch: Box::new(launch),
        }
    }

    /// Bytes of device memory it needs as a workspace; 0 on the CPU.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// Computes the result, or queues the work on the stream it was prepared for. The workspace is allocated on that stream.
    pub fn launch(self) -> Result<()> {
        (self.launch)(None)
    }

    /// Like [`Prepared::launch`], with a workspace that the caller provides. One smaller than
    /// [`Prepared::workspace_bytes`], or at an address that is not a multiple of 256, is refused.
    ///
    /// # Safety
    /// The memory belongs to the device that the call was prepared for, and nothing else uses it until the work is done.
    pub unsafe fn launch_in(self, address: u64, bytes: usize) -> Result<()> {
        (self.launch)(Some(Workspace { address, bytes }))
    }
}

impl fmt::Debug for Prepared<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared")
            .field("workspace_bytes", &self.workspace_bytes)
            .finish_non_exhaustive()
    }
}
