//! Which kernels compute the gradients of which problems. No device is needed.

use crate::cuda::SpecialisedKernel;
use crate::cuda::dense::{GradientKernels, ProblemDesc};
use crate::cuda::device_size::DeviceSize;
use crate::dense::{Alignment, AttnMaskDesc, Mask, Sizes};
use crate::dtype::DType;

const HOPPER: DeviceSize = DeviceSize {
    multiprocessors: 132,
    l2_bytes: 60 << 20,
    shared_bytes: 227 << 10,
    has_wgmma: true,
};
/// The least shared memory there is: compute capability 8.6, 8.9 and 12.0.
const SMALL: DeviceSize = DeviceSize {
    multiprocessors: 46,
    l2_bytes: 40 << 20,
    shared_bytes: 99 << 10,
    has_wgmma: false,
};

fn described(batch: usize, positions: usize, channels: usize) -> ProblemDesc {
    ProblemDesc {
        sizes: Sizes {
            batch,
            query_heads: 16,
            key_heads: 16,
            queries: positions,
            keys: positions,
            channels,
            value_channels: channels,
        },
        dtype: DType::F16,
        mask: Mask::default(),
        attn_mask: None,
        align: 16,
        boxes: true,
    }
}

fn entries(described: ProblemDesc, device: DeviceSize) -> Vec<&'static str> {
    let plan = described.plan_backward(device, None).unwrap();
    plan.steps().map(|step| step.kernel.entry()).collect()
}

const ON_HOPPER: [&str; 3] = [
    "dense_gradient_statistics",
    "dense_gradient_wgmma",
    "dense_gradient_finish",
];
/// Keys and values first, then queries.
const ELSEWHERE: [&str; 3] = [
    "dense_gradient_statistics",
    "dense_gradient_mma",
    "dense_gradient_mma",
];

#[test]
fn large_problems_are_for_the_kernels_for_hopper() {
    assert_eq!(entries(described(4, 2048, 64), HOPPER), ON_HOPPER);
    assert_eq!(entries(described(4, 2048, 128), HOPPER), ON_HOPPER);
    let wide = entries(described(4, 2048, 256), HOPPER);
    assert_eq!(wide[1], "dense_gradient_wgmma_wide");
    assert_eq!(entries(described(4, 2048, 64), SMALL), ELSEWHERE);
    // Too few blocks, mostly padding, what TMA cannot load.
    assert_eq!(entries(described(1, 256, 64), HOPPER), ELSEWHERE);
    assert_eq!(entries(described(4, 2048, 32), HOPPER), ELSEWHERE);
    let mut strided = described(4, 2048, 64);
    strided.align = 2;
    assert_eq!(entries(strided, HOPPER), ELSEWHERE);
    let mut backwards = described(4, 2048, 64);
    backwards.boxes = false;
    assert_eq!(entries(backwards, HOPPER), ELSEWHERE);
}

#[test]
fn every_kernel_is_given_what_it_declares() {
    use super::plan::Given;
    use crate::cuda::dense::KernelVariant;
    let mut kinds = std::collections::BTreeSet::new();
    for (device, channels, positions) in [
        (HOPPER, 64, 2048),
        (HOPPER, 256, 2048),
        (SMALL, 64, 2048),
        (SMALL, 256, 49),
    ] {
        for attn_mask in [None, Some(None), Some(Some(DType::F16))] {
            let mut described = described(8, positions, channels);
            described.attn_mask = attn_mask.map(|bias| AttnMaskDesc {
                bias,
                strides: [0, 0, positions as isize, 1],
            });
            let plan = described.plan_backward(device, None).unwrap();
            assert_eq!(plan.steps().count(), plan.launches().count());
            for (step, given) in plan.launches() {
                let fits = match (step.kernel, given) {
                    (KernelVariant::GradientStatistics(_), Given::Statistics)
                    | (KernelVariant::PrepareMask(_), Given::Mask { .. })
                    | (KernelVariant::GradientFinish(_), Given::Finish(_))
                    | (KernelVariant::GradientBias(_), Given::Bias)
                    | (KernelVariant::BiasSum(_), Given::Bias) => true,
                    (KernelVariant::GradientWgmma(_), Given::Hopper(hopper)) => {
                        hopper.step == *step
                    }
                    (KernelVariant::GradientMma(kernel), Given::Gradient { own_keys, sums }) => {
                        kernel.common.own_keys == own_keys && [kernel.sum, kernel.value_sum] == sums
                    }
                    _ => false,
                };
                assert!(fits, "{plan}: {:?} is given {given:?}", step.kernel);
                kinds.insert(step.kernel.entry());
            }
        }
    }
    assert_eq!(kinds.len(), 8, "{kinds:?}");
}

#[test]
fn wide_heads_have_a_launch_for_each_sum() {
    let found = entries(described(4, 2048, 256), SMALL);
    let sums = found.iter().filter(|it| **it == "dense_gradient_mma");
    assert_eq!(sums.count(), 3);
}

#[test]
fn every_plan_fits_into_shared_memory() {
    for device in [SMALL, HOPPER] {
        for channels in [1, 32, 33, 64, 96, 128, 160, 256] {
            for bias in [None, Some(DType::F16)] {
                let mut masked = described(2, 700, channels);
                masked.mask = Mask::causal(Alignment::BottomRight);
                masked.attn_mask = Some(AttnMaskDesc {
                    bias,
                    strides: [0, 700 * 700, 700, 1],
                });
                let plan = masked.plan_backward(device, None).unwrap();
                for step in plan.steps() {
                    assert!(step.shared_bytes <= device.shared_bytes, "{plan}");
                    assert!(step.blocks[0] > 0, "{plan}");
                }
            }
        }
    }
}

#[test]
fn sums_of_a_bias_are_parts_only_where_blocks_would_be_few() {
    let bias = |batch: usize, positions: usize, strides: [isize; 4]| {
        let mut described = described(batch, positions, 32);
        described.attn_mask = Some(AttnMaskDesc {
            bias: Some(DType::F16),
            strides,
        });
        entries(described, HOPPER)
    };
    // Windows share a bias; or each sequence and head has one of its own.
    assert!(bias(2048, 49, [0, 49 * 49, 49, 1]).contains(&"dense_gradient_bias_sum"));
    let own = bias(8, 512, [16 * 512 * 512, 512 * 512, 512, 1]);
    assert!(!own.contains(&"dense_gradient_bias_sum"), "{own:?}");
    assert!(own.contains(&"dense_gradient_bias"));
}

#[test]
fn scratch_memory_never_holds_the_weights() {
    let plan = described(1, 16_384, 128)
        .plan_backward(HOPPER, None)
        .unwrap();
    let numbers = 16 * 16_384;
    // Of each query two numbers, and the gradient in f32; counters beside them.
    assert!(plan.workspace_bytes() < numbers * (8 + 4 * 128) + (1 << 20));
    let plan = described(1, 16_384, 128)
        .plan_backward(SMALL, None)
        .unwrap();
    assert!(plan.workspace_bytes() <= numbers * 8 + 1024);
}

#[test]
fn what_no_kernel_serves_is_refused_by_name() {
    let refused = |described: ProblemDesc, kernels| {
        let refused = described.plan_backward(SMALL, kernels).unwrap_err();
        refused.to_string()
    };
    let mut wide = described(1, 64, 300);
    assert!(refused(wide, None).contains("D = 300"));
    wide = described(1, 64, 64);
    wide.dtype = DType::F32;
    assert!(refused(wide, None).contains("f32"));
    let here = refused(described(4, 2048, 64), Some(GradientKernels::Wgmma));
    assert!(here.contains("Hopper"), "{here}");
}
