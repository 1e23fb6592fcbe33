//! Calls on the CPU: with as many threads as the caller's framework uses, without Python's lock, and ending at Ctrl-C.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use fourtap::Result;
use fourtap::cpu::Cpu;
use pyo3::prelude::*;

use crate::errors::raise;

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
    let cpu = Cpu::new().with_threads(threads);
    if elements >= LONG && runs_signal_handlers(py)? {
        return run_interruptibly(py, cpu, work);
    }
    py.detach(|| work(cpu)).map_err(|error| raise(py, error))
}

/// Whether this is the thread that Python calls signal handlers on.
fn runs_signal_handlers(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let current = threading.call_method0("current_thread")?;
    Ok(current.is(&threading.call_method0("main_thread")?))
}

/// Computes on other threads alone, while this one, the main one, waits and looks for signals.
fn run_interruptibly(
    py: Python<'_>,
    cpu: Cpu,
    work: impl FnOnce(Cpu) -> Result<()> + Send,
) -> PyResult<()> {
    // One for all calls: only the main thread makes such calls, and one made by a signal handler during another can at
    // worst cancel that too, which is then reported, not passed over.
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    INTERRUPTED.store(false, Ordering::Relaxed);
    let mut work = Some(work);
    let mut computed = Ok(());
    let mut interruption = None;
    py.detach(|| {
        thread::scope(|scope| {
            let (finished, news) = sync_channel(1);
            let (work, computed) = (&mut work, &mut computed);
            let compute = move || {
                if let Some(work) = work.take() {
                    *computed = work(cpu.cancelled_by(&INTERRUPTED));
                }
                // Nobody listens once the call is interrupted.
                finished.send(()).ok();
            };
            // Without another thread there is nothing to wait for.
            thread::Builder::new().spawn_scoped(scope, compute).ok();
            while news.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                if let Err(raised) = Python::attach(|py| py.check_signals()) {
                    INTERRUPTED.store(true, Ordering::Relaxed);
                    interruption = Some(raised);
                    break;
                }
            }
        });
        if let Some(work) = work {
            computed = work(cpu);
        }
    });
    match interruption {
        Some(raised) => Err(raised),
        None => computed.map_err(|error| raise(py, error)),
    }
}
