//! What is chosen about the CUDA kernels: by the caller, or by a table.

use super::handle::Cuda;
use super::{dense, msda};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tuning::spaces::cuda::{DENSE_FORWARD, MSDA_BACKWARD, MSDA_FORWARD};
use crate::tuning::{Choice, Class, Entry, Space, active};

impl Cuda {
    /// As a choice about one of its kernels says, whatever tables say. A call that cannot be computed so is refused; by
    /// kernels that are asked for by name otherwise ([`Cuda::with_msda`]) it is not looked at.
    pub fn with_choice(self, space: &Space, choice: &Choice) -> std::result::Result<Self, String> {
        let msda = self.settings().msda;
        match space.kernel {
            kernel if kernel == MSDA_FORWARD.kernel => Ok(self.with_msda(msda::Options {
                forward: Some(msda::ForwardTuning::of(choice)),
                ..msda
            })),
            kernel if kernel == MSDA_BACKWARD.kernel => Ok(self.with_msda(msda::Options {
                backward: Some(msda::BackwardTuning::of(choice)),
                ..msda
            })),
            kernel if kernel == DENSE_FORWARD.kernel => Ok(self.with_dense(dense::Options {
                forward: Some(dense::Tuning::of(choice)),
            })),
            other => Err(format!("{other} is not a kernel of CUDA devices")),
        }
    }

    /// What tables know this device by.
    pub fn tuning_device(&self) -> &str {
        &self.device().facts().name
    }

    /// The entry of a table that a call of the kernel of this space would go by; none where the caller has chosen, a part of
    /// the device or a kernel by its name included, or no table knows such problems. Deterministic calls go by no entry
    /// whose results differ from the defaults' in any bit.
    pub fn chosen(&self, space: &Space, class: Class, dtype: DType) -> Option<&'static Entry> {
        let settings = self.settings();
        let is_chosen = settings.multiprocessors.is_some()
            || match class {
                Class::Msda { .. } => settings.msda != msda::Options::default(),
                Class::Dense { .. } => settings.dense != dense::Options::default(),
            };
        if is_chosen {
            return None;
        }
        let is_here = |device: &str| device == self.tuning_device();
        let allow_rounding_changes = !settings.deterministic;
        active().find(
            space.kernel,
            (class, dtype),
            is_here,
            allow_rounding_changes,
        )
    }

    /// A plan: as the caller chose, as a table says if that serves the call, or as usual.
    pub(super) fn planned<Tuning: Default, Plan>(
        &self,
        asked: Option<Tuning>,
        by_table: impl FnOnce() -> Option<Tuning>,
        plan: impl Fn(&Tuning) -> Result<Plan>,
    ) -> Result<Plan> {
        if let Some(tuning) = asked {
            return plan(&tuning);
        }
        // What was measured on row-major tensors need not serve others; any other error the usual way would meet as well.
        if let Some(tuning) = by_table()
            && let Ok(plan) = plan(&tuning)
        {
            return Ok(plan);
        }
        plan(&Tuning::default())
    }
}

/// That a call cannot be computed as chosen.
pub(super) fn refused(why: String) -> Error {
    Error::Unsupported {
        backend: "cuda",
        expected: "a problem that can be computed with the parameters chosen".to_string(),
        found: why,
    }
}
