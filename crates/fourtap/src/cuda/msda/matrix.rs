//! Forward on tensor cores: which calls it serves, and how.

use super::arguments::Schedule;
use super::fit;
use super::forward::{Plan, gather, rows_are_dense};
use super::operands::{Operand, Operands};
use super::options::KernelChoice;
use super::schedule::{Dealing, schedule};
use super::shared_levels::SharedLevels;
use super::specialised::{Gather, KernelVariant, MOST_KEPT_BYTES, MOST_KEPT_ON_MATRIX};
use super::tuning::{ForwardTuning, or_usual};
use crate::cuda::device_size::DeviceSize;
use crate::cuda::fit::{Fit, aligned_forward};
use crate::cuda::step::Step;
use crate::tuning::spaces::cuda::{ALWAYS, NEVER};

/// Minimum pixels of an image: with 19,560 and more it was measured to be faster than gather, with 5,440, which L1 holds the better, to be
/// slower. The break-even point was not measured.
const LEAST_PIXELS: usize = 12_000;

/// Maximum pixels of a level: their numbers have 16 bits.
const MOST_PIXELS: usize = u16::MAX as usize;

/// Bytes of levels that a block can keep which has that much shared memory: the rest is what the kernel declares, and a little for what
/// the compiler and the driver add.
fn room_for_levels(matrix: &Gather, shared_bytes: u32) -> Option<u32> {
    let places = matrix.threads * matrix.samples() / 4;
    shared_bytes
        .checked_sub(places + (2 << 10))
        .filter(|&room| room > 0)
}

/// The variant that keeps the second half of the levels in shared memory.
pub(super) fn keeping(matrix: &Gather) -> Option<Gather> {
    matrix.levels.is_multiple_of(2).then_some(Gather {
        keeps: true,
        ..*matrix
    })
}

/// The same for levels in device memory. The kernel finds out there whether they fit; if not, one that is queued after it computes
/// the call.
pub(super) fn by_levels(matrix: &Gather, shared_bytes: u32) -> Option<Gather> {
    let keeping = keeping(matrix)?;
    let kept_room = room_for_levels(matrix, shared_bytes.min(MOST_KEPT_BYTES))?;
    Some(Gather {
        kept_room,
        ..keeping
    })
}

/// The plan for a call, or the reason why the kernel cannot serve it; unless `anyway`, also where it is not the fastest.
pub(super) fn plan(
    operands: &Operands<'_>,
    out: &Operand,
    device: DeviceSize,
    tuning: &ForwardTuning,
    anyway: bool,
) -> Fit<Plan> {
    let sizes = &operands.sizes;
    let pixel_units = fit::expect_gather(operands)?;
    // The kernel counts the bytes between rows in 32 bits.
    if !fit::has_near_rows(sizes.pixels, pixel_units) {
        return Err(format!(
            "an image of {} pixels, {} bytes each, is too large for tensor cores",
            sizes.pixels,
            16 * pixel_units
        ));
    }
    let mut matrix = operands
        .kind
        .forward_matrix(pixel_units as u32)
        .ok_or("rows of other types or sizes")?;
    aligned_forward("out", out.first, &out.layout, &[0, 1], &[2], 16)?;
    fit::expect_samples(&operands.locations, &operands.weights, 2)?;
    matrix.dense = rows_are_dense(operands, out);
    let rows = [&operands.locations, &operands.weights, out];
    matrix.narrow = fit::are_narrow(&rows, &operands.references, sizes);
    matrix.threads = or_usual(tuning.threads, matrix.threads);
    // Levels are copied once for each head's rows of a block: of several heads more at a time are faster, as long as L2 holds them.
    let dealing = match sizes.heads {
        1 => Dealing::tuned(device, tuning),
        _ => Dealing::tuned(device, tuning).of_l2(2),
    };
    let (rows, blocks) = schedule(sizes, &matrix, dealing);
    let kept = match (tuning.keep, operands.levels_in_device_memory) {
        (NEVER, _) => None,
        (_, true) => by_levels(&matrix, device.shared_bytes).map(|kernel| {
            let kept = SharedLevels {
                levels: 0,
                bytes: kernel.kept_room,
            };
            (kernel, kept)
        }),
        (_, false) => keeping(&matrix).and_then(|kernel| {
            let first = (matrix.levels / 2) as usize;
            let room = room_for_levels(&kernel, device.shared_bytes.min(MOST_KEPT_ON_MATRIX))?;
            let kept = SharedLevels::all_from(first, operands.levels, &kernel, room)?;
            Some((kernel, kept))
        }),
    };
    let pixels = operands.levels.iter().map(|level| level.pixels());
    let largest = match operands.levels_in_device_memory {
        // The kernel looks at each of them.
        true if kept.is_some() => 0,
        true => sizes.pixels,
        false => pixels.max().unwrap_or(0),
    };
    if largest > MOST_PIXELS {
        return Err(format!("a level of {largest} pixels"));
    }
    let pays = sizes.pixels >= LEAST_PIXELS && SharedLevels::can_pay(&matrix, &rows, device);
    if !(anyway || pays && kept.is_some()) {
        return Err("not measured to be faster".to_string());
    }
    if tuning.keep == ALWAYS && kept.is_none() {
        return Err("no level that can be kept".to_string());
    }
    let (kernel, bytes, levels) = match kept {
        Some((keeping, kept)) => (keeping, kept.bytes, kept.levels),
        None => (matrix, 0, 0),
    };
    let otherwise = match kernel.kept_room {
        0 => None,
        room => {
            let best = KernelChoice::Best;
            Some(gather(operands, out, device, best, tuning, room)?)
        }
    };
    Ok(Plan {
        step: Step {
            kernel: KernelVariant::Matrix(kernel),
            blocks: [blocks, 1],
            threads: kernel.threads,
            shared_bytes: bytes,
        },
        otherwise: otherwise.map(Box::new),
        reason: None,
        schedule: Some(Schedule {
            kept: levels,
            order: 0,
            ..rows
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::device_size::H200;
    use crate::cuda::msda::specialised::{Projection, Sampling};
    use crate::cuda::msda::{Kind, Types};
    use crate::dtype::DType;
    use crate::error::Result;
    use crate::layout::Layout;
    use crate::msda::{Levels, Sizes};

    /// As many queries as pixels, of one head.
    fn sizes(pixels: usize, images: usize) -> Sizes {
        Sizes {
            images,
            pixels,
            heads: 1,
            channels: 32,
            queries: pixels,
            levels: 4,
            points: 8,
        }
    }

    /// The plan of a call; with levels in device memory if none are given.
    fn planned(
        sizes: Sizes,
        value: DType,
        levels: Option<&Levels>,
        device: DeviceSize,
        wanted: KernelChoice,
        tuning: &ForwardTuning,
    ) -> Result<Plan> {
        let types = Types {
            value,
            locations: DType::F32,
            weights: DType::F32,
        };
        let operand = |dtype, shape: &[usize]| Operand::scratch(&Layout::contiguous(dtype, shape));
        let unknown = Levels::default();
        let operands = Operands {
            sizes,
            kind: Kind {
                types,
                sampling: Default::default(),
                heads: sizes.heads,
                channels: sizes.channels,
                levels: sizes.levels,
                points: sizes.points,
            },
            levels: levels.unwrap_or(&unknown),
            levels_in_device_memory: levels.is_none(),
            value: operand(value, &sizes.value()),
            locations: operand(types.locations, &sizes.sampling_locations()),
            weights: operand(types.weights, &sizes.attention_weights()),
            references: None,
        };
        let out = operand(value, &sizes.out());
        Plan::new(&operands, &out, device, wanted, tuning)
    }

    /// The kernels of a call with levels in device memory, as nobody chose otherwise.
    fn on_device(sizes: Sizes, value: DType, device: DeviceSize) -> Vec<String> {
        let usual = ForwardTuning::default();
        let plan = planned(sizes, value, None, device, KernelChoice::Best, &usual).unwrap();
        let kernels = plan.steps().into_iter().map(|step| step.kernel.to_string());
        kernels.collect()
    }

    const BOTH: [&str; 2] = [
        "msda-forward-matrix-f16-d32-l4-p8-u4-t512-keep-by-levels",
        "msda-forward-gather-f16-d32-l4-p8-u4-t896-by-levels",
    ];

    #[test]
    fn levels_in_device_memory_decide_between_two_kernels() {
        let sizes = sizes(15_422, 48);
        let (best, usual) = (KernelChoice::Best, ForwardTuning::default());
        let plan = planned(sizes, DType::F16, None, H200, best, &usual).unwrap();
        let [matrix, gather] = BOTH;
        assert_eq!(
            plan.to_string(),
            format!(
                "{matrix}, 132 blocks of 512 threads, 96256 bytes of levels in shared memory; \
                 if levels do not fit: {gather}, 132 blocks of 896 threads"
            )
        );
        // The second as if it were alone.
        let otherwise = plan.otherwise.as_deref().unwrap();
        let keep = ForwardTuning {
            keep: NEVER,
            ..usual
        };
        let alone = planned(sizes, DType::F16, None, H200, best, &keep).unwrap();
        assert_eq!(alone.otherwise, None);
        assert_eq!(otherwise.schedule, alone.schedule);
        assert_eq!(on_device(sizes, DType::BF16, H200).len(), 2);
    }

    #[test]
    fn the_host_decides_where_it_knows_levels() {
        let levels = Levels::packed(&[(92, 160), (46, 80), (23, 40), (12, 20)]).unwrap();
        let sizes = sizes(levels.pixels(), 48);
        let (best, usual) = (KernelChoice::Best, ForwardTuning::default());
        let plan = planned(sizes, DType::F16, Some(&levels), H200, best, &usual).unwrap();
        assert_eq!(plan.steps().len(), 1);
        assert_eq!(
            plan.to_string(),
            "msda-forward-matrix-f16-d32-l4-p8-u4-t512-keep, 132 blocks of 512 threads, \
             74240 bytes of levels in shared memory"
        );
    }

    #[test]
    fn one_kernel_where_two_would_not_pay() {
        let large = sizes(15_422, 48);
        let few = Sizes {
            queries: 300,
            ..large
        };
        let odd = Sizes {
            levels: 1,
            points: 16,
            ..large
        };
        for (what, sizes, value) in [
            ("few rows", few, DType::F16),
            ("one image", sizes(15_422, 1), DType::F16),
            ("small images", sizes(5_440, 48), DType::F16),
            ("no second half of levels", odd, DType::F16),
            ("f32", large, DType::F32),
        ] {
            let kernels = on_device(sizes, value, H200);
            assert_eq!(kernels.len(), 1, "{what}: {kernels:?}");
            assert!(!kernels[0].contains("levels"), "{what}: {kernels:?}");
        }
        let older = DeviceSize {
            has_wgmma: false,
            ..H200
        };
        assert_eq!(on_device(large, DType::F16, older).len(), 1);
    }

    #[test]
    fn asked_for_it_serves_levels_of_any_size_in_device_memory() {
        let usual = ForwardTuning::default();
        let plan = |sizes, tuning| {
            let matrix = KernelChoice::Matrix;
            planned(sizes, DType::F16, None, H200, matrix, tuning)
        };
        // Of how many pixels a level is, the kernel finds out.
        let (small, large) = (sizes(100, 1), sizes(100_000, 1));
        assert_eq!(plan(small, &usual).unwrap().steps().len(), 2);
        assert_eq!(plan(large, &usual).unwrap().steps().len(), 2);
        // Without kept levels there is nothing to find out, and one kernel must serve all.
        let never = ForwardTuning {
            keep: NEVER,
            ..usual
        };
        assert_eq!(plan(small, &never).unwrap().steps().len(), 1);
        assert!(plan(large, &never).is_err());
        let always = ForwardTuning {
            keep: ALWAYS,
            ..usual
        };
        assert!(plan(small, &always).is_err(), "nobody knows");
    }

    #[test]
    fn projections_are_served_unless_points_are_nearest_or_levels_uneven() {
        let projection = Projection {
            references: DType::F32,
            boxes: false,
            nearest: false,
            turns: 1,
            uneven: None,
        };
        let kernel = |projection, points| {
            let kind = Kind {
                types: Types {
                    value: DType::BF16,
                    locations: DType::BF16,
                    weights: DType::BF16,
                },
                sampling: Sampling::Projected(projection),
                heads: 8,
                channels: 32,
                levels: 4,
                points,
            };
            let matrix = kind.forward_matrix(32)?;
            keeping(&matrix).map(|kernel| KernelVariant::Matrix(kernel).to_string())
        };
        let name = "msda-forward-matrix-bf16-bf16-bf16-d32-l4-p4-u32-t512-references-f32-keep";
        assert_eq!(kernel(projection, 4).as_deref(), Some(name));
        assert!(kernel(projection, 8).is_some(), "32 samples");
        assert_eq!(kernel(projection, 3), None, "12 samples");
        let nearest = Projection {
            nearest: true,
            ..projection
        };
        assert_eq!(kernel(nearest, 4), None);
        // 2, 6, 2 and 6 points.
        let uneven = Projection {
            uneven: Projection::uneven(&[0, 2, 8, 10, 16]),
            ..projection
        };
        assert_eq!(kernel(uneven, 2), None);
    }

    #[test]
    fn kernels_of_a_kind_are_those_of_its_plans() {
        let kind = Kind {
            types: Types {
                value: DType::F16,
                locations: DType::F32,
                weights: DType::F32,
            },
            sampling: Default::default(),
            heads: 1,
            channels: 32,
            levels: 4,
            points: 8,
        };
        let known: Vec<_> = kind.kernels().iter().map(ToString::to_string).collect();
        for kernel in BOTH {
            assert!(known.iter().any(|name| name == kernel), "{kernel}");
        }
        let plan = planned(
            sizes(15_422, 48),
            DType::F16,
            None,
            H200,
            KernelChoice::Best,
            &ForwardTuning::default(),
        );
        for step in plan.unwrap().steps() {
            assert!(kind.kernels().contains(&step.kernel), "{}", step.kernel);
        }
    }
}
