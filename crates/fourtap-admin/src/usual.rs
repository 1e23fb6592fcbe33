//! The kernels of usual calls, which the package fourtap-kernels has.
//!
//! They are found by planning such calls for such devices, as a call itself does: a kernel that no usual call chooses is not
//! there. docs/kernel-packs.md says what is covered, and why not more; the rest is compiled when it is needed.

use std::collections::HashSet;

use fourtap::DType;
use fourtap::cuda::jit::{Architecture, Program};
use fourtap::cuda::msda::{
    Gather, KernelChoice, KernelVariant, Kind, ProblemDesc, ProjectedDesc, Projection,
    SamplesGather, Sampling, Types,
};
use fourtap::cuda::{DeviceSize, SpecialisedKernel, dense};
use fourtap::dense::{Alignment, Mask as AttentionMask, Sizes};
use fourtap::msda::Levels;

/// The architectures that the package is built for.
pub const ARCHITECTURES: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100f", "sm_120f"];

const HALVES: [DType; 2] = [DType::F16, DType::BF16];
const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

const HEADS: usize = 8;
const CHANNELS: [usize; 3] = [16, 32, 64];
const POINTS: [usize; 2] = [4, 8];
const LEVELS: [usize; 4] = [1, 3, 4, 5];

/// Channels and points of the models of the DETR family, whose calls are covered whatever form they have.
const DETR: (usize, usize) = (32, 4);

/// Levels of an image of 800 x 1333 pixels, from the finest to the coarsest. An encoder has a query for each pixel.
const PYRAMID: [(usize, usize); 5] = [(100, 167), (50, 84), (25, 42), (13, 21), (7, 11)];

/// Images and queries of decoders. Few rows are split among more lanes, by other kernels.
const DECODERS: [[usize; 2]; 5] = [[1, 100], [1, 300], [1, 900], [2, 300], [8, 900]];
/// Images of encoders.
const ENCODERS: [usize; 2] = [1, 4];

/// Every program that usual calls need on devices of this architecture, each once.
pub fn programs(architecture: Architecture) -> Vec<Program> {
    let mut seen = HashSet::new();
    let mut programs = Vec::new();
    let mut add = |kernel: &dyn SpecialisedKernel| {
        let program = kernel.program(architecture);
        if kernel.is_for(architecture) && seen.insert(program.fingerprint()) {
            programs.push(program);
        }
    };
    for device in devices(architecture) {
        msda_kernels(device).iter().for_each(|kernel| add(kernel));
        dense_kernels(device).iter().for_each(|kernel| add(kernel));
    }
    programs
}

/// The smallest and the largest devices of an architecture that are usual.
fn devices(architecture: Architecture) -> Vec<DeviceSize> {
    let (multiprocessors, l2_mib, shared_kib) = match (architecture.major(), architecture.minor()) {
        (8, 0) => ([56, 108], 40, 163),
        (8, 9) => ([58, 142], 48, 99),
        (8, _) => ([46, 84], 6, 99),
        (9, _) => ([114, 132], 60, 227),
        (10, _) => ([148, 160], 126, 227),
        _ => ([48, 170], 96, 99),
    };
    let device = |multiprocessors| DeviceSize {
        multiprocessors,
        l2_bytes: l2_mib << 20,
        shared_bytes: shared_kib << 10,
        has_wgmma: architecture == Architecture::of_device(9, 0),
    };
    multiprocessors.map(device).to_vec()
}

/// Those of deformable attention, forward and backward.
fn msda_kernels(device: DeviceSize) -> HashSet<KernelVariant> {
    let mut kernels = HashSet::new();
    for (channels, levels, points) in shapes() {
        let levels = Levels::packed(&PYRAMID[..levels]).unwrap_or_default();
        let encoders = ENCODERS.map(|images| [images, levels.pixels()]);
        for [images, queries] in DECODERS.into_iter().chain(encoders) {
            let call = |value, coordinates| ProblemDesc {
                images,
                queries,
                heads: HEADS,
                channels,
                points,
                levels: &levels,
                types: Types {
                    value,
                    locations: coordinates,
                    weights: coordinates,
                },
            };
            for value in TYPES {
                given(&call(value, DType::F32), device, &mut kernels);
                if (channels, points) != DETR {
                    continue;
                }
                given(&call(value, value), device, &mut kernels);
                for boxes in [false, true] {
                    let described = ProjectedDesc {
                        call: call(value, value),
                        references: DType::F32,
                        boxes,
                    };
                    projected(&described, device, &mut kernels);
                }
            }
        }
    }
    kernels
}

/// Channels, levels and points, each with every other.
fn shapes() -> impl Iterator<Item = (usize, usize, usize)> {
    let of_channels = |channels| {
        let of_levels = move |levels| POINTS.map(|points| (channels, levels, points));
        LEVELS.into_iter().flat_map(of_levels)
    };
    CHANNELS.into_iter().flat_map(of_channels)
}

/// Those of a call with locations and weights.
fn given(call: &ProblemDesc<'_>, device: DeviceSize, kernels: &mut HashSet<KernelVariant>) {
    let best = KernelChoice::Best;
    if let Ok(plan) = call.forward(device, best) {
        kernels.extend(plan.steps().iter().map(|step| step.kernel));
    }
    for deterministic in [false, true] {
        if let Ok(plan) = call.backward(device, best, deterministic) {
            kernels.extend(plan.steps().iter().map(|step| step.kernel));
        }
    }
    kernels.extend(of_any_size(call, Sampling::Given));
}

/// Those of a call from projections, where one linear layer puts out offsets and logits, as in `fourtap.nn` and the drop-in
/// modules.
fn projected(call: &ProjectedDesc<'_>, device: DeviceSize, kernels: &mut HashSet<KernelVariant>) {
    let best = KernelChoice::Best;
    if let Ok(plan) = call.forward(device, best) {
        kernels.extend(plan.steps().iter().map(|step| step.kernel));
    }
    for deterministic in [false, true] {
        if let Ok(plan) = call.backward(device, best, deterministic) {
            let steps = plan.steps();
            kernels.extend(steps.iter().flat_map(|step| in_one_tensor(step.kernel)));
        }
    }
    let sampling = Sampling::Projected(Projection {
        references: call.references,
        boxes: call.boxes,
        nearest: false,
        turns: 1,
        uneven: None,
    });
    kernels.extend(of_any_size(&call.call, sampling));
}

/// The kernel for gradients of offsets and logits that are one tensor, as theirs are: with gradients of reference points,
/// which take f32, and without.
fn in_one_tensor(kernel: KernelVariant) -> Vec<KernelVariant> {
    let joined = |gather: Gather| {
        let without = gather.types.value == DType::F32;
        [true, without].map(|exact| Gather {
            grads_dense: false,
            exact,
            ..gather
        })
    };
    match kernel {
        KernelVariant::SamplesMatrix(gather) => {
            joined(gather).map(KernelVariant::SamplesMatrix).to_vec()
        }
        KernelVariant::SamplesGather(SamplesGather { gather, scatter }) => joined(gather)
            .map(|gather| KernelVariant::SamplesGather(SamplesGather { gather, scatter }))
            .to_vec(),
        other => vec![other],
    }
}

/// What plans of given level sizes and of all gradients do not tell of: levels in device memory are checked there, by the
/// kernel that searches; and gradients of reference points.
fn of_any_size(call: &ProblemDesc<'_>, sampling: Sampling) -> Vec<KernelVariant> {
    let kind = Kind {
        types: call.types,
        sampling,
        heads: call.heads,
        channels: call.channels,
        levels: call.levels.len(),
        points: call.points,
    };
    let mut kernels = kind.kernels();
    kernels.retain(|kernel| {
        matches!(
            kernel,
            KernelVariant::ValueSearch(_) | KernelVariant::References(_) | KernelVariant::Mask(_)
        )
    });
    kernels
}

/// Those of dense attention, forward and backward.
fn dense_kernels(device: DeviceSize) -> HashSet<dense::KernelVariant> {
    let mut kernels = HashSet::new();
    for described in attention() {
        if let Ok(plan) = described.plan(device) {
            kernels.extend(plan.steps().map(|step| step.kernel));
        }
        if let Ok(plan) = described.plan_backward(device, None) {
            kernels.extend(plan.steps().map(|step| step.kernel));
        }
    }
    kernels
}

/// Self-attention of queries, images and text, without a mask and causal.
fn attention() -> Vec<dense::ProblemDesc> {
    let masks = [
        AttentionMask::default(),
        AttentionMask::causal(Alignment::TopLeft),
    ];
    let mut calls = Vec::new();
    for channels in [32, 64, 128] {
        for tokens in [300, 900, 1024, 4096] {
            for batch in [1, 8] {
                for dtype in HALVES {
                    calls.extend(masks.map(|mask| dense::ProblemDesc {
                        sizes: Sizes {
                            batch,
                            query_heads: HEADS,
                            key_heads: HEADS,
                            queries: tokens,
                            keys: tokens,
                            channels,
                            value_channels: channels,
                        },
                        dtype,
                        mask,
                        attn_mask: None,
                        align: 16,
                        boxes: true,
                    }));
                }
            }
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: DeviceSize = DeviceSize {
        multiprocessors: 132,
        l2_bytes: 62_914_560,
        shared_bytes: 232_448,
        has_wgmma: true,
    };

    fn fingerprints() -> HashSet<String> {
        let programs = programs(Architecture::of_device(9, 0));
        let fingerprints = programs.iter().map(|it| it.fingerprint().to_string());
        fingerprints.collect()
    }

    fn expect_packed(packed: &HashSet<String>, kernel: &dyn SpecialisedKernel, what: &str) {
        let program = kernel.program(Architecture::of_device(9, 0));
        let fingerprint = program.fingerprint().to_string();
        assert!(packed.contains(&fingerprint), "{kernel} of {what}");
    }

    /// Calls that nobody listed above: other images and queries, other level sizes.
    #[test]
    fn covered_configurations_have_every_kernel_of_their_plans() {
        let packed = fingerprints();
        let square = [(80, 80), (40, 40), (20, 20), (10, 10), (5, 5)];
        for (channels, levels, points) in shapes() {
            let levels = Levels::packed(&square[..levels]).unwrap();
            for [images, queries] in [
                [1, 100],
                [1, 300],
                [2, 900],
                [16, 300],
                [2, levels.pixels()],
            ] {
                for value in TYPES {
                    let call = ProblemDesc {
                        images,
                        queries,
                        heads: 8,
                        channels,
                        points,
                        levels: &levels,
                        types: Types {
                            value,
                            locations: DType::F32,
                            weights: DType::F32,
                        },
                    };
                    let what = format!("{call:?}");
                    let forward = call.forward(H200, KernelChoice::Best).unwrap();
                    for step in forward.steps() {
                        expect_packed(&packed, &step.kernel, &what);
                    }
                    for deterministic in [false, true] {
                        let plan = call.backward(H200, KernelChoice::Best, deterministic);
                        for step in plan.unwrap().steps() {
                            expect_packed(&packed, &step.kernel, &what);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn attention_of_usual_widths_has_every_kernel_of_its_plans() {
        let packed = fingerprints();
        for mut described in attention() {
            described.sizes.batch = 2;
            let plan = described.plan(H200).unwrap();
            for step in plan.steps() {
                expect_packed(&packed, &step.kernel, &format!("{described:?}"));
            }
            let plan = described.plan_backward(H200, None).unwrap();
            for step in plan.steps() {
                expect_packed(&packed, &step.kernel, &format!("{described:?}"));
            }
        }
    }

    /// A wheel of all of them is to stay within 25 MB: about 6 kB for each kernel, as wheels compress them.
    #[test]
    fn there_are_not_too_many() {
        for name in ARCHITECTURES {
            let count = programs(name.parse().unwrap()).len();
            assert!((300..650).contains(&count), "{count} for {name}");
        }
    }
}
