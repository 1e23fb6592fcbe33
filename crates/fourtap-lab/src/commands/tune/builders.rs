//! Kernels compiled on the processor while the device times others.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use fourtap::tuning::Choice;

use super::trial_worker::{Failure, TrialWorker};
use crate::error::{Error, Result};
use crate::tune::BuildResult;

/// Processes that compile at a time, at most.
const MOST: usize = 16;

/// What one came to.
type BuildOutcome = Result<std::result::Result<BuildResult, Failure>>;

/// Several processes that compile. They end with this, or with their work.
#[derive(Debug)]
pub struct Builders {
    tasks: Sender<(u32, Choice)>,
    ends: Receiver<(u32, BuildOutcome)>,
    /// Those that nobody has waited for yet.
    known: HashMap<u32, BuildOutcome>,
}

impl Builders {
    /// As many as the machine has processors for, less the one that times, of which each of several searches has a share.
    pub fn new(searches: usize, worker: impl Fn() -> TrialWorker) -> Self {
        let (tasks, queue) = mpsc::channel::<(u32, Choice)>();
        let (send, ends) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        let there = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..(there / searches).saturating_sub(1).clamp(1, MOST) {
            let (queue, send, mut worker) = (queue.clone(), send.clone(), worker());
            thread::spawn(move || {
                loop {
                    // A thread that panicked with the lock held has left a whole queue.
                    let task = queue.lock().unwrap_or_else(|it| it.into_inner()).recv();
                    let Ok((number, choice)) = task else { return };
                    if send.send((number, worker.build(&choice))).is_err() {
                        return;
                    }
                }
            });
        }
        Builders {
            tasks,
            ends,
            known: HashMap::new(),
        }
    }

    /// Has what a candidate needs compiled some time.
    pub fn begin(&self, number: u32, choice: &Choice) {
        // Nobody there to do it: then nobody answers either.
        let _ = self.tasks.send((number, choice.clone()));
    }

    /// What came of a candidate that was begun.
    pub fn wait(&mut self, number: u32) -> BuildOutcome {
        loop {
            if let Some(end) = self.known.remove(&number) {
                return end;
            }
            let gone = || Error::Start(std::io::Error::other("nobody compiles any more"));
            let (other, end) = self.ends.recv().map_err(|_| gone())?;
            self.known.insert(other, end);
        }
    }
}
