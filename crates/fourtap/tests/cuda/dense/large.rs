//! Problems too large for the oracle: rows of them, each against the oracle's answer to that row alone.

use fourtap::cuda::driver::Plain;
use fourtap::dense::{self, Alignment, Inputs, Mask, Options, Sizes};
use fourtap::verify::{DenseCase, ExpectedDenseResults, Storage, Tensor};
use fourtap::{Backend, Element, bf16, f16};

use crate::gpu;
use crate::tensors::{OnDevice, numbers};

fn sizes(heads: [usize; 2], queries: usize, keys: usize, channels: usize) -> Sizes {
    Sizes {
        batch: 2,
        query_heads: heads[0],
        key_heads: heads[1],
        queries,
        keys,
        channels,
        value_channels: channels,
    }
}

/// A tensor on the device, and its numbers.
fn tensor<T: Element + Plain>(
    cuda: &fourtap::cuda::Cuda,
    shape: [usize; 4],
    salt: u64,
) -> (Vec<T>, OnDevice) {
    let count = shape.iter().product();
    let numbers: Vec<T> = numbers(count, salt)
        .map(|x| T::from_f64(3.4 * x - 1.7))
        .collect();
    let on_device = OnDevice::new(cuda, &numbers, &shape);
    (numbers, on_device)
}

fn check<T: Element + Plain>(cuda: &fourtap::cuda::Cuda, sizes: Sizes, mask: Mask) {
    let (queries, query) = tensor::<T>(cuda, sizes.query(), 1);
    let (keys, key) = tensor::<T>(cuda, sizes.key(), 2);
    let (values, value) = tensor::<T>(cuda, sizes.value(), 3);
    let mut out = OnDevice::poisoned(cuda, T::DTYPE, &sizes.out());
    let inputs = Inputs {
        query: query.view(),
        key: key.view(),
        value: value.view(),
        attn_mask: None,
    };
    let options = Options { scale: None, mask };
    dense::forward(&Backend::Cuda(*cuda), inputs, options, out.view_mut()).unwrap();
    gpu::wait(cuda);
    let found = out.buffer.to_vec::<T>().unwrap();
    assert!(found.iter().all(|x| x.to_f64().is_finite()), "{sizes:?}");
    let (d, planes) = (sizes.channels, sizes.batch * sizes.query_heads);
    for sample in 0..24 {
        // The first and the last row of the first and the last head, and others.
        let plane = if sample < 4 {
            sample % 2 * (planes - 1)
        } else {
            sample * 7919 % planes
        };
        let row = if sample < 4 {
            sample / 2 * (sizes.queries - 1)
        } else {
            sample * 104_729 % sizes.queries
        };
        let (batch, head) = (plane / sizes.query_heads, plane % sizes.query_heads);
        let key_plane = batch * sizes.key_heads + head / sizes.group();
        let seen = mask.visible(row, sizes.queries, sizes.keys);
        let some = |numbers: &[T], first: usize, rows: usize| {
            let part = numbers[first * d..(first + rows) * d].to_vec();
            Tensor::dense(part, &[1, 1, rows, d])
        };
        let first_key = key_plane * sizes.keys + seen.start;
        let case = DenseCase {
            seed: 0,
            query: some(&queries, plane * sizes.queries + row, 1),
            key: some(&keys, first_key, seen.len()),
            value: some(&values, first_key, seen.len()),
            options: Options::default(),
            outputs: [4, 3].map(Storage::dense),
            attn_mask: None,
        };
        let result = some(&found, plane * sizes.queries + row, 1);
        let expected = ExpectedDenseResults::new(&case).unwrap();
        if let Err(failure) = expected.compare(&result, None) {
            panic!("{sizes:?} {mask:?}: head {plane}, row {row}: {failure}");
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn rows_of_large_problems_match_the_oracle() {
    let cuda = gpu::device();
    let causal = Mask::causal(Alignment::TopLeft);
    let window = Mask::window(Alignment::BottomRight, Some(1000), Some(0));
    check::<f16>(&cuda, sizes([16, 16], 8191, 8192, 64), Mask::default());
    check::<f16>(&cuda, sizes([16, 16], 2048, 2048, 64), causal);
    check::<bf16>(&cuda, sizes([16, 4], 4099, 8192, 128), causal);
    check::<bf16>(&cuda, sizes([16, 16], 8192, 8192, 128), window);
    check::<f16>(&cuda, sizes([8, 8], 2048, 8192, 256), Mask::default());
    check::<bf16>(&cuda, sizes([8, 2], 3000, 3000, 96), causal);
    check::<f16>(&cuda, sizes([32, 8], 1, 65_537, 128), Mask::default());
    check::<f16>(&cuda, sizes([8, 8], 16, 40_000, 64), Mask::default());
    check::<f32>(&cuda, sizes([16, 16], 4099, 8192, 64), Mask::default());
    check::<f32>(&cuda, sizes([16, 4], 2048, 2048, 128), causal);
    check::<f32>(&cuda, sizes([8, 8], 16, 40_000, 32), Mask::default());
}
