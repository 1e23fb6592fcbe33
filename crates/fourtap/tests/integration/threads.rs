//! Threads that a call is told to run on: fourtap's own, or the caller's.

use std::collections::HashSet;
use std::sync::Mutex;
use std::thread::{self, ThreadId};

use fourtap::DType;
use fourtap::cpu::{Cpu, ParallelFor};
use fourtap::dense::{self, Outputs};
use fourtap::verify::{DenseCase, Storage, Tensor};

/// Large enough to be split.
const SIZES: dense::Sizes = dense::Sizes {
    batch: 2,
    query_heads: 4,
    key_heads: 2,
    queries: 300,
    keys: 150,
    channels: 24,
    value_channels: 40,
};

fn attend(cpu: Cpu) -> Vec<f64> {
    let case = DenseCase::with_sizes(1, DType::F32, &SIZES);
    let mut out = Tensor::poisoned(DType::F32, &SIZES.out(), &Storage::dense(4));
    let outputs = Outputs {
        out: out.view_mut(),
        lse: None,
    };
    dense::forward(&cpu, case.inputs(), case.options, outputs).unwrap();
    out.to_f64()
}

#[test]
fn results_do_not_depend_on_whose_threads_they_are() {
    let run_all: ParallelFor = |threads, work| {
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    };
    let run_one: ParallelFor = |_, work| work();
    let run_none: ParallelFor = |_, _| {};
    let expected = attend(Cpu::new());
    for threads in [0, 1, 2, 5] {
        assert_eq!(attend(Cpu::new().with_threads(threads)), expected);
        for run in [run_all, run_one, run_none] {
            let cpu = Cpu::new().with_parallel_for(threads, run);
            assert_eq!(attend(cpu), expected, "{threads} threads");
        }
    }
}

#[test]
fn a_callers_function_is_given_as_many_threads_as_it_has() {
    static THREADS: Mutex<Option<HashSet<ThreadId>>> = Mutex::new(None);
    let cpu = Cpu::new().with_parallel_for(2, |threads, work| {
        assert_eq!(threads, 2);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut seen = THREADS.lock().unwrap();
                    seen.get_or_insert_default().insert(thread::current().id());
                    drop(seen);
                    work();
                });
            }
        });
    });
    attend(cpu);
    let seen = THREADS.lock().unwrap().take();
    assert_eq!(seen.map(|seen| seen.len()), Some(2));
}

#[test]
fn backends_differ_by_their_threads() {
    assert_ne!(Cpu::new().with_threads(2), Cpu::new());
    assert_ne!(Cpu::new().with_threads(2), Cpu::new().with_threads(3));
    assert_eq!(Cpu::new().with_threads(2), Cpu::new().with_threads(2));
    assert!(Cpu::available_threads() >= 1);
}
