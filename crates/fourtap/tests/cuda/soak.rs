//! Both operators, forward and backward, on eight threads for as long as FOURTAP_SOAK_SECONDS says (ten if it is not set):
//! sizes, dtypes, streams and graph replays mixed by chance, results compared all the while, memory flat at the end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, CaptureMode, OwnedStream, Plain};
use fourtap::dense;
use fourtap::msda::{self, Levels, Sizes};
use fourtap::verify::{
    Case, CudaCase, DenseCase, ExpectedDenseResults, ExpectedGradients, GradientSelection,
    LevelsIn, check_dense_on_cuda, check_forward_on_cuda,
};
use fourtap::{Backend, DType, Element, bf16, f16};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rayon::prelude::*;

use crate::backward::tensors::{BackwardProblem, Results};
use crate::gpu::{self, DeviceWithWorkspace};
use crate::tensors::{OnDevice, numbers};

const THREADS: u64 = 8;
/// After each the threads end, so that memory can be compared.
const ROUNDS: u32 = 8;
/// Small problems of each operator that are checked against the oracle; each needs kernels of its own.
const CASES: u64 = 32;
/// What the driver may keep of memory that was given back to it.
const SLACK: u64 = 64 << 20;

/// A problem with what the oracle made of it.
struct Small {
    case: Case,
    gradients: ExpectedGradients,
}

struct SmallDense {
    case: DenseCase,
    expected: ExpectedDenseResults,
}

/// A problem of each operator, of a model's size, with what single calls made of them, which all others must equal bit by
/// bit.
struct Large {
    levels: Levels,
    deformable: BackwardProblem,
    dense: [OnDevice; 3], // query, key, value
    expected: Vec<Vec<u8>>,
}

/// Where calls on a [`Large`] write.
struct LargeResults {
    out: OnDevice,
    gradients: Results,
    dense: OnDevice,
}

impl LargeResults {
    fn bytes(&self) -> Vec<Vec<u8>> {
        let [value, locations, weights] = self.gradients.bytes();
        let read = |tensor: &OnDevice| tensor.buffer.to_vec().unwrap();
        vec![
            read(&self.out),
            value,
            locations,
            weights,
            read(&self.dense),
        ]
    }
}

impl Large {
    /// `D` is the dtype of dense attention, which on CUDA is one of 16 bits.
    fn new<T: Element + Plain, D: Element + Plain>(cuda: &Cuda, queries: usize) -> Self {
        let levels = Levels::packed(&[(40, 60), (20, 30), (10, 15), (5, 8)]).unwrap();
        let sizes = Sizes {
            images: 2,
            pixels: levels.pixels(),
            heads: 8,
            channels: 32,
            queries,
            levels: levels.len(),
            points: 4,
        };
        let shape = [2, 8, queries, 64];
        let dense = [5, 6, 7].map(|salt| {
            let numbers = numbers(shape.iter().product(), salt);
            let numbers: Vec<D> = numbers.map(|x| D::from_f64(2.0 * x - 1.0)).collect();
            OnDevice::new(cuda, &numbers, &shape)
        });
        let mut large = Large {
            deformable: BackwardProblem::new::<T>(cuda, sizes),
            levels,
            dense,
            expected: Vec::new(),
        };
        let mut results = large.results(cuda);
        large.compute(cuda, &mut results);
        gpu::wait(cuda);
        large.expected = results.bytes();
        large
    }

    fn results(&self, cuda: &Cuda) -> LargeResults {
        let dtype = self.deformable.grad_out.view().dtype();
        let query = self.dense[0].view();
        LargeResults {
            out: OnDevice::poisoned(cuda, dtype, &self.deformable.inputs.sizes.out()),
            gradients: self.deformable.results(cuda),
            dense: OnDevice::poisoned(cuda, query.dtype(), query.shape().sizes()),
        }
    }

    /// Forward and backward of deformable attention, and dense attention.
    fn compute(&self, on: impl Into<DeviceWithWorkspace>, results: &mut LargeResults) {
        let on = on.into();
        let backend = Backend::Cuda(on.cuda);
        let inputs = self.deformable.inputs.inputs(&self.levels);
        msda::forward(&backend, inputs, results.out.view_mut()).unwrap();
        let (gradients, asked) = (&mut results.gradients, GradientSelection::ALL);
        self.deformable
            .compute(on, &self.levels, gradients, asked)
            .unwrap();
        let [query, key, value] = self.dense.each_ref().map(OnDevice::view);
        let inputs = dense::Inputs {
            query,
            key,
            value,
            attn_mask: None,
        };
        let out = results.dense.view_mut();
        dense::forward(&backend, inputs, dense::Options::default(), out).unwrap();
    }

    /// Many times over, on several streams.
    fn burst(&self, cuda: &Cuda, rng: &mut Xoshiro256PlusPlus) -> u64 {
        let streams: Vec<_> = (0..rng.random_range(1..4))
            .map(|_| OwnedStream::new(cuda.context(), true).unwrap())
            .collect();
        let mut results: Vec<_> = streams.iter().map(|_| self.results(cuda)).collect();
        gpu::wait(cuda);
        let rounds = rng.random_range(1..20);
        for _ in 0..rounds {
            for (stream, results) in streams.iter().zip(&mut results) {
                // SAFETY: the stream lives until the end of this function, which waits for it.
                let cuda = unsafe { cuda.on_stream(stream.stream().as_raw()) };
                self.compute(&cuda, results);
            }
        }
        for (stream, results) in streams.iter().zip(&results) {
            stream.synchronize().unwrap();
            assert!(results.bytes() == self.expected);
        }
        3 * rounds * streams.len() as u64
    }

    /// Captured into a graph, which is replayed.
    fn replay(&self, cuda: &Cuda, rng: &mut Xoshiro256PlusPlus) -> u64 {
        let stream = OwnedStream::new(cuda.context(), true).unwrap();
        let mut results = self.results(cuda);
        let gradients = &mut results.gradients;
        let bytes = self.deformable.workspace(cuda, &self.levels, gradients);
        let workspace = Buffer::alloc(cuda.context(), bytes.max(1)).unwrap();
        gpu::wait(cuda);
        // SAFETY: stream and memory live until the end of this function, which waits for the stream, and the captured calls
        // come one after another.
        let on = unsafe {
            let cuda = cuda.on_stream(stream.stream().as_raw());
            DeviceWithWorkspace::new(&cuda, workspace.as_ptr(), bytes)
        };
        let entered = cuda.context().enter().unwrap();
        // Of this thread alone: others allocate meanwhile.
        stream
            .stream()
            .begin_capture(CaptureMode::ThreadLocal)
            .unwrap();
        self.compute(on, &mut results);
        let graph = stream.stream().end_capture().unwrap();
        let graph = graph.instantiate().unwrap();
        let replays = rng.random_range(1..100);
        for _ in 0..replays {
            // SAFETY: everything the captured kernels use is alive.
            unsafe { graph.launch(stream.stream()) }.unwrap();
        }
        drop(entered);
        stream.synchronize().unwrap();
        assert!(results.bytes() == self.expected);
        replays
    }
}

struct Problems {
    small: Vec<Small>,
    dense: Vec<SmallDense>,
    large: Vec<Large>,
}

impl Problems {
    fn new(cuda: &Cuda) -> Self {
        let small = (0..CASES).into_par_iter().map(|seed| {
            let seed = seed + 2_000_000; // beyond what other tests reach
            let case = match seed % 2 {
                0 => Case::random(seed),
                _ => Case::aligned(seed),
            };
            let gradients = ExpectedGradients::new(&case).unwrap();
            Small { case, gradients }
        });
        let dense = (0..CASES).into_par_iter().map(|seed| {
            let dtype = [DType::F16, DType::BF16][seed as usize % 2];
            let case = match seed % 4 {
                0 => DenseCase::random_of(seed, &[dtype]),
                1 => DenseCase::aligned(seed, &[dtype]),
                _ => DenseCase::with_sizes(seed, dtype, &dense_sizes(seed as usize)),
            };
            let expected = ExpectedDenseResults::new(&case).unwrap();
            SmallDense { case, expected }
        });
        Problems {
            small: small.collect(),
            dense: dense.collect(),
            large: vec![
                Large::new::<f16, f16>(cuda, 900),
                Large::new::<bf16, bf16>(cuda, 300),
                Large::new::<f32, f16>(cuda, 900),
                Large::new::<f32, bf16>(cuda, 100),
            ],
        }
    }
}

fn dense_sizes(number: usize) -> dense::Sizes {
    let channels = [32, 64, 128, 256, 40][number % 5];
    dense::Sizes {
        batch: 1 + number % 2,
        query_heads: 4,
        key_heads: [4, 2, 1][number % 3],
        queries: 1 + 97 * (number % 7),
        keys: 1 + 61 * (number % 11),
        channels,
        value_channels: channels,
    }
}

/// How many calls there were, and how many results were compared with the oracle's.
#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    oracle: AtomicU64,
    replays: AtomicU64,
}

fn one(cuda: &Cuda, problems: &Problems, rng: &mut Xoshiro256PlusPlus, counts: &Counts) {
    let levels = [LevelsIn::Host, LevelsIn::Device][rng.random_range(0..2)];
    let small = &problems.small[rng.random_range(0..problems.small.len())];
    let large = &problems.large[rng.random_range(0..problems.large.len())];
    let (calls, compared) = match rng.random_range(0..10) {
        0..3 => {
            let stream = OwnedStream::new(cuda.context(), true).unwrap();
            // SAFETY: the stream outlives the call, which waits for its result.
            let cuda = unsafe { cuda.on_stream(stream.stream().as_raw()) };
            let seed = small.case.seed;
            check_forward_on_cuda(&small.case, &cuda, levels)
                .unwrap_or_else(|failure| panic!("forward of seed {seed}: {failure}"));
            (1, 1)
        }
        3..6 => {
            // The fast mode, too, where sums may be in any order.
            let cuda = cuda.deterministic(rng.random());
            let on_device = CudaCase::new(&small.case, cuda).unwrap();
            let found = on_device.backward(levels, GradientSelection::ALL);
            let seed = small.case.seed;
            found
                .and_then(|found| small.gradients.compare(&found))
                .unwrap_or_else(|failure| panic!("backward of seed {seed}: {failure}"));
            (1, 1)
        }
        6..8 => {
            let SmallDense { case, expected } =
                &problems.dense[rng.random_range(0..problems.dense.len())];
            check_dense_on_cuda(case, expected, cuda, rng.random())
                .unwrap_or_else(|failure| panic!("dense, seed {}: {failure}", case.seed));
            (1, 1)
        }
        8 => (large.burst(cuda, rng), 0),
        _ => {
            let replays = large.replay(cuda, rng);
            counts.replays.fetch_add(replays, Ordering::Relaxed);
            (3 * replays, 0)
        }
    };
    counts.calls.fetch_add(calls, Ordering::Relaxed);
    counts.oracle.fetch_add(compared, Ordering::Relaxed);
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let words: Vec<_> = line.unwrap().split_whitespace().collect();
    words[1].parse::<u64>().unwrap() * 1024
}

#[test]
#[ignore = "needs a CUDA device"]
fn soak_of_mixed_calls_stays_right_and_leaves_memory_as_it_was() {
    let seconds = std::env::var("FOURTAP_SOAK_SECONDS").ok();
    let seconds: f64 = seconds.map_or(10.0, |text| text.parse().expect("a number of seconds"));
    let cuda = gpu::device().deterministic(true);
    let problems = Problems::new(&cuda);
    let counts = Counts::default();
    let mut memory = Vec::new();
    let begin = Instant::now();
    for round in 0..ROUNDS {
        let end = Instant::now() + Duration::from_secs_f64(seconds / f64::from(ROUNDS));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (problems, counts) = (&problems, &counts);
                scope.spawn(move || {
                    let seed = u64::from(round) * THREADS + thread;
                    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
                    while Instant::now() < end {
                        one(&cuda, problems, &mut rng, counts);
                    }
                });
            }
        });
        gpu::wait(&cuda);
        let free = cuda.context().memory_info().unwrap().free;
        memory.push((free as u64, resident()));
        println!(
            "round {round}: {} calls, {} compared with the oracle, {} graph replays, {} MiB of the device free, {} MiB resident",
            counts.calls.load(Ordering::Relaxed),
            counts.oracle.load(Ordering::Relaxed),
            counts.replays.load(Ordering::Relaxed),
            free >> 20,
            resident() >> 20,
        );
    }
    println!("soak: {:.0} s", begin.elapsed().as_secs_f64());
    assert!(
        counts.oracle.load(Ordering::Relaxed) > 0 && counts.replays.load(Ordering::Relaxed) > 0
    );
    // In the first half kernels are loaded, pools and the allocator find their sizes.
    let (before, after) = (memory[ROUNDS as usize / 2 - 1], memory[ROUNDS as usize - 1]);
    assert!(before.0.saturating_sub(after.0) < SLACK, "{memory:?}");
    assert!(after.1.saturating_sub(before.1) < SLACK, "{memory:?}");
}
