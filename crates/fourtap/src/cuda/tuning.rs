//! What is chosen about the CUDA kernels: by the caller, or by a table.

use super::{Cuda, dense, msda};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tuning::{Choice, Class, Entry, Space, active};

pub(crate) static SPACES: [&Space; 3] = [
    &msda::tuning::FORWARD,
    &msda::tuning::BACKWARD,
    &dense::tuning::FORWARD,
];

/// What a caller has chosen, whatever tables say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Asked {
    /// Nothing: tables are looked into.
    #[default]
    Nothing,
    MsdaForward(msda::ForwardTuning),
    MsdaBackward(msda::BackwardTuning),
    DenseForward(dense::Tuning),
}

impl Asked {
    pub(super) fn msda_forward(self) -> Option<msda::ForwardTuning> {
        match self {
            Asked::MsdaForward(tuning) => Some(tuning),
            _ => None,
        }
    }

    pub(super) fn msda_backward(self) -> Option<msda::BackwardTuning> {
        match self {
            Asked::MsdaBackward(tuning) => Some(tuning),
            _ => None,
        }
    }

    pub(super) fn dense_forward(self) -> Option<dense::Tuning> {
        match self {
            Asked::DenseForward(tuning) => Some(tuning),
            _ => None,
        }
    }
}

impl Cuda {
    /// As a choice about one of its kernels says, whatever tables say. A call that cannot be computed so is refused, by
    /// kernels that are asked for by name otherwise ([`Cuda::with_kernel`]) it is not looked at.
    pub fn with_choice(self, space: &Space, choice: &Choice) -> std::result::Result<Self, String> {
        let asked = match space.kernel {
            kernel if kernel == SPACES[0].kernel => {
                Asked::MsdaForward(msda::ForwardTuning::of(choice))
            }
            kernel if kernel == SPACES[1].kernel => {
                Asked::MsdaBackward(msda::BackwardTuning::of(choice))
            }
            kernel if kernel == SPACES[2].kernel => Asked::DenseForward(dense::Tuning::of(choice)),
            other => return Err(format!("{other} is not a kernel of CUDA devices")),
        };
        Ok(Cuda { asked, ..self })
    }

    /// What tables know this device by.
    pub fn tuning_device(&self) -> &str {
        &self.device().facts().name
    }

    /// The entry of a table that a call of the kernel of this space would go by; none where the caller has chosen, a part of
    /// the device or a kernel by its name included, or no table knows such problems. Deterministic calls go by no entry
    /// whose results differ from the defaults' in any bit.
    pub fn chosen(
        &self,
        space: &Space,
        class: Class,
        dtype: DType,
    ) -> Result<Option<&'static Entry>> {
        let is_chosen = self.asked != Asked::Nothing
            || self.kernel != msda::Wanted::Best
            || self.multiprocessors.is_some();
        if is_chosen {
            return Ok(None);
        }
        let is_here = |device: &str| device == self.tuning_device();
        let other_bits = !self.deterministic;
        Ok(active()?.find(space.kernel, (class, dtype), is_here, other_bits))
    }

    /// A plan: as the caller chose, as a table says if that serves the call, or as usual.
    pub(super) fn planned<Tuning: Default, Plan>(
        &self,
        asked: Option<Tuning>,
        by_table: impl FnOnce() -> Result<Option<Tuning>>,
        plan: impl Fn(&Tuning) -> Result<Plan>,
    ) -> Result<Plan> {
        if let Some(tuning) = asked {
            return plan(&tuning);
        }
        // What was measured on row-major tensors need not serve others; any other error the usual way would meet as well.
        if let Some(tuning) = by_table()?
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
