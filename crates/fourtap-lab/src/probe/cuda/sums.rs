//! Kernels that leave a number per thread, which depends on everything the thread read or computed.

use std::ops::Range;

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Buffer;

use super::device::{ProbeDevice, Subject};
use crate::cuda::DeviceTiming;
use crate::error::Result;

/// Threads at each end of a timed launch that are compared again.
const COMPARED_AGAIN: u32 = 32;

/// A launch whose threads leave a number each.
#[derive(Clone, Copy, Debug)]
pub struct Sums<'a> {
    /// What it is about.
    pub subject: &'a Subject,
    /// Of the whole launch.
    pub threads: u32,
    /// Rounds of the launch whose every thread is compared: few, because the host does them too.
    pub checked_rounds: u32,
    /// Rounds of the launch that is timed.
    pub timed_rounds: u32,
}

impl Sums<'_> {
    /// Compares what every thread leaves after a few rounds with what the host `expected`, times many, and compares the
    /// first and the last threads of those. `queue` launches so many rounds into a buffer of a number per thread.
    pub fn timed(
        &self,
        gpu: &ProbeDevice<'_>,
        queue: impl Fn(&Cuda, u32, &Buffer) -> Result<()>,
        expected: impl Fn(u32, u32) -> u32,
    ) -> Result<DeviceTiming> {
        let bytes = self.threads as usize * size_of::<u32>();
        let mut sums = Buffer::zeroed(gpu.cuda().context(), bytes)?;
        let stopwatch = gpu.stopwatch;
        stopwatch.once(|cuda| queue(cuda, self.checked_rounds, &sums))?;
        self.compare(&sums, 0..self.threads, self.checked_rounds, &expected)?;

        // So that it is seen if what is timed does not compute.
        stopwatch.once(|cuda| Ok(sums.fill(u8::MAX, cuda.stream())?))?;
        let timed = stopwatch.hot(gpu.budget, |cuda| queue(cuda, self.timed_rounds, &sums))?;
        let some = COMPARED_AGAIN.min(self.threads);
        self.compare(&sums, 0..some, self.timed_rounds, &expected)?;
        let last = self.threads - some..self.threads;
        self.compare(&sums, last, self.timed_rounds, &expected)?;
        Ok(timed)
    }

    fn compare(
        &self,
        sums: &Buffer,
        threads: Range<u32>,
        rounds: u32,
        expected: &impl Fn(u32, u32) -> u32,
    ) -> Result<()> {
        let found = sums.to_vec::<u32>()?;
        for thread in threads {
            let (expected, found) = (expected(thread, rounds), found[thread as usize]);
            if expected != found {
                return Err(self.subject.wrong(
                    format!("{expected:#x} of thread {thread} after {rounds} rounds"),
                    format!("{found:#x}"),
                ));
            }
        }
        Ok(())
    }
}
