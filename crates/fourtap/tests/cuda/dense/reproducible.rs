//! Results are bitwise reproducible from run to run.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::Plain;
use fourtap::dense::{self, Alignment, AttnMask, Inputs, Mask, Options, Sizes};
use fourtap::{Backend, BoolView, Element, bf16, f16};

use super::{cuts, forward_kernels, hopper_cuts};
use crate::gpu;
use crate::tensors::{OnDevice, numbers};

const RUNS: usize = 1000;

/// A tensor that masks.
#[derive(Clone, Copy)]
enum Attn {
    None,
    Seen,
    Bias,
}

fn runs<T: Element + Plain>(cuda: &Cuda, sizes: Sizes, mask: Mask, attn: Attn) {
    let tensor = |shape: [usize; 4], salt: u64| {
        let count = shape.iter().product();
        let numbers: Vec<T> = numbers(count, salt)
            .map(|x| T::from_f64(4.0 * x - 2.0))
            .collect();
        OnDevice::new(cuda, &numbers, &shape)
    };
    let (query, key, value) = (
        tensor(sizes.query(), 1),
        tensor(sizes.key(), 2),
        tensor(sizes.value(), 3),
    );
    // Half of its bytes are not 0.
    let masking = tensor([1, sizes.query_heads, sizes.queries, sizes.keys], 4);
    let attn_mask = match attn {
        Attn::None => None,
        Attn::Bias => Some(AttnMask::Bias(masking.view())),
        Attn::Seen => {
            let shape = [sizes.queries, sizes.keys];
            let strides = [sizes.keys as isize, 1];
            // SAFETY: the buffer has more bytes, and outlives the calls.
            Some(AttnMask::Seen(unsafe {
                BoolView::on_cuda(0, masking.buffer.as_ptr(), &shape, &strides)
            }))
        }
    };
    let options = Options { scale: None, mask };
    let mut out = OnDevice::poisoned(cuda, T::DTYPE, &sizes.out());
    let mut run = || {
        out.buffer.fill(0xff, cuda.stream()).unwrap();
        let inputs = Inputs {
            query: query.view(),
            key: key.view(),
            value: value.view(),
            attn_mask,
        };
        dense::forward(&Backend::Cuda(*cuda), inputs, options, out.view_mut()).unwrap();
        gpu::wait(cuda);
        out.buffer.to_vec::<u8>().unwrap()
    };
    let first = run();
    for number in 1..RUNS {
        assert!(run() == first, "run {number} of {} differs", T::DTYPE);
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_thousand_runs_are_bitwise_equal() {
    let cuda = gpu::device();
    let sizes = Sizes {
        batch: 1,
        query_heads: 6,
        key_heads: 3,
        queries: 301,
        keys: 517,
        channels: 64,
        value_channels: 64,
    };
    let causal = Mask::causal(Alignment::BottomRight);
    for (cut, cuda) in cuts(&cuda).into_iter().enumerate() {
        match cut % 2 {
            0 => runs::<f16>(&cuda, sizes, causal, Attn::Seen),
            _ => runs::<bf16>(&cuda, sizes, Mask::default(), Attn::None),
        }
    }
    let wide = Sizes {
        channels: 256,
        value_channels: 256,
        ..sizes
    };
    for cuda in hopper_cuts(&cuda) {
        runs::<f16>(&cuda, sizes, causal, Attn::Seen);
        runs::<bf16>(&cuda, sizes, Mask::default(), Attn::None);
        runs::<bf16>(&cuda, wide, Mask::default(), Attn::Bias);
    }
    runs::<f16>(&cuda, wide, Mask::default(), Attn::None);
    runs::<f16>(&cuda, sizes, causal, Attn::Bias);
    for (attn, cuda) in [Attn::None, Attn::Seen, Attn::Bias]
        .into_iter()
        .zip(cuts(&cuda))
    {
        runs::<f32>(&cuda, sizes, causal, attn);
    }
    runs::<f32>(
        &cuda.for_multiprocessors(100_000),
        sizes,
        Mask::default(),
        Attn::Bias,
    );
    runs::<f64>(&cuda, sizes, causal, Attn::Bias);
    gpu::evidence(
        &cuda,
        "reproducible",
        &forward_kernels(),
        "1000 of 1000 runs equal in every form, every type, with masks and biases",
    );
}
