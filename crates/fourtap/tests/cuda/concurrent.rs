//! Threads, streams and graphs.

use fourtap::Backend;
use fourtap::DType;
use fourtap::cuda::driver::{CaptureMode, OwnedStream};
use fourtap::msda::{self, CudaLevels, Levels, Sizes};

use crate::gpu;
use crate::tensors::{OnDevice, Problem};

fn sizes(levels: &Levels, queries: usize) -> Sizes {
    Sizes {
        images: 2,
        pixels: levels.pixels(),
        heads: 4,
        channels: 32,
        queries,
        levels: levels.len(),
        points: 4,
    }
}

fn levels() -> Levels {
    Levels::packed(&[(20, 30), (10, 15)]).unwrap()
}

#[test]
#[ignore = "needs a CUDA device"]
fn eight_threads_on_eight_streams_each_give_the_serial_result() {
    let cuda = gpu::device();
    let levels = levels();
    let problem = Problem::new::<f32>(&cuda, sizes(&levels, 333));
    let mut serial = OnDevice::poisoned(&cuda, DType::F32, &problem.sizes.out());
    let inputs = problem.inputs(&levels);
    msda::forward(&Backend::Cuda(cuda), inputs, serial.view_mut()).unwrap();
    gpu::wait(&cuda);
    let serial = serial.buffer.to_vec::<u32>().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let streams: Vec<_> = (0..8)
                    .map(|_| OwnedStream::new(cuda.context(), true).unwrap())
                    .collect();
                let mut outs: Vec<_> = streams
                    .iter()
                    .map(|_| OnDevice::poisoned(&cuda, DType::F32, &problem.sizes.out()))
                    .collect();
                gpu::wait(&cuda);
                for call in 0..8 * 1000 {
                    let index = call % streams.len();
                    // SAFETY: the stream lives until the end of this closure.
                    let on_stream = unsafe { cuda.on_stream(streams[index].stream().as_raw()) };
                    let inputs = problem.inputs(&levels);
                    msda::forward(&Backend::Cuda(on_stream), inputs, outs[index].view_mut())
                        .unwrap();
                }
                for (stream, out) in streams.iter().zip(&outs) {
                    stream.synchronize().unwrap();
                    assert!(out.buffer.to_vec::<u32>().unwrap() == serial);
                }
            });
        }
    });
    gpu::evidence(
        &cuda,
        "concurrent",
        &["msda_forward_gather"],
        "8 threads x 8 streams x 1000 calls of each",
    );
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_captured_graph_replays_a_thousand_times_with_levels_in_device_memory() {
    let cuda = gpu::device();
    let levels = levels();
    let problem = Problem::new::<f32>(&cuda, sizes(&levels, 100));
    let shapes: Vec<i64> = levels
        .iter()
        .flat_map(|level| [level.height as i64, level.width as i64])
        .collect();
    let shapes = fourtap::cuda::driver::Buffer::from_slice(cuda.context(), &shapes).unwrap();
    // SAFETY: the buffer holds two pairs and outlives the graph.
    let on_device = unsafe { CudaLevels::new(0, levels.len(), shapes.as_ptr(), None) };
    let mut out = OnDevice::poisoned(&cuda, DType::F32, &problem.sizes.out());
    let stream = OwnedStream::new(cuda.context(), true).unwrap();
    // SAFETY: the stream outlives its use.
    let captured = unsafe { cuda.on_stream(stream.stream().as_raw()) };
    // Once outside, so that the kernel is loaded.
    msda::forward(
        &Backend::Cuda(captured),
        problem.inputs(on_device),
        out.view_mut(),
    )
    .unwrap();
    stream.synchronize().unwrap();
    let expected = out.buffer.to_vec::<u32>().unwrap();

    let free = cuda.context().memory_info().unwrap().free;
    let entered = cuda.context().enter().unwrap();
    stream
        .stream()
        .begin_capture(CaptureMode::ThreadLocal)
        .unwrap();
    for _ in 0..3 {
        msda::forward(
            &Backend::Cuda(captured),
            problem.inputs(on_device),
            out.view_mut(),
        )
        .unwrap();
    }
    let graph = stream.stream().end_capture().unwrap();
    assert_eq!(graph.node_count().unwrap(), 3, "kernels and nothing else");
    let graph = graph.instantiate().unwrap();
    out.buffer.fill(0xff, stream.stream()).unwrap();
    for _ in 0..1000 {
        // SAFETY: everything the captured kernels use is alive.
        unsafe { graph.launch(stream.stream()) }.unwrap();
    }
    drop(entered);
    stream.synchronize().unwrap();
    assert!(out.buffer.to_vec::<u32>().unwrap() == expected);
    drop(graph);
    let leaked = free.saturating_sub(cuda.context().memory_info().unwrap().free);
    assert!(leaked < 64 << 20, "{leaked} bytes are gone");
    gpu::evidence(
        &cuda,
        "graph",
        &["msda_forward_gather"],
        "3 kernels captured, 1000 replays",
    );
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_million_calls_leave_memory_as_it_was() {
    let cuda = gpu::device();
    let levels = Levels::packed(&[(2, 3)]).unwrap();
    let problem = Problem::new::<f32>(
        &cuda,
        Sizes {
            levels: 1,
            ..sizes(&levels, 3)
        },
    );
    let mut out = OnDevice::poisoned(&cuda, DType::F32, &problem.sizes.out());
    let call = |out: &mut OnDevice| {
        msda::forward(
            &Backend::Cuda(cuda),
            problem.inputs(&levels),
            out.view_mut(),
        )
        .unwrap();
    };
    call(&mut out);
    gpu::wait(&cuda);
    let free = cuda.context().memory_info().unwrap().free;
    for _ in 0..1_000_000 {
        call(&mut out);
    }
    gpu::wait(&cuda);
    assert_eq!(cuda.context().memory_info().unwrap().free, free);
}
