//! Gradients are bitwise equal from run to run, and whichever others are computed with them.

use fourtap::cuda::Cuda;
use fourtap::dense::{Alignment, Mask, Sizes};
use fourtap::verify::{
    DenseBackwardCase, DenseCase, DenseGradientSelection, DenseGradientsOnCuda, Tensor,
};

use super::{TYPES, kernels, ways};
use crate::gpu;

const RUNS: usize = 250;

fn run(
    case: &DenseBackwardCase,
    cuda: Cuda,
    selected: DenseGradientSelection,
) -> [Option<Vec<u64>>; 4] {
    let mut on_device = DenseGradientsOnCuda::new(case, cuda, selected).unwrap();
    on_device.backward().unwrap();
    let found = on_device.read().unwrap();
    let bits = |tensor: &Tensor| tensor.to_f64().into_iter().map(f64::to_bits).collect();
    found.named().map(|(_, tensor)| tensor.map(bits))
}

#[test]
#[ignore = "needs a CUDA device"]
fn runs_are_bitwise_equal() {
    let cuda = gpu::device();
    let causal = Mask::causal(Alignment::BottomRight);
    for (seed, channels, masked, mask) in [
        (0, 64, false, causal),
        (1, 128, false, Mask::default()),
        (2, 256, false, causal),
        (3, 32, true, Mask::default()),
        (5, 128, true, causal),
        (7, 80, true, Mask::default()),
    ] {
        let sizes = Sizes {
            batch: 2,
            query_heads: 6,
            key_heads: 3,
            queries: 501,
            keys: 417,
            channels,
            value_channels: channels,
        };
        let mut case = DenseCase::with_sizes(seed, TYPES[seed as usize % 2], &sizes);
        case.options.mask = mask;
        if masked {
            case = case.with_mask();
        }
        let case = match seed % 2 {
            0 => DenseBackwardCase::new(case),
            _ => DenseBackwardCase::whole(case),
        };
        let case = case.unwrap();
        for cuda in ways(&cuda, &case) {
            let first = run(&case, cuda, DenseGradientSelection::ALL);
            for number in 1..RUNS {
                let found = run(&case, cuda, DenseGradientSelection::ALL);
                assert!(found == first, "run {number} of seed {seed} differs");
            }
            // The kernels for Hopper serve no calls that want none of the three.
            let served = |it: &DenseGradientSelection| it.query || it.key || it.value;
            for selected in DenseGradientSelection::choices().filter(served) {
                for (one, all) in run(&case, cuda, selected).iter().zip(&first) {
                    assert!(one.is_none() || one == all, "{selected:?} of seed {seed}");
                }
            }
        }
    }
    gpu::evidence(
        &cuda,
        "reproducible",
        &kernels(),
        "250 of 250 runs equal in every form, both types, with masks and biases",
    );
}

#[test]
#[ignore = "needs a CUDA device"]
fn problems_with_nothing_in_them_are_legal() {
    for axis in 0..5 {
        let mut numbers = [2, 1, 3, 4, 5]; // B, Hk, group, Sq, Sk
        numbers[axis] = 0;
        let [batch, key_heads, group, queries, keys] = numbers;
        let sizes = Sizes {
            batch,
            query_heads: key_heads * group,
            key_heads,
            queries,
            keys,
            channels: 3,
            value_channels: 2,
        };
        for seed in 0..8 {
            let mut case = DenseCase::with_sizes(seed, TYPES[0], &sizes);
            if seed % 2 == 1 {
                case = case.with_mask();
            }
            let case = DenseBackwardCase::new(case).unwrap();
            for cuda in ways(&gpu::device(), &case) {
                let all = DenseGradientSelection::ALL;
                let mut on_device = DenseGradientsOnCuda::new(&case, cuda, all).unwrap();
                on_device.backward().unwrap();
                let found = on_device.read().unwrap();
                for (name, tensor) in found.named() {
                    let numbers = tensor.map(Tensor::to_f64).unwrap_or_default();
                    assert!(numbers.iter().all(|&x| x == 0.0), "{name} of {sizes:?}");
                }
            }
        }
    }
}
