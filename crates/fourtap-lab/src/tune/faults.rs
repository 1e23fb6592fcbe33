//! Faults that are injected into attempts: whether they are noticed and reported can be tested so. In test builds only.

use std::io::Write;
use std::thread;
use std::time::Duration;

use fourtap::cuda::Cuda;
use fourtap::tuning::Choice;

use super::Engine;
use crate::array::Array;
use crate::cli::parse_setting;
use crate::cuda::{Grid, Source, Stopwatch};
use crate::error::{Error, Result};
use crate::record::Timing;

/// Names faults, as in "tasks_each=8:crash,tasks_each=16:hang"; processes that are started inherit it.
const VARIABLE: &str = "FOURTAP_FAULTS";

const KERNELS: &str = include_str!("../../kernels/faults.cu");

/// What a slow attempt takes longer, in milliseconds.
const DELAY_MS: f64 = 3.0;

/// What happens to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It never ends.
    Hang,
    /// Its process ends, in the middle of a record.
    Crash,
    /// It ends with an error.
    Error,
    /// It computes NaN.
    Wrong,
    /// It takes longer.
    Slow,
    /// A kernel on its device writes to an illegal address.
    Address,
    /// A kernel on its device never ends.
    Spin,
}

/// Of attempts with a parameter at a value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    name: String,
    value: u32,
    kind: Kind,
}

/// What happens to which attempts.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    faults: Vec<Fault>,
    /// The device they may harm.
    ordinal: Option<usize>,
}

impl Faults {
    /// Those that the environment names.
    pub fn asked_for(engine: &Engine) -> Result<Self> {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let each = text.split(',').filter(|fault| !fault.is_empty());
        let faults = each.map(|fault| {
            parse(fault).ok_or_else(|| Error::Setting {
                setting: format!("{VARIABLE}={fault}"),
                expected: "NAME=VALUE:FAULT".to_string(),
            })
        });
        Ok(Faults {
            faults: faults.collect::<Result<_>>()?,
            ordinal: match engine {
                Engine::Cpu => None,
                Engine::Cuda(gpu) | Engine::External(_, gpu) => Some(gpu.ordinal),
            },
        })
    }

    fn has(&self, choice: &Choice, kind: Kind) -> bool {
        let mut faults = self.faults.iter().filter(|fault| fault.kind == kind);
        faults.any(|fault| {
            let mut values = choice.values().iter();
            values.any(|(name, value)| *name == fault.name && *value == fault.value)
        })
    }

    /// Ends an attempt before it begins, if it is to end so.
    pub fn strike(&self, choice: &Choice) -> Result<()> {
        while self.has(choice, Kind::Hang) {
            thread::sleep(Duration::from_secs(1));
        }
        if self.has(choice, Kind::Crash) {
            let mut stdout = std::io::stdout().lock();
            let _ = stdout
                .write_all(b"half a rec")
                .and_then(|()| stdout.flush());
            std::process::abort();
        }
        if self.has(choice, Kind::Error) {
            return Err(Error::NoCache);
        }
        for (kind, entry) in [
            (Kind::Address, "illegal_address"),
            (Kind::Spin, "never_ends"),
        ] {
            if let (true, Some(ordinal)) = (self.has(choice, kind), self.ordinal) {
                let cuda = Cuda::new(ordinal).map_err(fourtap::Error::from)?;
                let stopwatch = Stopwatch::new(cuda)?;
                let kernel = Source::new(entry, KERNELS, &[]).load(stopwatch.cuda())?;
                // SAFETY: it takes no arguments. What it does to the device is the point.
                stopwatch.once(|cuda| unsafe { kernel.queue(cuda, Grid::default(), &[]) })?;
            }
        }
        Ok(())
    }

    /// What an attempt computed, or NaN if it is to be wrong.
    pub fn spoiled(&self, choice: &Choice, mut outputs: Vec<Array>) -> Result<Vec<Array>> {
        if self.has(choice, Kind::Wrong) {
            let (dtype, shape) = (outputs[0].dtype(), outputs[0].view().shape());
            outputs[0] = Array::poisoned("out", dtype, shape.sizes())?;
        }
        Ok(outputs)
    }

    /// Milliseconds to add to every sample.
    pub fn delay(&self, choice: &Choice) -> f64 {
        match self.has(choice, Kind::Slow) {
            true => DELAY_MS,
            false => 0.0,
        }
    }

    /// A timing with that added.
    pub fn slowed(&self, choice: &Choice, timing: Timing) -> Timing {
        let delay = self.delay(choice);
        let samples = timing.samples_ms.iter().map(|sample| sample + delay);
        Timing {
            launches_a_sample: timing.launches_a_sample,
            input_sets: timing.input_sets,
            ..Timing::of(samples.collect())
        }
    }
}

fn parse(text: &str) -> Option<Fault> {
    let (setting, kind) = text.rsplit_once(':')?;
    let (name, value) = parse_setting(setting).ok()?;
    let kind = match kind {
        "hang" => Kind::Hang,
        "crash" => Kind::Crash,
        "error" => Kind::Error,
        "wrong" => Kind::Wrong,
        "slow" => Kind::Slow,
        "address" => Kind::Address,
        "spin" => Kind::Spin,
        _ => return None,
    };
    Some(Fault { name, value, kind })
}
