//! Where a call runs: the one place that knows the backends by name.

use crate::bool_view::BoolView;
use crate::cpu::Cpu;
#[cfg(feature = "cuda")]
use crate::cuda::Cuda;
use crate::error::Result;
use crate::msda::projections::{
    self, ProjectedBackward, ProjectedForward, ProjectionGradients, Projections, ZeroPixels,
};
use crate::place::Place;
use crate::prepared::Prepared;
use crate::tensor::{View, ViewMut};
use crate::{dense, msda};

/// Where a call runs.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum Backend {
    /// Where the data is: on a CUDA device its default stream is used.
    #[default]
    Auto,
    /// This processor, all threads of the current rayon pool unless it says otherwise.
    Cpu(Cpu),
    /// A CUDA device, on one of its streams. A call returns once its work is queued there.
    #[cfg(feature = "cuda")]
    Cuda(Cuda),
}

/// The backend of a call, with [`Backend::Auto`] resolved.
enum ResolvedBackend {
    Cpu(Cpu),
    #[cfg(feature = "cuda")]
    Cuda(Cuda),
}

impl Backend {
    /// The backend for tensors in `place`. Each backend checks itself whether it can use them.
    fn resolve(&self, place: Place) -> Result<ResolvedBackend> {
        match (*self, place) {
            #[cfg(feature = "cuda")]
            (Backend::Auto, Place::Cuda { ordinal }) => {
                Ok(ResolvedBackend::Cuda(Cuda::new(ordinal)?))
            }
            (Backend::Auto, _) => Ok(ResolvedBackend::Cpu(Cpu::new())),
            (Backend::Cpu(cpu), _) => Ok(ResolvedBackend::Cpu(cpu)),
            #[cfg(feature = "cuda")]
            (Backend::Cuda(cuda), _) => Ok(ResolvedBackend::Cuda(cuda)),
        }
    }
}

impl msda::Implementation for Backend {
    fn prepare_forward<'a>(
        &self,
        inputs: msda::Inputs<'a>,
        out: ViewMut<'a>,
    ) -> Result<Prepared<'a>> {
        match self.resolve(inputs.value.place()) {
            Ok(ResolvedBackend::Cpu(cpu)) => msda::prepare_forward(&cpu, inputs, out),
            #[cfg(feature = "cuda")]
            Ok(ResolvedBackend::Cuda(cuda)) => msda::prepare_forward(&cuda, inputs, out),
            // An invalid call is reported before a missing backend.
            Err(none) => msda::Forward::new(inputs, out).and(Err(none)),
        }
    }

    fn prepare_backward<'a>(
        &self,
        inputs: msda::Inputs<'a>,
        grad_out: View<'a>,
        gradients: msda::Gradients<'a>,
    ) -> Result<Prepared<'a>> {
        match self.resolve(inputs.value.place()) {
            Ok(ResolvedBackend::Cpu(cpu)) => {
                msda::prepare_backward(&cpu, inputs, grad_out, gradients)
            }
            #[cfg(feature = "cuda")]
            Ok(ResolvedBackend::Cuda(cuda)) => {
                msda::prepare_backward(&cuda, inputs, grad_out, gradients)
            }
            Err(none) => msda::Backward::new(inputs, grad_out, gradients).and(Err(none)),
        }
    }

    fn prepare_projected_forward<'a>(
        &self,
        inputs: Projections<'a>,
        out: ViewMut<'a>,
    ) -> Result<Prepared<'a>> {
        match self.resolve(inputs.value.place()) {
            Ok(ResolvedBackend::Cpu(cpu)) => projections::prepare_forward(&cpu, inputs, out),
            #[cfg(feature = "cuda")]
            Ok(ResolvedBackend::Cuda(cuda)) => projections::prepare_forward(&cuda, inputs, out),
            Err(none) => ProjectedForward::new(inputs, out).and(Err(none)),
        }
    }

    fn prepare_projected_backward<'a>(
        &self,
        inputs: Projections<'a>,
        grad_out: View<'a>,
        gradients: ProjectionGradients<'a>,
    ) -> Result<Prepared<'a>> {
        match self.resolve(inputs.value.place()) {
            Ok(ResolvedBackend::Cpu(cpu)) => {
                projections::prepare_backward(&cpu, inputs, grad_out, gradients)
            }
            #[cfg(feature = "cuda")]
            Ok(ResolvedBackend::Cuda(cuda)) => {
                projections::prepare_backward(&cuda, inputs, grad_out, gradients)
            }
            Err(none) => ProjectedBackward::new(inputs, grad_out, gradients).and(Err(none)),
        }
    }

    fn prepare_zero_pixels<'a>(
        &self,
        value: ViewMut<'a>,
        mask: BoolView<'a>,
    ) -> Result<Prepared<'a>> {
        match self.resolve(value.place()) {
            Ok(ResolvedBackend::Cpu(cpu)) => projections::prepare_zero_pixels(&cpu, value, mask),
            #[cfg(feature = "cuda")]
            Ok(ResolvedBackend::Cuda(cuda)) => projections::prepare_zero_pixels(&cuda, value, mask),
            Err(none) => ZeroPixels::new(value, mask).and(Err(none)),
        }
    }
}

impl dense::Implementation for Backend {
    fn prepare_forward<'a>(
        &self,
        inputs: dense::Inputs<'a>,
        options: dense::Options,
        outputs: dense::Outputs<'a>,
    ) -> Result<Prepared<'a>> {
        match self.resolve(inputs.query.place()) {
            Ok(ResolvedBackend::Cpu(cpu)) => dense::prepare_forward(&cpu, inputs, options, outputs),
            #[cfg(feature = "cuda")]
            Ok(ResolvedBackend::Cuda(cuda)) => {
                dense::prepare_forward(&cuda, inputs, options, outputs)
            }
            Err(none) => dense::Forward::new(inputs, options, outputs).and(Err(none)),
        }
    }
    fn prepare_backward<'a>(
        &self,
        inputs: dense::Inputs<'a>,
        options: dense::Options,
        results: dense::ForwardResults<'a>,
        grad_out: View<'a>,
        gradients: dense::Gradients<'a>,
    ) -> Result<Prepared<'a>> {
        match self.resolve(inputs.query.place()) {
            Ok(ResolvedBackend::Cpu(cpu)) => {
                dense::prepare_backward(&cpu, inputs, options, results, grad_out, gradients)
            }
            #[cfg(feature = "cuda")]
            Ok(ResolvedBackend::Cuda(cuda)) => {
                dense::prepare_backward(&cuda, inputs, options, results, grad_out, gradients)
            }
            Err(none) => {
                dense::Backward::new(inputs, options, results, grad_out, gradients).and(Err(none))
            }
        }
    }
}
