//! Thread pools for the CPU backend: as many threads as the caller's framework uses, safe after a fork.
//!
//! A forked process has none of its parent's threads, so a pool made before the fork would wait for them forever. Pools
//! therefore belong to a process. They are kept in a lock-free list, since a lock could have been held at the moment of
//! the fork by a thread that no longer exists.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use fourtap::Result;
use fourtap::cpu::{Cpu, Tuning};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::errors::raise;

struct Node {
    process: u32,
    threads: usize,
    pool: ThreadPool,
    next: *const Node,
}

static POOLS: AtomicPtr<Node> = AtomicPtr::new(std::ptr::null_mut());

/// Elements from which on a call may take a tenth of a second and more, so that somebody may want to interrupt it.
const LONG: usize = 1 << 26;

/// How long it may take until a call notices Ctrl-C, but for the tasks it has begun.
const PATIENCE: Duration = Duration::from_millis(100);

/// Runs `work`, which computes `elements` elements, with `threads` threads and without Python's lock. A long call made by
/// Python's main thread ends in what a signal handler raises, `KeyboardInterrupt` most often.
pub fn run(
    py: Python<'_>,
    threads: usize,
    elements: usize,
    work: impl FnOnce(Cpu) -> Result<()> + Send,
) -> PyResult<()> {
    if elements >= LONG
        && runs_signal_handlers(py)?
        && let Some(pool) = pool(threads.max(1))
    {
        return run_interruptibly(py, pool, work);
    }
    py.detach(|| compute(threads, elements, work))
        .map_err(|error| raise(py, error))
}

/// Whether this is the thread that Python calls signal handlers on.
fn runs_signal_handlers(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let current = threading.call_method0("current_thread")?;
    Ok(current.is(&threading.call_method0("main_thread")?))
}

/// Computes on the pool alone, while this thread, the main one, waits and looks for signals.
fn run_interruptibly(
    py: Python<'_>,
    pool: &ThreadPool,
    work: impl FnOnce(Cpu) -> Result<()> + Send,
) -> PyResult<()> {
    // One for all calls: only the main thread makes such calls, and one made by a signal handler during another can at
    // worst cancel that too, which is then reported, not passed over.
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    INTERRUPTED.store(false, Ordering::Relaxed);
    let mut computed = Ok(());
    let mut interruption = None;
    py.detach(|| {
        pool.in_place_scope(|scope| {
            let (finished, news) = sync_channel(1);
            let computed = &mut computed;
            scope.spawn(move |_| {
                *computed = work(Cpu::new().cancelled_by(&INTERRUPTED));
                // Nobody listens once the call is interrupted.
                finished.send(()).ok();
            });
            while news.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                if let Err(raised) = Python::attach(|py| py.check_signals()) {
                    INTERRUPTED.store(true, Ordering::Relaxed);
                    interruption = Some(raised);
                    break;
                }
            }
        });
    });
    match interruption {
        Some(raised) => Err(raised),
        None => computed.map_err(|error| raise(py, error)),
    }
}

/// Runs `work` on a pool of `threads` threads, or only on the calling one if that is enough.
fn compute<T: Send>(threads: usize, elements: usize, work: impl FnOnce(Cpu) -> T + Send) -> T {
    let tuning = Tuning::default();
    let small = elements < tuning.serial_work;
    let pool = if threads <= 1 || small {
        None
    } else {
        pool(threads)
    };
    match pool {
        Some(pool) => pool.install(|| work(Cpu::new())),
        None => work(Cpu::new().with_tuning(Tuning {
            serial_work: usize::MAX,
            ..tuning
        })),
    }
}

/// A pool of this process, never freed: there is one per thread count in use, so one or two. `None` if the system cannot
/// start more threads.
fn pool(threads: usize) -> Option<&'static ThreadPool> {
    let process = std::process::id();
    let mut next: *const Node = POOLS.load(Ordering::Acquire);
    // SAFETY: nodes are never freed or changed once they are in the list.
    while let Some(node) = unsafe { next.as_ref() } {
        if node.process == process && node.threads == threads {
            return Some(&node.pool);
        }
        next = node.next;
    }
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|index| format!("fourtap-{index}"))
        .build()
        .ok()?;
    let node = Box::into_raw(Box::new(Node {
        process,
        threads,
        pool,
        next: std::ptr::null(),
    }));
    let mut head = POOLS.load(Ordering::Acquire);
    loop {
        // SAFETY: nothing else refers to the node before it is in the list.
        unsafe { (*node).next = head };
        match POOLS.compare_exchange_weak(head, node, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: in the list, it is never freed or changed.
            Ok(_) => return Some(unsafe { &(*node).pool }),
            Err(now) => head = now,
        }
    }
}
