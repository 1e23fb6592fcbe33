//! Threads, streams and graphs.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, CaptureMode, OwnedStream, Plain};
use fourtap::msda::{CudaLevels, Levels, Sizes};
use fourtap::verify::GradientSelection;
use fourtap::{Element, f16};

use super::exact::Integers;
use super::tensors::{BackwardProblem, NAMES};
use crate::gpu::{self, DeviceWithWorkspace};

fn levels() -> Levels {
    Levels::packed(&[(20, 30), (10, 15)]).unwrap()
}

fn sizes(levels: &Levels) -> Sizes {
    Sizes {
        images: 2,
        pixels: levels.pixels(),
        heads: 4,
        channels: 32,
        queries: 333,
        levels: levels.len(),
        points: 4,
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn eight_threads_on_eight_streams_each_give_the_serial_result() {
    let cuda = gpu::device();
    fn of_type<T: Element + Plain>(cuda: &Cuda) {
        let levels = levels();
        let problem = BackwardProblem::new::<T>(cuda, sizes(&levels));
        let mut serial = problem.results(cuda);
        problem
            .compute(cuda, &levels, &mut serial, GradientSelection::ALL)
            .unwrap();
        gpu::wait(cuda);
        let serial = serial.bytes();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let streams: Vec<_> = (0..8)
                        .map(|_| OwnedStream::new(cuda.context(), true).unwrap())
                        .collect();
                    let mut all: Vec<_> = streams.iter().map(|_| problem.results(cuda)).collect();
                    gpu::wait(cuda);
                    for call in 0..8 * 1000 {
                        let index = call % streams.len();
                        // SAFETY: the stream lives until the end of this closure.
                        let cuda = unsafe { cuda.on_stream(streams[index].stream().as_raw()) };
                        problem
                            .compute(&cuda, &levels, &mut all[index], GradientSelection::ALL)
                            .unwrap();
                    }
                    for (stream, results) in streams.iter().zip(&all) {
                        stream.synchronize().unwrap();
                        assert!(results.bytes() == serial, "{}", T::DTYPE);
                    }
                });
            }
        });
    }
    let cuda = cuda.deterministic(true);
    of_type::<f16>(&cuda);
    of_type::<f32>(&cuda);
}

/// Captures three calls with a workspace of their own and levels in device memory, and replays them a hundred times.
fn replay(
    cuda: &Cuda,
    problem: &BackwardProblem,
    levels: &Levels,
    check: impl Fn(&str, [Vec<u8>; 3]),
) {
    let shapes: Vec<i64> = levels
        .iter()
        .flat_map(|level| [level.height as i64, level.width as i64])
        .collect();
    let shapes = Buffer::from_slice(cuda.context(), &shapes).unwrap();
    // SAFETY: the buffer holds so many pairs and outlives the graph.
    let levels = unsafe { CudaLevels::new(0, levels.len(), shapes.as_ptr(), None) };
    let mut results = problem.results(cuda);
    let bytes = problem.workspace(cuda, levels, &mut results);
    let workspace = Buffer::alloc(cuda.context(), bytes).unwrap();
    let stream = OwnedStream::new(cuda.context(), true).unwrap();
    gpu::wait(cuda);
    // SAFETY: stream and memory outlive their use, and the calls come one after another.
    let lent = unsafe {
        let cuda = cuda.on_stream(stream.stream().as_raw());
        DeviceWithWorkspace::new(&cuda, workspace.as_ptr(), bytes)
    };
    // Once outside, so that the kernels are loaded.
    problem
        .compute(lent, levels, &mut results, GradientSelection::ALL)
        .unwrap();
    stream.synchronize().unwrap();
    check("before the capture", results.bytes());

    let entered = cuda.context().enter().unwrap();
    stream
        .stream()
        .begin_capture(CaptureMode::ThreadLocal)
        .unwrap();
    for _ in 0..3 {
        problem
            .compute(lent, levels, &mut results, GradientSelection::ALL)
            .unwrap();
    }
    let graph = stream.stream().end_capture().unwrap();
    assert!(graph.node_count().unwrap() >= 3);
    let graph = graph.instantiate().unwrap();
    results.poison(stream.stream());
    for _ in 0..100 {
        // SAFETY: everything the captured kernels use is alive.
        unsafe { graph.launch(stream.stream()) }.unwrap();
    }
    drop(entered);
    stream.synchronize().unwrap();
    check("after a hundred replays", results.bytes());
}

#[test]
#[ignore = "needs a CUDA device"]
fn captured_deterministic_calls_replay_bitwise_equal() {
    let cuda = gpu::device();
    fn of_type<T: Element + Plain>(cuda: &Cuda) {
        let levels = levels();
        let problem = BackwardProblem::new::<T>(cuda, sizes(&levels));
        let mut results = problem.results(cuda);
        problem
            .compute(cuda, &levels, &mut results, GradientSelection::ALL)
            .unwrap();
        gpu::wait(cuda);
        let expected = results.bytes();
        replay(cuda, &problem, &levels, |when, found| {
            for ((name, found), expected) in NAMES.iter().zip(&found).zip(&expected) {
                assert!(found == expected, "{}, {when}: {name}", T::DTYPE);
            }
        });
    }
    let cuda = cuda.deterministic(true);
    of_type::<f16>(&cuda);
    of_type::<f32>(&cuda);
}

#[test]
#[ignore = "needs a CUDA device"]
fn captured_calls_of_the_fast_mode_add_to_zeros_each_time() {
    let cuda = gpu::device();
    // Integers, because these sums do not depend on the order of terms.
    let integers = Integers::<f32>::new();
    let (problem, expected) = (integers.on_device(&cuda), integers.expected());
    replay(&cuda, &problem, &integers.levels, |when, found| {
        for ((name, found), expected) in NAMES.iter().zip(&found).zip(&expected) {
            let found = found
                .as_chunks::<4>()
                .0
                .iter()
                .map(|&bytes| f64::from(f32::from_le_bytes(bytes)));
            assert!(found.eq(expected.iter().copied()), "{when}: {name}");
        }
    });
}
