//! Choices that end badly on purpose, so that it can be tried whether that is reported.

use std::io::Write;
use std::thread;
use std::time::Duration;

use fourtap::tuning::Choice;

use crate::cli::Rehearsal;
use crate::cuda::{Grid, Source, Stopwatch};
use crate::error::Result;

const KERNELS: &str = include_str!("../../../kernels/probe/rehearsal.cu");

/// How a choice ends badly on purpose, if it does.
#[derive(Clone, Debug)]
pub struct Rehearsed(Vec<String>);

impl Rehearsed {
    pub fn of(choice: &Choice, rehearsals: &[Rehearsal]) -> Self {
        let meant = |one: &&Rehearsal| {
            let mut values = choice.values().iter();
            values.any(|(name, value)| *name == one.name && *value == one.value)
        };
        let ends = rehearsals.iter().filter(meant);
        Rehearsed(ends.map(|one| one.end.clone()).collect())
    }

    pub fn is(&self, end: &str) -> bool {
        self.0.iter().any(|one| one == end)
    }

    pub fn end_early(&self) -> Result<()> {
        while self.is("hang") {
            thread::sleep(Duration::from_secs(1));
        }
        if self.is("crash") {
            let mut stdout = std::io::stdout().lock();
            let _ = stdout
                .write_all(b"half a rec")
                .and_then(|()| stdout.flush());
            std::process::abort();
        }
        match self.is("error") {
            true => Err(fourtap_admin::Error::NoCache.into()),
            false => Ok(()),
        }
    }

    /// Leaves a device in a bad state.
    pub fn harm(&self, stopwatch: &Stopwatch) -> Result<()> {
        for (end, entry) in [("address", "illegal_address"), ("spin", "never_ends")] {
            if self.is(end) {
                let kernel = Source::new(entry, KERNELS, &[]).load(stopwatch.cuda())?;
                // SAFETY: it takes no arguments. What it does to the device is the point.
                stopwatch.once(|cuda| unsafe { kernel.queue(cuda, Grid::default(), &[]) })?;
            }
        }
        Ok(())
    }

    pub fn dawdle(&self) {
        if self.is("slow") {
            thread::sleep(Duration::from_millis(3));
        }
    }
}
