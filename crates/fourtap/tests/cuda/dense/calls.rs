//! What a call takes, refuses and leaves alone.

use std::thread;

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, CaptureMode, OwnedStream};
use fourtap::dense::{self, Alignment, AttnMask, Inputs, Mask, Options, Outputs, Sizes};
use fourtap::{Backend, BoolView, DType, Error, Layout, View, ViewMut, f16};

use crate::gpu::{self, DeviceWithWorkspace};
use crate::tensors::{OnDevice, numbers};

/// Few queries, many keys: these are divided among blocks.
const DIVIDED: Sizes = Sizes {
    batch: 1,
    query_heads: 4,
    key_heads: 2,
    queries: 3,
    keys: 9001,
    channels: 64,
    value_channels: 32,
};

struct Tensors {
    query: OnDevice,
    key: OnDevice,
    value: OnDevice,
    out: OnDevice,
}

impl Tensors {
    fn new(cuda: &Cuda, sizes: &Sizes) -> Self {
        let tensor = |shape: [usize; 4], salt: u64| {
            let count = shape.iter().product();
            let numbers: Vec<f16> = numbers(count, salt).map(f16::from_f64).collect();
            OnDevice::new(cuda, &numbers, &shape)
        };
        Tensors {
            query: tensor(sizes.query(), 1),
            key: tensor(sizes.key(), 2),
            value: tensor(sizes.value(), 3),
            out: OnDevice::poisoned(cuda, DType::F16, &sizes.out()),
        }
    }

    fn workspace(&mut self, cuda: &Cuda) -> usize {
        let inputs = Inputs {
            query: self.query.view(),
            key: self.key.view(),
            value: self.value.view(),
            attn_mask: None,
        };
        let outputs = self.out.view_mut().into();
        let plan = cuda.explain_dense(inputs, Options::default(), &outputs);
        plan.unwrap().workspace_bytes()
    }

    /// The result's bits.
    fn run(&mut self, on: impl Into<DeviceWithWorkspace>) -> Result<Vec<u8>, Error> {
        let on = on.into();
        let cuda = &on.cuda;
        self.out.buffer.fill(0xff, cuda.stream()).unwrap();
        let inputs = Inputs {
            query: self.query.view(),
            key: self.key.view(),
            value: self.value.view(),
            attn_mask: None,
        };
        let out = self.out.view_mut();
        on.launch(dense::prepare_forward(
            cuda,
            inputs,
            Options::default(),
            out,
        )?)?;
        gpu::wait(cuda);
        Ok(self.out.buffer.to_vec().unwrap())
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_workspace_of_the_size_asked_for_is_enough_and_a_smaller_one_is_refused() {
    let cuda = gpu::device();
    let mut tensors = Tensors::new(&cuda, &DIVIDED);
    let bytes = tensors.workspace(&cuda);
    assert!(bytes > 0);
    let expected = tensors.run(&cuda).unwrap();
    let mut memory = Buffer::alloc(cuda.context(), bytes + 512).unwrap();
    memory.fill(0xa5, cuda.stream()).unwrap();
    // SAFETY: the memory holds so many bytes, outlives the calls' work, and is used by one call after another.
    let given = |from: u64, bytes: usize| unsafe {
        DeviceWithWorkspace::new(&cuda, memory.as_ptr() + from, bytes)
    };
    assert!(tensors.run(given(256, bytes)).unwrap() == expected);
    let around = memory.to_vec::<u8>().unwrap();
    let outside = around[..256].iter().chain(&around[256 + bytes..]);
    assert!({ outside }.all(|&byte| byte == 0xa5), "written outside");
    let refused = tensors.run(given(256, bytes - 1)).unwrap_err().to_string();
    assert_eq!(
        refused,
        format!(
            "cuda: expected a workspace of at least {bytes} bytes, found {}",
            bytes - 1
        )
    );
    assert!(matches!(
        tensors.run(given(16, bytes)).unwrap_err(),
        Error::Misaligned {
            tensor: "workspace",
            ..
        }
    ));
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_captured_graph_is_bitwise_equal() {
    let cuda = gpu::device();
    let whole = Sizes {
        queries: 300,
        ..DIVIDED
    };
    for sizes in [DIVIDED, whole] {
        let mut tensors = Tensors::new(&cuda, &sizes);
        let expected = tensors.run(&cuda).unwrap();
        let stream = OwnedStream::new(cuda.context(), true).unwrap();
        // SAFETY: the stream belongs to this device and outlives the calls.
        let captured = unsafe { cuda.on_stream(stream.stream().as_raw()) };
        let _entered = cuda.context().enter().unwrap();
        tensors.out.buffer.fill(0xff, cuda.stream()).unwrap();
        gpu::wait(&cuda);
        stream
            .stream()
            .begin_capture(CaptureMode::ThreadLocal)
            .unwrap();
        let inputs = Inputs {
            query: tensors.query.view(),
            key: tensors.key.view(),
            value: tensors.value.view(),
            attn_mask: None,
        };
        let backend = Backend::Cuda(captured);
        dense::forward(&backend, inputs, Options::default(), tensors.out.view_mut()).unwrap();
        let graph = stream
            .stream()
            .end_capture()
            .unwrap()
            .instantiate()
            .unwrap();
        for _ in 0..100 {
            // SAFETY: everything the captured kernels use is alive.
            unsafe { graph.launch(stream.stream()) }.unwrap();
        }
        stream.stream().synchronize().unwrap();
        assert!(tensors.out.buffer.to_vec::<u8>().unwrap() == expected);
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn what_no_kernel_serves_is_refused_and_nothing_to_do_is_no_error() {
    let cuda = gpu::device();
    let numbers = [0f32; 2 * 257];
    let tensor = || OnDevice::new(&cuda, &numbers, &[1, 1, 2, 257]);
    let (query, key, value, mut out) = (tensor(), tensor(), tensor(), tensor());
    let inputs = Inputs {
        query: query.view(),
        key: key.view(),
        value: value.view(),
        attn_mask: None,
    };
    let refused = dense::forward(&Backend::Auto, inputs, Options::default(), out.view_mut());
    assert_eq!(
        refused.unwrap_err().to_string(),
        "cuda: expected at most 256 channels per head, found D = 257"
    );
    for empty in [
        Sizes {
            batch: 0,
            ..DIVIDED
        },
        Sizes {
            queries: 0,
            ..DIVIDED
        },
        Sizes { keys: 0, ..DIVIDED },
    ] {
        let some = Tensors::new(&cuda, &DIVIDED);
        let mut out = OnDevice::poisoned(&cuda, DType::F16, &DIVIDED.out());
        let layout = |shape: &[usize]| fourtap::Layout::contiguous(DType::F16, shape);
        // SAFETY: the buffers are larger than these tensors.
        let view = |tensor: &OnDevice, shape: &[usize]| unsafe {
            fourtap::View::on_cuda(0, tensor.buffer.as_ptr(), layout(shape))
        };
        let inputs = Inputs {
            query: view(&some.query, &empty.query()),
            key: view(&some.key, &empty.key()),
            value: view(&some.value, &empty.value()),
            attn_mask: None,
        };
        // SAFETY: likewise.
        let result =
            unsafe { fourtap::ViewMut::on_cuda(0, out.buffer.as_ptr(), layout(&empty.out())) };
        dense::forward(&Backend::Auto, inputs, Options::default(), result).unwrap();
        gpu::wait(&cuda);
        let found = out.buffer.to_vec::<f16>().unwrap();
        match empty.keys {
            0 => assert!(found.iter().all(|x| x.to_f64() == 0.0)),
            _ => assert!(found.iter().all(|x| x.is_nan())),
        }
        let _ = out.view_mut();
    }
}

/// What differs between calls of one thread.
#[derive(Clone)]
struct Call {
    cuda: Cuda,
    /// Where in the buffer queries, keys and values begin, in elements.
    at: [u64; 3],
    options: Options,
    with_lse: bool,
    /// Where the result goes; none for memory of its own.
    into: Option<u64>,
    /// Where booleans begin, and how far their rows are apart.
    seen: Option<(u64, isize)>,
    /// Where biases begin.
    bias: Option<u64>,
}

impl Call {
    /// The bytes of the results, or why there are none.
    fn make(&self, numbers: &OnDevice, sizes: &Sizes) -> Result<Vec<u8>, Error> {
        let cuda = &self.cuda;
        let address = |at: u64| numbers.buffer.as_ptr() + 2 * at;
        let layout = |shape: &[usize]| Layout::contiguous(DType::F16, shape);
        // SAFETY: every tensor of the calls here lies inside the buffer, which lives until the result was read.
        let view = |at, shape: [usize; 4]| unsafe { View::on_cuda(0, address(at), layout(&shape)) };
        let inputs = Inputs {
            query: view(self.at[0], sizes.query()),
            key: view(self.at[1], sizes.key()),
            value: view(self.at[2], sizes.value()),
            attn_mask: match (self.seen, self.bias) {
                (Some((at, stride)), _) => {
                    let (shape, strides) = ([sizes.queries, sizes.keys], [stride, 1]);
                    // SAFETY: as above.
                    Some(AttnMask::Seen(unsafe {
                        BoolView::on_cuda(0, address(at), &shape, &strides)
                    }))
                }
                (_, Some(at)) => Some(AttnMask::Bias(view(at, [1, 1, sizes.queries, sizes.keys]))),
                _ => None,
            },
        };
        let mut own = OnDevice::poisoned(cuda, DType::F16, &sizes.out());
        let mut lse = OnDevice::poisoned(cuda, DType::F32, &sizes.lse());
        let outputs = Outputs {
            out: match self.into {
                // SAFETY: as above; such calls are refused.
                Some(at) => unsafe { ViewMut::on_cuda(0, address(at), layout(&sizes.out())) },
                None => own.view_mut(),
            },
            lse: self.with_lse.then(|| lse.view_mut()),
        };
        dense::forward(cuda, inputs, self.options, outputs)?;
        gpu::wait(cuda);
        let results = [&own, &lse].map(|tensor| tensor.buffer.to_vec::<u8>().unwrap());
        Ok(results.concat())
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn cached_plans_change_no_call() {
    let cuda = gpu::device();
    let count = 1 << 16;
    let random: Vec<f16> = numbers(count, 4).map(f16::from_f64).collect();
    let random = OnDevice::new(&cuda, &random, &[count]);
    let sizes = Sizes {
        batch: 1,
        query_heads: 2,
        key_heads: 2,
        queries: 40,
        keys: 100,
        channels: 64,
        value_channels: 64,
    };
    let usual = Call {
        cuda,
        at: [0, 1 << 14, 1 << 15],
        options: Options::default(),
        with_lse: true,
        into: None,
        seen: None,
        bias: None,
    };
    let with = |change: &dyn Fn(&mut Call)| {
        let mut call = usual.clone();
        change(&mut call);
        call
    };
    let calls = [
        usual.clone(),
        with(&|call| call.at = [128, (1 << 14) + 256, 1 << 15]),
        // Aligned for elements, not for what kernels read at a time.
        with(&|call| call.at[0] = 1),
        with(&|call| call.at[1] += 2),
        with(&|call| call.with_lse = false),
        with(&|call| call.options.scale = Some(0.5)),
        with(&|call| call.options.mask = Mask::causal(Alignment::TopLeft)),
        with(&|call| call.options.mask = Mask::window(Alignment::TopLeft, Some(3), None)),
        with(&|call| call.cuda = cuda.for_multiprocessors(1000)),
        with(&|call| call.cuda = cuda.deterministic(true)),
        with(&|call| call.seen = Some((3 << 14, 100))),
        with(&|call| call.seen = Some(((3 << 14) + 128, 100))),
        with(&|call| call.seen = Some((3 << 14, 101))),
        with(&|call| call.bias = Some(3 << 14)),
        with(&|call| call.bias = Some((3 << 14) + 1)),
        // Refused.
        with(&|call| call.into = Some(0)),
        with(&|call| (call.seen, call.into) = (Some((3 << 14, 100)), Some(3 << 14))),
        with(&|call| call.options.scale = Some(f64::NAN)),
    ];
    let alone = |call: &Call| {
        thread::scope(|scope| scope.spawn(|| call.make(&random, &sizes)).join().unwrap())
    };
    let expected: Vec<_> = calls.iter().map(alone).collect();
    assert_eq!(expected.iter().filter(|result| result.is_err()).count(), 3);
    assert_ne!(expected[0], expected[1], "other numbers");
    for distance in 1..calls.len() {
        for first in 0..calls.len() {
            for index in [first, (first + distance) % calls.len()] {
                let found = calls[index].make(&random, &sizes);
                assert!(
                    found == expected[index],
                    "call {index} after {first}, {distance}"
                );
            }
        }
    }
}
