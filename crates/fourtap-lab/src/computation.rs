//! What is verified and timed, for any operator.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use fourtap::cuda::Cuda;
use fourtap::tuning::Class;
use fourtap::{Backend, BoolView, DType, Prepared, View, ViewMut};

use crate::array::Array;
use crate::cli::Direction;
use crate::cuda::DeviceTrial;
use crate::error::Result;
use crate::record::{DTypes, KernelUsed, ProblemRecord, TrafficCounts};
use crate::roof::MinimumWork;
use crate::verification::Verification;

/// What tables know a computation by: the name of its kernel's space without the device it is for, as in "msda-forward", and
/// its problem.
pub type TuningKey = (&'static str, Class, DType);

/// What the model says of a computation before it is measured.
#[derive(Clone, Debug)]
pub struct CostEstimate {
    /// Bytes and operations, by the model.
    pub traffic: TrafficCounts,
    /// Share of the neighbours of samples that lie inside their level, where there are any.
    pub in_bounds_fraction: Option<f64>,
    /// Share of the pixels that some sample reads, likewise.
    pub touched_fraction: Option<f64>,
    /// What it cannot do without, if that is known.
    pub least: Option<MinimumWork>,
}

/// The tensors of a problem in host memory, random or of a file, checked to fit each other.
pub trait TensorSet: Debug {
    /// A pass over them.
    fn trial(&self, backend: Backend, pass: Direction) -> Result<Box<dyn Computation + '_>>;

    /// Names in the file that mean nothing to the operator.
    fn ignored(&self) -> &[String] {
        &[]
    }
}

/// What a computation reads, all in one memory.
#[derive(Clone, Debug)]
pub struct InputViews<'t> {
    /// In the order of [`Computation::tensors`].
    pub tensors: Vec<View<'t>>,
    /// In place of [`Computation::mask`].
    pub mask: Option<BoolView<'t>>,
}

/// One pass of an operator over tensors in host memory, to be repeated there, on copies or on a device.
pub trait Computation: Debug + Sync {
    /// What computes it.
    fn backend(&self) -> Backend;

    /// What is read, by name, in the order of [`Computation::prepare`].
    fn tensors(&self) -> Vec<(&'static str, View<'_>)>;

    /// The booleans that say what is left out, as the operator takes them, if it was told of any.
    fn mask(&self) -> Option<BoolView<'_>> {
        None
    }

    /// The names of [`Computation::outputs`].
    fn output_names(&self) -> &'static [&'static str];

    /// Tensors of NaN to compute into.
    fn outputs(&self) -> Result<Vec<Array>>;

    /// One call of the library, with other tensors of the same layouts.
    fn prepare<'t>(
        &'t self,
        backend: &Backend,
        inputs: &InputViews<'t>,
        outputs: Vec<ViewMut<'t>>,
    ) -> Result<Prepared<'t>>;

    /// Its sizes and element types, for a record.
    fn recorded(&self) -> (ProblemRecord, DTypes);

    /// Bytes that must move at least once.
    fn compulsory_bytes(&self) -> u64;

    /// All that can be counted of it.
    fn counted(&self) -> CostEstimate;

    /// The error of `outputs` against the oracle, or what is wrong with them; `seed` chooses what is compared.
    fn verified(&self, outputs: &[Array], seed: u64) -> Result<Verification>;

    /// Which kernels serve it on a device.
    fn kernel<'t>(
        &'t self,
        cuda: &Cuda,
        inputs: &InputViews<'t>,
        outputs: Vec<ViewMut<'t>>,
    ) -> Result<KernelUsed>;

    /// What tables know it by.
    fn tuned_as(&self) -> TuningKey;

    /// Whether tables choose its kernels on a CUDA device, too.
    fn is_tuned_on_cuda(&self) -> bool {
        true
    }

    /// Whether the device has a fast mode and a bitwise reproducible one.
    fn has_modes(&self) -> bool {
        false
    }

    /// The device with the baseline kernel, one thread per channel; none if there is only one kernel.
    fn baseline(&self, _: &Cuda) -> Option<Cuda> {
        None
    }

    /// Computes once, in host memory, into what [`Computation::outputs`] gave.
    fn compute(&self, outputs: &mut [Array]) -> Result<()> {
        let inputs = InputViews {
            tensors: self.tensors().into_iter().map(|(_, view)| view).collect(),
            mask: self.mask(),
        };
        let outputs = outputs.iter_mut().map(Array::view_mut).collect();
        Ok(self.prepare(&self.backend(), &inputs, outputs)?.launch()?)
    }
}

/// Computes once, into new tensors, and says how long that took. On a CUDA device that includes loading its kernels,
/// which may mean compiling them, but no copies.
pub fn computed(computation: &dyn Computation) -> Result<(Vec<Array>, Duration)> {
    match computation.backend() {
        Backend::Cuda(cuda) => {
            let mut device = DeviceTrial::new(computation, cuda.context())?;
            // What is never written is then NaN, not what somebody left there.
            device.poison(cuda.stream())?;
            let begun = Instant::now();
            device.queue(&cuda)?;
            cuda.context().synchronize()?;
            let took = begun.elapsed();
            Ok((device.download()?, took))
        }
        _ => {
            let mut outputs = computation.outputs()?;
            let begun = Instant::now();
            computation.compute(&mut outputs)?;
            Ok((outputs, begun.elapsed()))
        }
    }
}
