//! Benchmarks on a CUDA device.

use std::time::Duration;

use fourtap::cuda::Cuda;
use fourtap::cuda::msda::Wanted;

use super::{Measured, Task};
use crate::array::Array;
use crate::cuda::{DeviceTrial, Explained, Hot, Mode, Stopwatch, copy, gather};
use crate::error::Result;
use crate::record::{Beside, Ceiling, CudaResult, gb_s};
use crate::statistics::Summary;
use crate::target::Device;
use crate::verification::Verification;

/// A device to time on, and what it can do at most.
#[derive(Debug)]
pub struct CudaBench {
    stopwatch: Stopwatch,
    /// The one asked for.
    mode: Mode,
    /// Copy, then gather.
    ceilings: [Ceiling; 2],
}

/// One way to compute a trial.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// What the error of a wrong result begins with.
    whose: &'static str,
    /// None for the one asked for.
    kernel: Option<Wanted>,
    mode: Mode,
}

/// A way whose result was right.
#[derive(Debug)]
struct Timed {
    explained: Explained,
    verification: Verification,
    hot: Hot,
}

impl CudaBench {
    /// Measures the ceilings of the device, which everything after is a share of.
    pub fn new(cuda: Cuda, mode: Mode, device: &Device, budget: Duration) -> Result<Self> {
        let stopwatch = Stopwatch::new(cuda)?;
        let ceilings = [
            Ceiling::new(copy(&stopwatch, budget)?, device),
            Ceiling::new(gather(&stopwatch, budget)?, device),
        ];
        Ok(CudaBench {
            stopwatch,
            mode,
            ceilings,
        })
    }

    /// Copy, then gather.
    pub fn ceilings(&self) -> &[Ceiling; 2] {
        &self.ceilings
    }

    /// Verifies, then times, first what was asked for, then what stands beside it: backward's deterministic mode and
    /// the ruler.
    pub fn measured(&mut self, task: &Task<'_>, say: impl Fn(&str)) -> Result<Measured> {
        say("copying to the device");
        let mut device = DeviceTrial::new(task.trial, self.stopwatch.cuda().context())?;
        let asked = Way {
            whose: "",
            kernel: None,
            mode: self.mode,
        };
        let deterministic = Way {
            whose: "deterministic mode: ",
            mode: Mode::Deterministic,
            ..asked
        };
        let ruler = Way {
            whose: "ruler: ",
            kernel: Some(Wanted::Channel),
            ..asked
        };

        say("verifying and timing");
        let timed = self.timed(task, &mut device, asked)?;
        say("timing with cold caches");
        let cold_samples_ms = self
            .stopwatch
            .cold(task.budget, |cuda| device.queue(&asked.on(cuda)))?;
        let deterministic = match timed.explained.reproducible {
            true => None,
            false => {
                say("verifying and timing deterministic mode");
                Some(self.timed(task, &mut device, deterministic)?)
            }
        };
        // By what is compiled: the same kernels may have been chosen for another reason.
        let of_ruler = device.explain(&ruler.on(self.stopwatch.cuda()))?;
        let ruler = match of_ruler.fingerprint != timed.explained.fingerprint {
            true => {
                say("verifying and timing the ruler");
                Some(self.timed(task, &mut device, ruler)?)
            }
            false => None,
        };

        let (hot, cold) = (
            Summary::of(&timed.hot.samples_ms),
            Summary::of(&cold_samples_ms),
        );
        let traffic = task.trial.traffic();
        let backward = task.trial.grad_out().is_some();
        let [copy, gather] = &self.ceilings;
        let share_of_gather = gb_s(traffic.gathered_bytes, hot.median) / gather.gb_s;
        Ok(Measured {
            verification: timed.verification,
            cuda: Some(CudaResult {
                kernel: timed.explained.kernel,
                kernel_fingerprint: timed.explained.fingerprint,
                mode: backward.then_some(asked.mode),
                reproducible: timed.explained.reproducible,
                workspace_bytes: timed.explained.workspace_bytes,
                launches_a_sample: timed.hot.launches,
                cold_median_ms: cold.median,
                cold_ci_low_ms: cold.low,
                cold_ci_high_ms: cold.high,
                cold_samples_ms,
                share_of_gather_ceiling: (!backward).then_some(share_of_gather),
                share_of_dram_floor: gb_s(traffic.compulsory_bytes, hot.median) / copy.gb_s,
                deterministic: deterministic.map(Beside::from),
                ruler: ruler.map(Beside::from),
            }),
            samples_ms: timed.hot.samples_ms,
        })
    }

    /// One way: its result must be right before it is timed, and after.
    fn timed(&self, task: &Task<'_>, device: &mut DeviceTrial<'_>, way: Way) -> Result<Timed> {
        let cuda = way.on(self.stopwatch.cuda());
        let explained = device.explain(&cuda)?;
        if let Some(bytes) = explained.workspace_bytes {
            device.give_workspace(cuda.context(), bytes)?;
        }
        self.stopwatch.once(|cuda| {
            device.poison(cuda.stream())?;
            device.queue(&way.on(cuda))
        })?;
        let right = device.download()?;
        let verification = task.verified(way.whose, &right)?;
        // So that it is seen if what is timed does not compute.
        self.stopwatch.once(|cuda| device.poison(cuda.stream()))?;
        let hot = self
            .stopwatch
            .hot(task.budget, |cuda| device.queue(&way.on(cuda)))?;
        let after = device.download()?;
        let same = |(right, after): (&Array, &Array)| right.bytes() == after.bytes();
        if !explained.reproducible {
            // Bits that may differ must still be right.
            task.verified(way.whose, &after)?;
        } else if !right.iter().zip(&after).all(same) {
            let found = "the timed launches computed other bits than the first";
            return Err(task.wrong(way.whose, found));
        }
        Ok(Timed {
            explained,
            verification,
            hot,
        })
    }
}

impl Way {
    fn on(self, cuda: &Cuda) -> Cuda {
        let cuda = self.mode.on(cuda);
        match self.kernel {
            Some(kernel) => cuda.with_kernel(kernel),
            None => cuda,
        }
    }
}

impl From<Timed> for Beside {
    fn from(timed: Timed) -> Self {
        let summary = Summary::of(&timed.hot.samples_ms);
        Beside {
            kernel: timed.explained.kernel,
            kernel_fingerprint: timed.explained.fingerprint,
            workspace_bytes: timed.explained.workspace_bytes,
            verification: timed.verification,
            samples_ms: timed.hot.samples_ms,
            median_ms: summary.median,
            ci_low_ms: summary.low,
            ci_high_ms: summary.high,
        }
    }
}
