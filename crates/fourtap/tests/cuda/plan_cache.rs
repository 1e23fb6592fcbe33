//! The plan cache of a thread never changes the result of a call: it gives what it gives on a thread with an empty cache,
//! refusals included.

use std::thread;

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Buffer;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::{self, CudaLevels, Gradients, Inputs, LevelTable, Levels, Sizes};
use fourtap::{DType, Error, Layout, View, ViewMut};

use crate::gpu;
use crate::tensors::{OnDevice, numbers};

/// A call on tensors somewhere in one buffer.
#[derive(Clone)]
struct Call {
    cuda: Cuda,
    shapes: Vec<(usize, usize)>,
    starts: Option<Vec<usize>>,
    on_device: bool,
    queries: usize,
    channels: usize,
    /// Where in the buffer value, locations and weights begin, in elements; none for address 0.
    at: [Option<u64>; 3],
    /// Elements between two pixels beyond their channels.
    gap: usize,
    /// Where the first result goes; none for memory of its own.
    into: Option<u64>,
    /// Where in the buffer `grad_out` begins.
    grad_out_at: u64,
    /// Whether backward computes the gradients of weights too.
    all_gradients: bool,
}

#[derive(Clone, Copy, Debug)]
enum Pass {
    Forward,
    Backward,
}

impl Call {
    fn sizes(&self) -> Sizes {
        Sizes {
            images: 1,
            pixels: self
                .shapes
                .iter()
                .map(|(height, width)| height * width)
                .sum(),
            heads: 2,
            channels: self.channels,
            queries: self.queries,
            levels: self.shapes.len(),
            points: 4,
        }
    }

    /// The bits of the results of a pass, or why there are none.
    fn make(&self, numbers: &OnDevice, pass: Pass) -> Result<Vec<u32>, Error> {
        let Call { cuda, .. } = *self;
        let sizes = self.sizes();
        let address = |at: u64| numbers.buffer.as_ptr() + 4 * at;
        let view = |at: Option<u64>, layout: Layout| {
            // SAFETY: every tensor of the calls here lies inside the buffer, which lives until the result was read.
            unsafe { View::on_cuda(0, at.map_or(0, address), layout) }
        };
        let dense = |shape: &[usize]| Layout::contiguous(DType::F32, shape);
        let pixel = (sizes.heads * sizes.channels + self.gap) as isize;
        let value = Layout::strided(
            DType::F32,
            &sizes.value(),
            &[
                sizes.pixels as isize * pixel,
                pixel,
                sizes.channels as isize,
                1,
            ],
        );
        let levels = match &self.starts {
            Some(starts) => Levels::with_starts(&self.shapes, starts)?,
            None => Levels::packed(&self.shapes)?,
        };
        let flat = |numbers: &[i64]| Buffer::from_slice(cuda.context(), numbers).unwrap();
        let of_shapes: Vec<i64> = levels
            .iter()
            .flat_map(|level| [level.height as i64, level.width as i64])
            .collect();
        let of_starts: Vec<i64> = levels.iter().map(|level| level.start as i64).collect();
        let (of_shapes, of_starts) = (flat(&of_shapes), flat(&of_starts));
        let levels = match self.on_device {
            // SAFETY: both live until the result was read.
            true => LevelTable::Cuda(unsafe {
                let starts = self.starts.as_ref().map(|_| of_starts.as_ptr());
                CudaLevels::new(0, self.shapes.len(), of_shapes.as_ptr(), starts)
            }),
            false => (&levels).into(),
        };
        let inputs = Inputs {
            value: view(self.at[0], value),
            levels,
            sampling_locations: view(self.at[1], dense(&sizes.sampling_locations())),
            attention_weights: view(self.at[2], dense(&sizes.attention_weights())),
        };
        let shapes: &[&[usize]] = match pass {
            Pass::Forward => &[&sizes.out()],
            Pass::Backward => &[
                &sizes.sampling_locations(),
                &sizes.attention_weights(),
                &sizes.value(),
            ],
        };
        let mut own: Vec<_> = shapes
            .iter()
            .map(|shape| OnDevice::poisoned(&cuda, DType::F32, shape))
            .collect();
        let mut written: Vec<_> = own.iter_mut().map(OnDevice::view_mut).collect();
        if let Some(at) = self.into {
            // SAFETY: as above; such calls are refused.
            written[0] = unsafe { ViewMut::on_cuda(0, address(at), dense(shapes[0])) };
        }
        let mut written = written.into_iter();
        match pass {
            Pass::Forward => msda::forward(&cuda, inputs, written.next().unwrap())?,
            Pass::Backward => {
                // Atomic additions are not reproducible.
                let cuda = cuda.deterministic(true);
                let grad_out = view(Some(self.grad_out_at), dense(&sizes.out()));
                let gradients = Gradients {
                    sampling_locations: written.next(),
                    attention_weights: written.next().filter(|_| self.all_gradients),
                    value: written.next(),
                };
                msda::backward(&cuda, inputs, grad_out, gradients)?;
            }
        }
        gpu::wait(&cuda);
        let results = own
            .iter()
            .flat_map(|tensor| tensor.buffer.to_vec::<f32>().unwrap());
        Ok(results.map(f32::to_bits).collect())
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn cached_plans_change_no_forward_call() {
    cached_plans_change_no_call(Pass::Forward);
}

#[test]
#[ignore = "needs a CUDA device"]
fn cached_plans_change_no_backward_call() {
    cached_plans_change_no_call(Pass::Backward);
}

fn cached_plans_change_no_call(pass: Pass) {
    let cuda = gpu::device();
    let count = 1 << 16;
    let random: Vec<f32> = numbers(count, 9).map(|x| (1.2 * x - 0.1) as f32).collect();
    let random = OnDevice::new(&cuda, &random, &[count]);
    let usual = Call {
        cuda,
        shapes: vec![(6, 4), (2, 3)],
        starts: None,
        on_device: false,
        queries: 9,
        channels: 32,
        at: [Some(0), Some(1 << 14), Some(1 << 15)],
        gap: 0,
        into: None,
        grad_out_at: 3 << 14,
        all_gradients: true,
    };
    let at =
        |value: u64, locations: u64, weights: u64| [Some(value), Some(locations), Some(weights)];
    let with = |change: &dyn Fn(&mut Call)| {
        let mut call = usual.clone();
        change(&mut call);
        call
    };
    let calls = [
        usual.clone(),
        with(&|call| call.at = at(64, (1 << 14) + 64, (1 << 15) + 128)),
        // Aligned for elements, not for what kernels read at a time.
        with(&|call| call.at = at(1, 1 << 14, 1 << 15)),
        with(&|call| call.at = at(0, (1 << 14) + 2, 1 << 15)),
        with(&|call| call.at = at(0, 1 << 14, (1 << 15) + 1)),
        with(&|call| call.shapes = vec![(4, 6), (2, 3)]),
        with(&|call| call.shapes = vec![(2, 3), (6, 4)]),
        with(&|call| call.starts = Some(vec![6, 0])),
        with(&|call| call.on_device = true),
        with(&|call| (call.on_device, call.starts) = (true, Some(vec![6, 0]))),
        with(&|call| (call.on_device, call.shapes) = (true, vec![(4, 6), (3, 2)])),
        with(&|call| call.queries = 8),
        with(&|call| call.channels = 16),
        with(&|call| call.gap = 4),
        with(&|call| call.gap = 1),
        with(&|call| call.cuda = cuda.with_msda(KernelChoice::Channel)),
        with(&|call| call.cuda = cuda.with_msda(KernelChoice::GatherMany)),
        with(&|call| call.cuda = cuda.for_multiprocessors(1)),
        with(&|call| call.cuda = cuda.deterministic(true)),
        with(&|call| call.grad_out_at += 64),
        with(&|call| call.grad_out_at += 1),
        with(&|call| call.all_gradients = false),
        // Refused, each for a reason of its own.
        with(&|call| call.at[0] = None),
        with(&|call| call.at[2] = None),
        with(&|call| call.into = Some(0)),
        with(&|call| call.into = Some((1 << 15) + 8)),
        with(&|call| (call.on_device, call.into) = (true, Some(1 << 14))),
    ];
    let alone = |call: &Call| {
        thread::scope(|scope| scope.spawn(|| call.make(&random, pass)).join().unwrap())
    };
    let expected: Vec<_> = calls.iter().map(alone).collect();
    assert_eq!(expected.iter().filter(|result| result.is_err()).count(), 5);
    assert_ne!(expected[0], expected[1], "other numbers");
    // More often than calls are remembered, and each after every other.
    for distance in 1..calls.len() {
        for first in 0..calls.len() {
            let second = (first + distance) % calls.len();
            for index in [first, second] {
                let found = calls[index].make(&random, pass);
                assert!(
                    found == expected[index],
                    "{pass:?}: call {index} after {first}, {distance}"
                );
            }
        }
    }
}
