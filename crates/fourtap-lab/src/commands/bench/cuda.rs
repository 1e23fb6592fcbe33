//! Benchmarks on a CUDA device.

use std::time::Duration;

use fourtap::Backend;
use fourtap::cuda::Cuda;
use fourtap::cuda::driver::DriverError;

use super::task::{BenchResult, Task};
use super::turns::served::Turns;
use crate::array::Array;
use crate::choices::Choices;
use crate::computation::Computation;
use crate::cuda::{DeviceTiming, DeviceTrial, Mode, Stopwatch};
use crate::error::{Error, Result};
use crate::operators::Operator;
use crate::probe::{self, Setting, found_by};
use crate::record::{AlternativeResult, KernelUsed, ProbeRecord};
use crate::target::Device;
use crate::verification::Verification;

/// The probes that bound a result, or that it is shown as a share of.
const CEILINGS: [&str; 3] = ["copy", "dram-read", "l2-read"];

/// Copies of the inputs in turn shall take this many times what the L2 cache holds.
const ROTATED: u64 = 4;

/// More copies than this are of so small a problem that the cache holds it whatever one does.
const MOST_SETS: u64 = 128;

/// A device to time on.
#[derive(Debug)]
pub struct CudaBench {
    stopwatch: Stopwatch,
    /// The one asked for.
    mode: Mode,
}

/// One kernel variant to compute a trial with.
#[derive(Clone, Copy, Debug)]
struct Variant {
    /// What it is to the one asked for; empty for that itself.
    role: &'static str,
    /// Whether by the baseline kernel, one thread per channel.
    is_baseline: bool,
    mode: Mode,
}

/// What a variant gave.
#[derive(Debug)]
struct VariantResult {
    kernel: KernelUsed,
    verification: Verification,
    /// None if its result was wrong.
    hot: Option<DeviceTiming>,
    /// Its result, if it was right.
    right: Vec<Array>,
}

impl CudaBench {
    /// To time on this device.
    pub fn new(cuda: Cuda, mode: Mode) -> Result<Self> {
        let stopwatch = Stopwatch::new(cuda)?;
        Ok(CudaBench { stopwatch, mode })
    }

    /// The ceilings that results of these operators are compared with.
    pub fn ceilings(
        &self,
        device: &Device,
        operators: &[&'static dyn Operator],
        budget: Duration,
    ) -> Vec<ProbeRecord> {
        let special = operators.iter().flat_map(|it| it.ceilings(true));
        let names: Vec<&str> = CEILINGS.iter().chain(special).copied().collect();
        let setting = Setting {
            device,
            budget,
            stopwatch: Some(&self.stopwatch),
        };
        found_by(&probe::cuda::probes(), &names, &setting)
    }

    /// Bytes of the L2 cache.
    pub fn l2_bytes(&self) -> u64 {
        u64::from(self.stopwatch.cuda().device().facts().l2_bytes)
    }

    /// Verifies, then times, first what was asked for, then what stands beside it: backward's deterministic mode and
    /// the baseline.
    pub fn measured(&mut self, task: &Task<'_>, say: impl Fn(&str)) -> Result<BenchResult> {
        say("copying to the device");
        let mut device = DeviceTrial::new(task.trial, self.stopwatch.cuda().context())?;
        let asked = Variant {
            role: "",
            is_baseline: false,
            mode: self.mode,
        };
        let deterministic = Variant {
            role: "deterministic",
            mode: Mode::Deterministic,
            ..asked
        };
        let baseline = Variant {
            role: "baseline",
            is_baseline: true,
            ..asked
        };

        say("verifying and timing");
        let tried = self.tried(task, &mut device, asked)?;
        let kernel = KernelUsed {
            mode: task.trial.has_modes().then_some(asked.mode),
            ..tried.kernel
        };
        let mut measured = BenchResult::new(kernel, tried.verification);
        let Some(hot) = tried.hot else {
            return Ok(measured);
        };
        measured.hot = Some(hot.timing);
        measured.conditions = Some(hot.conditions);
        say("timing cold, on rotating inputs");
        measured.cold = self
            .cold(task, &measured.kernel, &tried.right, asked)?
            .map(|timed| timed.timing);
        drop(tried.right);

        if !measured.kernel.reproducible {
            say("verifying and timing deterministic mode");
            let tried = self.tried(task, &mut device, deterministic)?;
            measured.beside.push(tried.beside(deterministic));
        }
        // By what is compiled: the same kernels may have been chosen for another reason.
        let of_baseline = device.explain(&baseline.on(self.stopwatch.cuda(), task.trial))?;
        if of_baseline.fingerprint != measured.kernel.fingerprint {
            say("verifying and timing the baseline");
            let tried = self.tried(task, &mut device, baseline)?;
            measured.beside.push(tried.beside(baseline));
        }
        Ok(measured)
    }

    /// Verifies, then computes when it is told to.
    pub fn in_turns(&self, task: &Task<'_>, turns: &mut Turns) -> Result<()> {
        let mut device = DeviceTrial::new(task.trial, self.stopwatch.cuda().context())?;
        let variant = Variant {
            role: "",
            is_baseline: false,
            mode: self.mode,
        };
        let tried = self.verified(task, &mut device, variant)?;
        turns.ready(task.name, tried.verification.found.clone())?;
        if !tried.verification.passed {
            return Ok(());
        }
        self.stopwatch.once(|cuda| device.poison(cuda.stream()))?;
        let mut failed = None;
        self.stopwatch.in_turns(
            1,
            |cuda, _| device.queue(&variant.on(cuda, task.trial)),
            |last| match turns.goes_on(last) {
                Ok(goes_on) => goes_on.then_some(0),
                Err(error) => {
                    failed = Some(error);
                    None
                }
            },
        )?;
        if let Some(error) = failed {
            return Err(error);
        }
        let after = device.download()?;
        turns.done(task.still_right(tried.kernel.reproducible, &tried.right, &after)?)
    }

    /// One variant, not timed yet.
    fn verified(
        &self,
        task: &Task<'_>,
        device: &mut DeviceTrial<'_>,
        variant: Variant,
    ) -> Result<VariantResult> {
        let cuda = variant.on(self.stopwatch.cuda(), task.trial);
        let mut kernel = device.explain(&cuda)?;
        let choices = Choices::on(&Backend::Cuda(cuda), task.trial);
        if let Some(entry) = choices.entry {
            kernel.words += &format!(", tuned: {}", entry.choice);
            let tuned = entry.choice.into();
            kernel.parameters.insert("tuned".to_string(), tuned);
        }
        if let Some(bytes) = kernel.workspace_bytes {
            device.give_workspace(cuda.context(), bytes)?;
        }
        self.stopwatch.once(|cuda| {
            device.poison(cuda.stream())?;
            device.queue(&variant.on(cuda, task.trial))
        })?;
        let right = device.download()?;
        Ok(VariantResult {
            kernel,
            verification: task.verified(&right)?,
            hot: None,
            right,
        })
    }

    /// One variant: its result must be right before it is timed, and after.
    fn tried(
        &self,
        task: &Task<'_>,
        device: &mut DeviceTrial<'_>,
        variant: Variant,
    ) -> Result<VariantResult> {
        let mut tried = self.verified(task, device, variant)?;
        if !tried.verification.passed {
            return Ok(tried);
        }
        // So that it is seen if what is timed does not compute.
        self.stopwatch.once(|cuda| device.poison(cuda.stream()))?;
        let hot = self.stopwatch.hot(task.budget, |cuda| {
            device.queue(&variant.on(cuda, task.trial))
        })?;
        let after = device.download()?;
        match task.still_right(tried.kernel.reproducible, &tried.right, &after)? {
            None => tried.hot = Some(hot),
            Some(found) => tried.verification = Verification::failed(found),
        }
        Ok(tried)
    }

    /// Many copies of the inputs in turn, so that none is in the cache when it is read again. None where the cache
    /// would hold them all, or the device's memory does not.
    fn cold(
        &self,
        task: &Task<'_>,
        kernel: &KernelUsed,
        right: &[Array],
        variant: Variant,
    ) -> Result<Option<DeviceTiming>> {
        let cuda = self.stopwatch.cuda();
        let (context, facts) = (cuda.context(), cuda.device().facts());
        let one = task.trial.compulsory_bytes().max(1);
        let sets = (ROTATED * u64::from(facts.l2_bytes)).div_ceil(one) + 1;
        if sets > MOST_SETS {
            return Ok(None);
        }
        let mut trials = Vec::new();
        for _ in 0..sets {
            match self.one_of_many(task, kernel) {
                Ok(trial) => trials.push(trial),
                Err(error) if is_out_of_memory(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let timed = self
            .stopwatch
            .in_turn(task.budget, sets as u32, |cuda, set| {
                trials[set as usize].queue(&variant.on(cuda, task.trial))
            })?;
        context.synchronize()?;
        for trial in &trials {
            if let Some(found) = task.still_right(kernel.reproducible, right, &trial.download()?)? {
                return Err(task.wrong(&found));
            }
        }
        Ok(Some(timed))
    }

    fn one_of_many<'a>(&self, task: &Task<'a>, kernel: &KernelUsed) -> Result<DeviceTrial<'a>> {
        let context = self.stopwatch.cuda().context();
        let mut trial = DeviceTrial::new(task.trial, context)?;
        if let Some(bytes) = kernel.workspace_bytes {
            trial.give_workspace(context, bytes)?;
        }
        self.stopwatch.once(|cuda| trial.poison(cuda.stream()))?;
        Ok(trial)
    }
}

fn is_out_of_memory(error: &Error) -> bool {
    use fourtap::cuda::CudaError::Driver;
    let Error::Library(library) = error else {
        return false;
    };
    matches!(
        **library,
        fourtap::Error::Cuda(Driver(DriverError::OutOfMemory { .. }))
    )
}

impl Variant {
    fn on(self, cuda: &Cuda, trial: &dyn Computation) -> Cuda {
        let cuda = self.mode.on(cuda);
        match self.is_baseline {
            true => trial.baseline(&cuda).unwrap_or(cuda),
            false => cuda,
        }
    }
}

impl VariantResult {
    fn beside(self, variant: Variant) -> AlternativeResult {
        AlternativeResult {
            role: variant.role.to_string(),
            kernel: self.kernel,
            verification: self.verification,
            hot: self.hot.map(|timed| timed.timing),
        }
    }
}
