//! Tuning of the CUDA kernels: by the caller or by a table.

use super::handle::Cuda;
use super::{dense, msda};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tuning::spaces::cuda::{DENSE_FORWARD, MSDA_BACKWARD, MSDA_FORWARD};
use crate::tuning::{Choice, Class, Entry, Space, active};

impl Cuda {
    /// With a tuning choice for one of its kernels, overriding the tables. A call that cannot be computed with it is
    /// refused; kernels selected by name ([`Cuda::with_msda`]) ignore it.
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
                ..self.settings().dense
            })),
            other => Err(format!("{other} is not a kernel of CUDA devices")),
        }
    }

    /// The key of this device in tuning tables.
    pub fn tuning_device(&self) -> &str {
        &self.device().facts().name
    }

    /// The table entry that a call of this kernel would use; `None` if the caller has chosen the tuning, a kernel or a part
    /// of the device, or if no table has an entry for such problems. Deterministic calls use no entry whose results may
    /// differ from the defaults' in any bit.
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

    /// A plan: as the caller chose, else by a table entry that can serve the call, else by default.
    pub(super) fn planned<Tuning: Default, Plan>(
        &self,
        asked: Option<Tuning>,
        by_table: impl FnOnce() -> Option<Tuning>,
        plan: impl Fn(&Tuning) -> Result<Plan>,
    ) -> Result<Plan> {
        if let Some(tuning) = asked {
            return plan(&tuning);
        }
        // An entry measured on row-major tensors may not work for others; any other error would also occur by default.
        if let Some(tuning) = by_table()
            && let Ok(plan) = plan(&tuning)
        {
            return Ok(plan);
        }
        plan(&Tuning::default())
    }
}

/// The error for a call that cannot be computed with the chosen parameters.
pub(super) fn refused(why: String) -> Error {
    Error::Unsupported {
        backend: "cuda",
        expected: "a problem that can be computed with the parameters chosen".to_string(),
        found: why,
    }
}
