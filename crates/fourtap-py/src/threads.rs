//! Thread pools for the CPU backend: as many threads as the caller's framework uses, safe after a fork.
//!
//! A forked process has none of its parent's threads, so a pool made before the fork would wait for them forever. Pools
//! therefore belong to a process. They are kept in a lock-free list, since a lock could have been held at the moment of
//! the fork by a thread that no longer exists.

use std::sync::atomic::{AtomicPtr, Ordering};

use fourtap::cpu::{Cpu, Tuning};
use rayon::{ThreadPool, ThreadPoolBuilder};

struct Node {
    process: u32,
    threads: usize,
    pool: ThreadPool,
    next: *const Node,
}

static POOLS: AtomicPtr<Node> = AtomicPtr::new(std::ptr::null_mut());

/// Runs `work`, which computes `elements` elements, with `threads` threads, or only on the calling one if that is enough.
pub fn run<T: Send>(threads: usize, elements: usize, work: impl FnOnce(Cpu) -> T + Send) -> T {
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
