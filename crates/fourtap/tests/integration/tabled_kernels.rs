//! The kernels of the table: those that the usual problems get.

use fourtap::DType;
use fourtap::cuda::msda::{
    Channel, Gather, KernelVariant, Kind, Projection, Sampling, Sort, Types,
};
use fourtap::cuda::{DeviceSize, SpecialisedKernel, dense};
use fourtap::dense::{Alignment, AttnMaskDesc, Mask, Sizes};

fn types(value: DType) -> Types {
    Types {
        value,
        locations: DType::F32,
        weights: DType::F32,
    }
}

/// The kinds of problem the workloads have, with the kernel each gets, and both forms of the kernel for all others.
pub fn kernels() -> Vec<KernelVariant> {
    let mut kernels = Vec::new();
    for value in DType::ALL {
        for strided in [false, true] {
            kernels.push(KernelVariant::Channel(Channel {
                types: types(value),
                sampling: Sampling::Given,
                strided,
                level_capacity: 16,
            }));
        }
    }
    let detr = |value: DType| Gather {
        types: types(value),
        sampling: Sampling::Given,
        channels: 32,
        levels: 4,
        points: 4,
        pixel_units: 8 * 32 * value.size() as u32 / 16,
        threads: 896,
        per_lane: if value.size() == 2 { 2 } else { 1 },
        split: 1,
        heads_together: if value.size() == 2 { 2 } else { 1 },
        phases: if value.size() == 2 { 2 } else { 1 },
        dense: true,
        grads_dense: true,
        narrow: true,
        exact: value == DType::F32,
        alternate: false,
        keeps: false,
        kept_room: 0,
    };
    let one_head = Gather {
        points: 8,
        pixel_units: 4,
        heads_together: 1,
        phases: 1,
        alternate: true,
        ..detr(DType::F16)
    };
    let wide = |value: DType| Gather {
        channels: 64,
        points: 8,
        pixel_units: 8 * 64 * value.size() as u32 / 16,
        per_lane: 1,
        heads_together: 1,
        phases: 1,
        ..detr(value)
    };
    let small = Gather {
        levels: 3,
        threads: 64,
        per_lane: 1,
        split: 2,
        ..detr(DType::F32)
    };
    let half = DType::F16;
    let half_coordinates = Gather {
        types: Types {
            value: half,
            locations: half,
            weights: half,
        },
        ..detr(half)
    };
    let gathers = [
        detr(DType::F16),
        detr(DType::BF16),
        detr(DType::F32),
        one_head,
        one_head.keeping().expect("levels of one head can be kept"),
        wide(DType::F16),
        wide(DType::F32),
        small,
        half_coordinates,
        Gather {
            dense: false,
            ..detr(DType::F16)
        },
        // Channels that leave lanes idle, and samples that leave slots.
        Gather {
            channels: 48,
            points: 3,
            pixel_units: 48,
            per_lane: 1,
            heads_together: 1,
            phases: 1,
            ..detr(DType::F16)
        },
    ];
    kernels.extend(gathers.map(KernelVariant::Gather));
    // On tensor cores, with half of the levels kept, and with none.
    let matrix = |value: DType, keeps, points| Gather {
        types: types(value),
        points,
        threads: 512,
        alternate: false,
        keeps,
        ..one_head
    };
    let encoder = |value| Gather {
        pixel_units: 32,
        ..matrix(value, true, 4)
    };
    // Where levels in device memory decide: half of them kept if they fit, and the kernel that computes the call if not.
    let kept_room = 94 << 10;
    let by_levels = |value| Gather {
        kept_room,
        ..matrix(value, true, 8)
    };
    kernels.extend(
        [
            matrix(DType::F16, true, 8),
            matrix(DType::BF16, true, 8),
            matrix(DType::F16, false, 4),
            encoder(DType::F16),
            encoder(DType::BF16),
            Gather {
                kept_room,
                ..encoder(DType::F16)
            },
            by_levels(DType::F16),
            by_levels(DType::BF16),
        ]
        .map(KernelVariant::Matrix),
    );
    kernels.push(KernelVariant::Gather(Gather {
        kept_room,
        ..one_head
    }));
    kernels.extend(backward_kernels());
    for kernel in projected_kernels() {
        if !kernels.contains(&kernel) {
            kernels.push(kernel);
        }
    }
    kernels
}

/// Those of calls from projections: an encoder's points, a decoder's boxes, and levels with different numbers of points.
fn projected_kernels() -> Vec<KernelVariant> {
    let points = Projection {
        references: DType::F32,
        boxes: false,
        nearest: false,
        turns: 1,
        uneven: None,
    };
    let boxes = Projection {
        boxes: true,
        ..points
    };
    let mut first = [u16::MAX; 17];
    first[..4].copy_from_slice(&[0, 3, 9, 12]);
    let uneven = Projection {
        nearest: true,
        uneven: Some(first),
        ..boxes
    };
    let kind = |value: DType, projection, levels, points| Kind {
        types: Types {
            value,
            locations: value,
            weights: value,
        },
        sampling: Sampling::Projected(projection),
        heads: 8,
        channels: 32,
        levels,
        points,
    };
    let kinds = [
        kind(DType::BF16, points, 4, 4),
        kind(DType::F32, uneven, 3, 3),
    ];
    let mut kernels: Vec<_> = kinds.iter().flat_map(Kind::kernels).collect();
    // As slices of one linear layer's result are, and as they are sorted.
    for kernel in kernels.clone() {
        kernels.extend(match kernel {
            KernelVariant::Gather(gather) if gather.split == 1 => {
                Some(KernelVariant::Gather(Gather {
                    dense: false,
                    ..gather
                }))
            }
            KernelVariant::SamplesMatrix(gather) => Some(KernelVariant::SamplesMatrix(Gather {
                dense: false,
                ..gather
            })),
            KernelVariant::Sort(sort) => Some(KernelVariant::Sort(Sort {
                fours: true,
                ..sort
            })),
            _ => None,
        });
    }
    kernels
}

/// Those of backward for the same kinds of problem.
fn backward_kernels() -> Vec<KernelVariant> {
    let kind = |value, heads, channels, points| Kind {
        types: types(value),
        sampling: Sampling::Given,
        heads,
        channels,
        levels: 4,
        points,
    };
    let mut kernels = Vec::new();
    for kind in [
        kind(DType::F16, 8, 32, 4),
        kind(DType::BF16, 8, 32, 4),
        kind(DType::F32, 8, 32, 4),
        kind(DType::F64, 8, 32, 4),
        kind(DType::F16, 8, 64, 8),
        Kind {
            types: Types {
                value: DType::F16,
                locations: DType::F16,
                weights: DType::F16,
            },
            ..kind(DType::F16, 8, 32, 4)
        },
    ] {
        let of_kind = kind.kernels();
        let backward = of_kind
            .into_iter()
            .filter(|kernel| kernel.entry().starts_with("msda_backward"));
        for kernel in backward {
            if !kernels.contains(&kernel) {
                kernels.push(kernel);
            }
        }
    }
    kernels
}

/// Those of dense attention: every width's largest tile, with a mask; and of the widths most used, the other forms.
pub fn dense_kernels() -> Vec<dense::KernelVariant> {
    let described = |channels: usize, queries: usize, keys: usize| dense::ProblemDesc {
        sizes: Sizes {
            batch: 1,
            query_heads: 1,
            key_heads: 1,
            queries,
            keys,
            channels,
            value_channels: channels,
        },
        dtype: DType::F16,
        mask: Mask::default(),
        align: 16,
        boxes: true,
        attn_mask: None,
    };
    let causal = Mask::causal(Alignment::TopLeft);
    // With more and more multiprocessors to fill, tiles become smaller, and at last keys are divided.
    let cuts = [1, 8, 24, 40].map(|multiprocessors| DeviceSize {
        multiprocessors,
        l2_bytes: 40 << 20,
        shared_bytes: 99 << 10,
        has_wgmma: false,
    });
    let plan = |described: dense::ProblemDesc, cut: usize| described.plan(cuts[cut]).unwrap();
    let mut plans = Vec::new();
    for channels in [32, 64, 96, 128, 192, 256] {
        let usual = described(channels, 640, 640);
        plans.push(plan(
            dense::ProblemDesc {
                mask: causal,
                ..usual
            },
            0,
        ));
        if [64, 128].contains(&channels) {
            plans.extend((0..cuts.len()).map(|cut| plan(usual, cut)));
        }
    }
    // Masks that are tensors, of every width and size of tile; the same of f32, without a mask, too.
    for channels in [32, 64, 128, 256] {
        for dtype in [DType::F16, DType::F32] {
            let plain = dense::ProblemDesc {
                dtype,
                ..described(channels, 640, 640)
            };
            if dtype == DType::F32 {
                plans.extend((0..cuts.len()).map(|cut| plan(plain, cut)));
            }
            for bias in [None, Some(DType::F32)] {
                let masked = dense::ProblemDesc {
                    attn_mask: Some(AttnMaskDesc {
                        bias,
                        strides: [0, 0, 640, 1],
                    }),
                    ..plain
                };
                plans.extend((0..cuts.len()).map(|cut| plan(masked, cut)));
            }
        }
    }
    // Many small problems; and what only the plain kernel serves.
    for attn_mask in [
        None,
        Some(AttnMaskDesc {
            bias: Some(DType::F16),
            strides: [0, 0, 144, 1],
        }),
    ] {
        for queries in [49, 144] {
            let mut windows = described(32, queries, queries);
            windows.sizes.batch = 512;
            plans.push(plan(
                dense::ProblemDesc {
                    attn_mask,
                    ..windows
                },
                0,
            ));
        }
    }
    // For Hopper: every width, as it is, causal and with masks that are tensors.
    let hopper = DeviceSize {
        multiprocessors: 1,
        shared_bytes: 227 << 10,
        has_wgmma: true,
        ..cuts[0]
    };
    for channels in [32, 64, 96, 128, 192, 256] {
        for dtype in [DType::F16, DType::BF16] {
            let usual = dense::ProblemDesc {
                dtype,
                ..described(channels, 640, 640)
            };
            let masked = |bias| dense::ProblemDesc {
                attn_mask: Some(AttnMaskDesc {
                    bias,
                    strides: [0, 0, 640, 1],
                }),
                ..usual
            };
            let causal = dense::ProblemDesc {
                mask: causal,
                ..usual
            };
            let given = masked(Some(dtype));
            let all = [usual, causal, masked(None), masked(Some(DType::F32)), given];
            plans.extend(all.map(|described| described.plan(hopper).unwrap()));
        }
    }
    // A tile for each multiprocessor, of one group.
    let one_each = DeviceSize {
        multiprocessors: 10,
        ..hopper
    };
    plans.push(described(64, 640, 1024).plan(one_each).unwrap());
    plans.push(plan(
        dense::ProblemDesc {
            dtype: DType::F64,
            ..described(64, 640, 640)
        },
        0,
    ));
    for channels in [64, 128] {
        let usual = dense::ProblemDesc {
            mask: causal,
            ..described(channels, 640, 640)
        };
        let odd = described(channels - 7, 640, 640).sizes;
        let strided = dense::ProblemDesc {
            sizes: odd,
            align: 2,
            ..usual
        };
        let bf16 = dense::ProblemDesc {
            dtype: DType::BF16,
            ..usual
        };
        plans.extend([plan(bf16, 0), plan(strided, 0)]);
        plans.push(plan(described(channels, 1, 10_000), 3));
    }
    // Gradients: every width by both kinds of kernels, as it is, causal and with masks that are tensors.
    let mut backward = Vec::new();
    for channels in [32, 64, 128, 256] {
        let usual = described(channels, 640, 640);
        let masked = |bias| dense::ProblemDesc {
            attn_mask: Some(AttnMaskDesc {
                bias,
                strides: [0, 0, 640, 1],
            }),
            ..usual
        };
        let causal = dense::ProblemDesc {
            mask: causal,
            dtype: DType::BF16,
            ..usual
        };
        for described in [usual, causal, masked(None), masked(Some(DType::F32))] {
            use dense::GradientKernels::{Mma, Wgmma};
            backward.push(described.plan_backward(cuts[3], Some(Mma)).unwrap());
            backward.push(described.plan_backward(hopper, Some(Wgmma)).unwrap());
        }
    }
    let odd = dense::ProblemDesc {
        align: 2,
        ..described(57, 640, 640)
    };
    backward.push(odd.plan_backward(cuts[3], None).unwrap());
    let mut kernels = Vec::new();
    let forward = plans.iter().flat_map(dense::Plan::steps);
    let backward = backward.iter().flat_map(dense::BackwardPlan::steps);
    for step in forward.chain(backward) {
        if !kernels.contains(&step.kernel) {
            kernels.push(step.kernel);
        }
    }
    kernels
}
