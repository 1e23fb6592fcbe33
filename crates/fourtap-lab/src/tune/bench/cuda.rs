//! On a CUDA device, by its clock: the same tensors for all choices.

use std::time::Duration;

use fourtap::Backend;
use fourtap::cuda::Cuda;
use fourtap::tuning::{Choice, Space};

use super::{Bench, refused};
use crate::array::Array;
use crate::computation::{Computation, TensorSet};
use crate::cuda::{DeviceTrial, Stopwatch};
use crate::error::Result;
use crate::record::Timing;
use crate::tune::Subject;
use crate::verification::Verification;

pub struct CudaTuneBench {
    space: &'static Space,
    stopwatch: Stopwatch,
    tensors: Tensors,
}

/// A computation and its tensors on the device, which borrow it.
struct Tensors {
    device: DeviceTrial<'static>,
    host: &'static dyn Computation,
}

impl CudaTuneBench {
    pub fn new(subject: &Subject, ordinal: usize, tensors: Box<dyn TensorSet>) -> Result<Self> {
        let cuda = Cuda::new(ordinal).map_err(fourtap::Error::from)?;
        // Kept as long as the process, which is there for this alone.
        let tensors: &'static dyn TensorSet = Box::leak(tensors);
        let trial = tensors.trial(Backend::Cuda(cuda), subject.direction)?;
        let host: &'static dyn Computation = Box::leak(trial);
        Ok(CudaTuneBench {
            space: subject.space,
            stopwatch: Stopwatch::new(cuda)?,
            tensors: Tensors {
                device: DeviceTrial::new(host, cuda.context())?,
                host,
            },
        })
    }

    fn chosen(&self, cuda: &Cuda, choice: &Choice) -> Result<Cuda> {
        let chosen = cuda.with_choice(self.space, choice);
        chosen.map_err(|why| refused(&choice.to_string(), why))
    }

    /// Gives as much memory to work in as the neediest of these takes.
    fn give_workspace(&mut self, choices: &[Cuda]) -> Result<()> {
        let mut most = None;
        for cuda in choices {
            let used = self.tensors.device.explain(cuda)?;
            most = most.max(used.workspace_bytes);
        }
        match most {
            Some(bytes) => {
                let context = self.stopwatch.cuda().context();
                self.tensors.device.give_workspace(context, bytes)
            }
            None => Ok(()),
        }
    }
}

impl Bench for CudaTuneBench {
    fn computed(&mut self, choice: &Choice) -> Result<Vec<Array>> {
        let cuda = self.chosen(self.stopwatch.cuda(), choice)?;
        self.give_workspace(&[cuda])?;
        let device = &mut self.tensors.device;
        self.stopwatch.once(|_| {
            device.poison(cuda.stream())?;
            device.queue(&cuda)
        })?;
        device.download()
    }

    fn repeats_bits(&mut self, choice: &Choice) -> Result<bool> {
        let cuda = self.chosen(self.stopwatch.cuda(), choice)?;
        Ok(self.tensors.device.explain(&cuda)?.reproducible)
    }

    fn verified(&self, outputs: &[Array], seed: u64) -> Result<Verification> {
        self.tensors.host.verified(outputs, seed)
    }

    fn timed(&mut self, choice: &Choice, budget: Duration) -> Result<(Timing, Vec<Array>)> {
        let cuda = self.chosen(self.stopwatch.cuda(), choice)?;
        self.give_workspace(&[cuda])?;
        let device = &mut self.tensors.device;
        // So that it is seen if what is timed does not compute.
        self.stopwatch.once(|cuda| device.poison(cuda.stream()))?;
        let timed = self.stopwatch.hot(budget, |_| device.queue(&cuda))?;
        Ok((timed.timing, device.download()?))
    }

    fn in_turns(
        &mut self,
        choices: &[Choice],
        next: &mut dyn FnMut(Option<f64>) -> Option<usize>,
    ) -> Result<()> {
        let here = self.stopwatch.cuda();
        let cudas = choices.iter().map(|choice| self.chosen(here, choice));
        let cudas = cudas.collect::<Result<Vec<Cuda>>>()?;
        self.give_workspace(&cudas)?;
        let device = &mut self.tensors.device;
        self.stopwatch
            .in_turns(cudas.len(), |_, index| device.queue(&cudas[index]), next)
    }
}
