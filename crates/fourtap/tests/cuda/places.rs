//! Memory that the device cannot read is refused, also after a call that was right: plans of calls that differ in nothing
//! else are cached.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Buffer;
use fourtap::dense::{self, AttnMask, ForwardResults};
use fourtap::msda::projections::{
    self, BoxScale, Interpolation, Points, ProjectionGradients, Projections,
};
use fourtap::msda::{self, Levels};
use fourtap::{BoolView, DType, Error, Layout, View, ViewMut};

use crate::gpu;

/// Bytes for each tensor, and what tensors are aligned to, on the host as well: a plan is for one alignment.
const BYTES: usize = 1 << 16;
const ALIGNMENT: usize = 256;
const MOST: usize = 16;

/// The tensors of a call, by number, all of them zeros in device memory but for one.
struct Tensors {
    device: Buffer,
    host: Vec<u8>,
    on_host: Option<usize>,
}

impl Tensors {
    fn new(cuda: &Cuda) -> Self {
        let device = Buffer::alloc(cuda.context(), MOST * BYTES).unwrap();
        assert_eq!(device.as_ptr() as usize % ALIGNMENT, 0);
        Tensors {
            device,
            host: vec![0; MOST * BYTES + ALIGNMENT],
            on_host: None,
        }
    }

    fn on_device(&self, number: usize) -> Option<u64> {
        let address = self.device.as_ptr() + (number * BYTES) as u64;
        (self.on_host != Some(number)).then_some(address)
    }

    fn on_host(&self, number: usize) -> *const u8 {
        let first = self.host.as_ptr();
        let aligned = first.wrapping_add(first.align_offset(ALIGNMENT));
        aligned.wrapping_add(number * BYTES)
    }

    fn view(&self, number: usize, dtype: DType, shape: &[usize]) -> View<'_> {
        let layout = Layout::contiguous(dtype, shape);
        match self.on_device(number) {
            // SAFETY: tensors are smaller than their part of the buffer, which outlives the work of all calls.
            Some(address) => unsafe { View::on_cuda(0, address, layout) },
            // SAFETY: the same of the host's memory.
            None => unsafe { View::from_raw(self.on_host(number), layout) },
        }
    }

    fn output(&self, number: usize, dtype: DType, shape: &[usize]) -> ViewMut<'_> {
        let layout = Layout::contiguous(dtype, shape);
        match self.on_device(number) {
            // SAFETY: as in `view`.
            Some(address) => unsafe { ViewMut::on_cuda(0, address, layout) },
            // SAFETY: nothing is written: the call is refused.
            None => unsafe { ViewMut::from_raw(self.on_host(number).cast_mut(), layout) },
        }
    }

    fn booleans(&self, number: usize, shape: [usize; 2]) -> BoolView<'_> {
        let strides = [shape[1] as isize, 1];
        match self.on_device(number) {
            // SAFETY: as in `view`.
            Some(address) => unsafe { BoolView::on_cuda(0, address, &shape, &strides) },
            // SAFETY: as in `view`.
            None => unsafe { BoolView::from_raw(self.on_host(number), &shape, &strides) },
        }
    }
}

/// Makes a call that is right, and then again with each of its tensors in host memory.
fn check(names: &[&str], call: impl Fn(&Cuda, &Tensors) -> Result<(), Error>) {
    let cuda = gpu::device();
    let mut tensors = Tensors::new(&cuda);
    tensors.device.fill(0, cuda.stream()).unwrap();
    for (number, name) in names.iter().enumerate() {
        tensors.on_host = None;
        call(&cuda, &tensors).unwrap();
        tensors.on_host = Some(number);
        let error = call(&cuda, &tensors).expect_err(name);
        assert!(matches!(error, Error::Place { .. }), "{name}: {error}");
    }
    // The device is still usable, which it is not once a kernel has used an address of the host.
    tensors.on_host = None;
    call(&cuda, &tensors).unwrap();
    gpu::wait(&cuda);
}

const VALUE: [usize; 4] = [1, 12, 2, 32];
const OUT: [usize; 3] = [1, 5, 64];
const LOCATIONS: [usize; 6] = [1, 5, 2, 1, 4, 2];
const WEIGHTS: [usize; 5] = [1, 5, 2, 1, 4];
const OFFSETS: [usize; 5] = [1, 5, 2, 4, 2];
const LOGITS: [usize; 4] = [1, 5, 2, 4];
const REFERENCES: [usize; 4] = [1, 5, 1, 2];

fn levels() -> Levels {
    Levels::packed(&[(3, 4)]).unwrap()
}

fn inputs<'a>(tensors: &'a Tensors, levels: &'a Levels) -> msda::Inputs<'a> {
    msda::Inputs {
        value: tensors.view(0, DType::F32, &VALUE),
        levels: levels.into(),
        sampling_locations: tensors.view(1, DType::F32, &LOCATIONS),
        attention_weights: tensors.view(2, DType::F32, &WEIGHTS),
    }
}

fn projections<'a>(tensors: &'a Tensors, levels: &'a Levels) -> Projections<'a> {
    Projections {
        value: tensors.view(0, DType::F32, &VALUE),
        levels: levels.into(),
        reference_points: tensors.view(1, DType::F32, &REFERENCES),
        sampling_offsets: tensors.view(2, DType::F32, &OFFSETS),
        attention_logits: tensors.view(3, DType::F32, &LOGITS),
        points: Points::Each(4),
        value_mask: Some(tensors.booleans(4, [VALUE[0], VALUE[1]])),
        mask_is_applied: false,
        interpolation: Interpolation::default(),
        box_scale: BoxScale::default(),
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn of_deformable_attention() {
    let levels = levels();
    let names = ["value", "sampling_locations", "attention_weights", "out"];
    check(&names, |cuda, tensors| {
        msda::forward(
            cuda,
            inputs(tensors, &levels),
            tensors.output(3, DType::F32, &OUT),
        )
    });
    let names = [
        "value",
        "sampling_locations",
        "attention_weights",
        "grad_out",
        "grad_value",
        "grad_locations",
        "grad_weights",
    ];
    check(&names, |cuda, tensors| {
        let gradients = msda::Gradients {
            value: Some(tensors.output(4, DType::F32, &VALUE)),
            sampling_locations: Some(tensors.output(5, DType::F32, &LOCATIONS)),
            attention_weights: Some(tensors.output(6, DType::F32, &WEIGHTS)),
        };
        let grad_out = tensors.view(3, DType::F32, &OUT);
        msda::backward(cuda, inputs(tensors, &levels), grad_out, gradients)
    });
}

#[test]
#[ignore = "needs a CUDA device"]
fn of_deformable_attention_from_projections() {
    let levels = levels();
    let inputs = [
        "value",
        "reference_points",
        "sampling_offsets",
        "attention_logits",
        "value_mask",
    ];
    let names = [&inputs[..], &["out"]].concat();
    check(&names, |cuda, tensors| {
        let out = tensors.output(5, DType::F32, &OUT);
        projections::forward(cuda, projections(tensors, &levels), out)
    });
    let gradients = [
        "grad_out",
        "grad_value",
        "grad_references",
        "grad_offsets",
        "grad_logits",
    ];
    let names = [&inputs[..], &gradients].concat();
    check(&names, |cuda, tensors| {
        let gradients = ProjectionGradients {
            value: Some(tensors.output(6, DType::F32, &VALUE)),
            reference_points: Some(tensors.output(7, DType::F32, &REFERENCES)),
            sampling_offsets: Some(tensors.output(8, DType::F32, &OFFSETS)),
            attention_logits: Some(tensors.output(9, DType::F32, &LOGITS)),
        };
        let grad_out = tensors.view(5, DType::F32, &OUT);
        projections::backward(cuda, projections(tensors, &levels), grad_out, gradients)
    });
    check(&["value", "value_mask"], |cuda, tensors| {
        let value = tensors.output(0, DType::F32, &VALUE);
        projections::zero_pixels(cuda, value, tensors.booleans(1, [VALUE[0], VALUE[1]]))
    });
}

const QUERY: [usize; 4] = [1, 4, 20, 64];
const KEY: [usize; 4] = [1, 2, 30, 64];
const LSE: [usize; 3] = [1, 4, 20];
const MASK: [usize; 2] = [20, 30];

fn masked(tensors: &Tensors, is_bias: bool) -> dense::Inputs<'_> {
    dense::Inputs {
        query: tensors.view(0, DType::F16, &QUERY),
        key: tensors.view(1, DType::F16, &KEY),
        value: tensors.view(2, DType::F16, &KEY),
        attn_mask: Some(match is_bias {
            true => AttnMask::Bias(tensors.view(3, DType::F16, &MASK)),
            false => AttnMask::Seen(tensors.booleans(3, MASK)),
        }),
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn of_dense_attention() {
    for is_bias in [false, true] {
        let names = ["query", "key", "value", "attn_mask", "out", "lse"];
        check(&names, |cuda, tensors| {
            let outputs = dense::Outputs {
                out: tensors.output(4, DType::F16, &QUERY),
                lse: Some(tensors.output(5, DType::F32, &LSE)),
            };
            let options = dense::Options::default();
            dense::forward(cuda, masked(tensors, is_bias), options, outputs)
        });
        let names = [
            "query",
            "key",
            "value",
            "attn_mask",
            "out",
            "lse",
            "grad_out",
            "grad_query",
            "grad_key",
            "grad_value",
            "grad_bias",
        ];
        let tensors = if is_bias {
            names.len()
        } else {
            names.len() - 1
        };
        check(&names[..tensors], |cuda, tensors| {
            let results = ForwardResults {
                out: tensors.view(4, DType::F16, &QUERY),
                lse: tensors.view(5, DType::F32, &LSE),
            };
            let gradients = dense::Gradients {
                query: Some(tensors.output(7, DType::F16, &QUERY)),
                key: Some(tensors.output(8, DType::F16, &KEY)),
                value: Some(tensors.output(9, DType::F16, &KEY)),
                bias: is_bias.then(|| tensors.output(10, DType::F16, &MASK)),
            };
            let options = dense::Options::default();
            let grad_out = tensors.view(6, DType::F16, &QUERY);
            let inputs = masked(tensors, is_bias);
            dense::backward(cuda, inputs, options, results, grad_out, gradients)
        });
    }
}
