//! The threads of a session: those of its intra-op pool, as many as `intra_op_num_threads` says.

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;

use fourtap::cpu::Cpu;

use crate::api::{Api, KernelContext};

thread_local! {
    /// The run on this thread: the library calls a plain function, which asks here whose pool to use.
    static CURRENT: Cell<Option<(Api, *const KernelContext)>> = const { Cell::new(None) };
}

/// This processor, with the threads of the session whose node runs. ONNX Runtime does not tell how many there are: work is divided for
/// as many as there are processors.
pub fn cpu() -> Cpu {
    Cpu::new().with_parallel_for(Cpu::available_threads(), parallel_for)
}

/// A run of a node on this thread, until it is dropped.
pub struct Running {
    before: Option<(Api, *const KernelContext)>,
    of_this_thread: PhantomData<*const ()>,
}

impl Running {
    /// # Safety
    /// The context is the one that ONNX Runtime handed over, and the run ends later.
    pub unsafe fn new(api: Api, context: *const KernelContext) -> Self {
        Running {
            // While a run waits for its pool, its thread may be given another session's run.
            before: CURRENT.replace(Some((api, context))),
            of_this_thread: PhantomData,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let PhantomData = self.of_this_thread;
        CURRENT.set(self.before);
    }
}

/// What threads of the pool do, and what the first panic there said.
struct Work<'a> {
    work: &'a (dyn Fn() + Sync),
    panic: OnceLock<Panic>,
}

struct Panic(Box<dyn Any + Send>);

// SAFETY: it is never looked at, only thrown again when all threads are done.
unsafe impl Sync for Panic {}

fn parallel_for(threads: usize, work: &(dyn Fn() + Sync)) {
    // Outside a run there is no pool, and the caller does the work.
    let Some((api, context)) = CURRENT.get() else {
        return;
    };
    let shared = Work {
        work,
        panic: OnceLock::new(),
    };
    let data = (&raw const shared).cast_mut().cast();
    // SAFETY: the context is that of the run on this thread; what it shares with others outlives the call, and is `Sync`.
    let ran = unsafe { api.parallel_for(context, call, threads, data) };
    if let Some(Panic(payload)) = shared.panic.into_inner() {
        resume_unwind(payload);
    }
    // The caller does what was not done.
    if let Err(error) = ran {
        api.release_status(error.into_status(api));
    }
}

/// Panics must not reach ONNX Runtime.
unsafe extern "C" fn call(data: *mut c_void, _: usize) {
    // SAFETY: what `parallel_for` hands over, which waits for this call.
    let shared = unsafe { &*data.cast::<Work<'_>>() };
    if let Err(payload) = catch_unwind(AssertUnwindSafe(shared.work)) {
        shared.panic.set(Panic(payload)).ok();
    }
}
