//! Benchmarks on a CUDA device.

use std::time::Duration;

use fourtap::cuda::Cuda;
use fourtap::cuda::msda::Wanted;

use super::Measured;
use crate::array::Array;
use crate::cuda::{DeviceTrial, Explained, Hot, Stopwatch, copy, gather};
use crate::error::Result;
use crate::record::{Ceiling, CudaResult, Ruler, gb_s};
use crate::statistics::Summary;
use crate::target::Device;
use crate::trial::Trial;
use crate::verification::{Verification, verify};

/// A device to time on, and what it can do at most.
#[derive(Debug)]
pub struct CudaBench {
    stopwatch: Stopwatch,
    /// Copy, then gather.
    ceilings: [Ceiling; 2],
}

/// A kernel whose result was right.
struct Timed {
    explained: Option<Explained>,
    verification: Verification,
    hot: Hot,
}

impl CudaBench {
    /// Measures the ceilings of the device, which everything after is a share of.
    pub fn new(cuda: Cuda, device: &Device, budget: Duration) -> Result<Self> {
        let stopwatch = Stopwatch::new(cuda)?;
        let ceilings = [
            Ceiling::new(copy(&stopwatch, budget)?, device),
            Ceiling::new(gather(&stopwatch, budget)?, device),
        ];
        Ok(CudaBench {
            stopwatch,
            ceilings,
        })
    }

    /// Copy, then gather.
    pub fn ceilings(&self) -> &[Ceiling; 2] {
        &self.ceilings
    }

    /// Verifies, then times, first the kernel asked for, then the ruler. The inner error says in words what is wrong
    /// with a result.
    pub fn measured(
        &mut self,
        trial: &Trial<'_>,
        seed: u64,
        budget: Duration,
        say: impl Fn(&str),
    ) -> Result<std::result::Result<Measured, String>> {
        say("copying to the device");
        let mut device = DeviceTrial::new(trial, self.stopwatch.cuda().context())?;
        let as_asked = |cuda: &Cuda| *cuda;
        say("verifying and timing");
        let timed = match self.timed(trial, &mut device, seed, budget, as_asked)? {
            Ok(timed) => timed,
            Err(found) => return Ok(Err(found)),
        };
        say("timing with cold caches");
        let cold_samples_ms = self.stopwatch.cold(budget, |cuda| device.queue(cuda))?;
        say("verifying and timing the ruler");
        let ruler = |cuda: &Cuda| cuda.with_kernel(Wanted::Channel);
        // By what is compiled: the same kernel may have been chosen for another reason.
        let compiled = |explained: &Option<Explained>| explained.clone().map(|it| it.fingerprint);
        let is_ruler =
            compiled(&device.explain(&ruler(self.stopwatch.cuda()))?) == compiled(&timed.explained);
        let ruler = match is_ruler {
            true => None,
            false => match self.timed(trial, &mut device, seed, budget, ruler)? {
                Ok(ruler) => Some(ruler),
                Err(found) => return Ok(Err(format!("ruler: {found}"))),
            },
        };

        let (hot, cold) = (
            Summary::of(&timed.hot.samples_ms),
            Summary::of(&cold_samples_ms),
        );
        let traffic = trial.traffic();
        let [copy, gather] = &self.ceilings;
        let (kernel, kernel_fingerprint) = named(timed.explained);
        Ok(Ok(Measured {
            verification: timed.verification,
            cuda: Some(CudaResult {
                kernel,
                kernel_fingerprint,
                launches_a_sample: timed.hot.launches,
                cold_median_ms: cold.median,
                cold_ci_low_ms: cold.low,
                cold_ci_high_ms: cold.high,
                cold_samples_ms,
                share_of_gather_ceiling: gb_s(traffic.gathered_bytes, hot.median) / gather.gb_s,
                share_of_dram_floor: gb_s(traffic.compulsory_bytes, hot.median) / copy.gb_s,
                ruler: ruler.map(Ruler::from),
            }),
            samples_ms: timed.hot.samples_ms,
        }))
    }

    /// One kernel, chosen by `with`: its result must be right before and the same after it was timed.
    fn timed(
        &self,
        trial: &Trial<'_>,
        device: &mut DeviceTrial<'_>,
        seed: u64,
        budget: Duration,
        with: impl Fn(&Cuda) -> Cuda,
    ) -> Result<std::result::Result<Timed, String>> {
        let explained = device.explain(&with(self.stopwatch.cuda()))?;
        self.stopwatch.once(|cuda| {
            device.poison(cuda.stream())?;
            device.queue(&with(cuda))
        })?;
        let right = device.download()?;
        let verification = match verify(trial, &right, seed)? {
            Ok(verification) => verification,
            Err(found) => return Ok(Err(found)),
        };
        // So that it is seen if what is timed does not compute.
        self.stopwatch.once(|cuda| device.poison(cuda.stream()))?;
        let hot = self
            .stopwatch
            .hot(budget, |cuda| device.queue(&with(cuda)))?;
        let after = device.download()?;
        let same = |(right, after): (&Array, &Array)| right.bytes() == after.bytes();
        if !right.iter().zip(&after).all(same) {
            return Ok(Err(
                "the timed launches computed other bits than the first".to_string()
            ));
        }
        Ok(Ok(Timed {
            explained,
            verification,
            hot,
        }))
    }
}

fn named(explained: Option<Explained>) -> (Option<String>, Option<String>) {
    explained
        .map(|explained| (explained.kernel, explained.fingerprint))
        .unzip()
}

impl From<Timed> for Ruler {
    fn from(timed: Timed) -> Self {
        let summary = Summary::of(&timed.hot.samples_ms);
        let (kernel, kernel_fingerprint) = named(timed.explained);
        Ruler {
            kernel,
            kernel_fingerprint,
            verification: timed.verification,
            samples_ms: timed.hot.samples_ms,
            median_ms: summary.median,
            ci_low_ms: summary.low,
            ci_high_ms: summary.high,
        }
    }
}
