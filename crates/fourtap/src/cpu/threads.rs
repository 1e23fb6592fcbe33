//! The threads that the tasks of a call run on.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use super::Cpu;
use crate::error::Result;
use crate::lock_free::List;

/// Calls `work` on up to so many threads, once on each, and returns when all these calls have returned.
pub type ParallelFor = fn(threads: usize, work: &(dyn Fn() + Sync));

#[derive(Clone, Copy)]
pub(super) enum Threads {
    /// Those of the rayon pool that the call is made in.
    Current,
    /// So many of a pool of this process.
    Own(usize),
    /// The caller's, at most so many.
    Callers(usize, ParallelFor),
}

impl Cpu {
    /// With so many threads of fourtap's own, instead of the current rayon pool; with 1 on the calling thread. They are started
    /// once per process, and a child forked at any moment, whose copy of rayon's global pool has no threads, starts its own.
    ///
    /// ```
    /// use fourtap::cpu::Cpu;
    ///
    /// let cpu = Cpu::new().with_threads(Cpu::available_threads());
    /// # let _ = cpu;
    /// ```
    pub fn with_threads(self, threads: usize) -> Self {
        Cpu {
            threads: Threads::Own(threads.max(1)),
            ..self
        }
    }

    /// With the threads of another pool, at most so many, that `run` calls functions on. Tasks that it leaves undone are
    /// done on the calling thread.
    ///
    /// ```
    /// use fourtap::cpu::Cpu;
    ///
    /// let cpu = Cpu::new().with_parallel_for(2, |threads, work| {
    ///     std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    /// });
    /// # let _ = cpu;
    /// ```
    pub fn with_parallel_for(self, threads: usize, run: ParallelFor) -> Self {
        Cpu {
            threads: Threads::Callers(threads.max(1), run),
            ..self
        }
    }

    /// As many as the environment variable `RAYON_NUM_THREADS` says, or as this process may use processors. It is asked
    /// once.
    pub fn available_threads() -> usize {
        static AVAILABLE: List<usize> = List::new();
        *AVAILABLE.get_or_init(|| {
            let asked = std::env::var("RAYON_NUM_THREADS").ok();
            let asked = asked.and_then(|text| text.parse().ok());
            let there = || std::thread::available_parallelism().map_or(1, usize::from);
            asked.filter(|&threads| threads > 0).unwrap_or_else(there)
        })
    }

    /// The most threads that a call runs on.
    pub(super) fn threads(&self) -> usize {
        match self.threads {
            Threads::Current => rayon::current_num_threads(),
            Threads::Own(threads) | Threads::Callers(threads, _) => threads,
        }
    }

    /// Does so many tasks, on the calling thread if `threads` is 1, on up to [`Cpu::threads`] if not.
    pub(super) fn run_tasks(
        &self,
        threads: usize,
        tasks: usize,
        task: impl Fn(usize) -> Result<()> + Sync,
    ) -> Result<()> {
        let in_turn = || (0..tasks).try_for_each(&task);
        if threads == 1 || tasks <= 1 {
            return in_turn();
        }
        let by_rayon = || {
            (0..tasks)
                .into_par_iter()
                .with_max_len(1)
                .try_for_each(&task)
        };
        match self.threads {
            Threads::Current => by_rayon(),
            Threads::Own(threads) => match pool(threads) {
                Ok(pool) => pool.install(by_rayon),
                // The system cannot start more threads.
                Err(_) => in_turn(),
            },
            Threads::Callers(threads, run) => run_on_callers(threads, run, tasks, task),
        }
    }
}

fn run_on_callers(
    threads: usize,
    run: ParallelFor,
    tasks: usize,
    task: impl Fn(usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failure = OnceLock::new();
    let work = || {
        while failure.get().is_none() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= tasks {
                break;
            }
            if let Err(error) = task(index) {
                failure.set(error).ok();
            }
        }
    };
    run(threads.min(tasks), &work);
    work();
    failure.into_inner().map_or(Ok(()), Err)
}

/// A pool of this process: one made before a fork would be waited for forever, as its threads are the parent's. It is never
/// freed: there is one per number of threads in use, so one or two.
fn pool(threads: usize) -> std::result::Result<&'static ThreadPool, ThreadPoolBuildError> {
    static POOLS: List<(u32, usize, ThreadPool)> = List::new();
    let process = std::process::id();
    let found = POOLS.find_or_add(
        |&(of, count, _)| (of, count) == (process, threads),
        || {
            let name = |index| format!("fourtap-{index}");
            let builder = ThreadPoolBuilder::new().num_threads(threads);
            Ok((process, threads, builder.thread_name(name).build()?))
        },
    );
    found.map(|(_, _, pool)| pool)
}

impl PartialEq for Threads {
    fn eq(&self, other: &Self) -> bool {
        match (*self, *other) {
            (Threads::Current, Threads::Current) => true,
            (Threads::Own(one), Threads::Own(another)) => one == another,
            (Threads::Callers(one, run), Threads::Callers(another, other_run)) => {
                one == another && std::ptr::fn_addr_eq(run, other_run)
            }
            _ => false,
        }
    }
}

impl Eq for Threads {}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Threads::Current => f.write_str("Current"),
            Threads::Own(threads) => write!(f, "Own({threads})"),
            Threads::Callers(threads, _) => write!(f, "Callers({threads})"),
        }
    }
}
