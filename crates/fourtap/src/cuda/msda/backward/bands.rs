//! `grad_value` of problems with few samples: every block of pixels searches them all.

use super::sorting::paired;
use crate::cuda::fit::{Fit, aligned_forward};
use crate::cuda::msda::arguments::{BandArguments, Divisor, LEVEL_CAPACITIES};
use crate::cuda::msda::operands::{GradientOperands, Operands};
use crate::cuda::msda::specialised::{self, KernelVariant};
use crate::cuda::step::Step;
use crate::dtype::DType;

/// Samples of a level of an image and head up to which searching them is faster than sorting: measured, see
/// docs/cuda-backward.md.
const FEW_SAMPLES: usize = 4096;

/// How a call's pixels are divided into bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bands {
    pub(super) step: Step<KernelVariant>,
    pub(super) arguments: BandArguments,
}

impl Bands {
    /// For a call that asks for `grad_value`, or the reason why the kernel cannot serve it.
    pub(super) fn new(operands: &Operands<'_>, gradients: &GradientOperands) -> Fit<Self> {
        let sizes = &operands.sizes;
        let types = operands.kind.types;
        if types.value == DType::F64 {
            return Err("value is f64".to_string());
        }
        if sizes.levels > LEVEL_CAPACITIES[0] {
            return Err(format!("{} levels", sizes.levels));
        }
        let samples = operands.samples_of_level();
        if samples >= 1 << 31 || sizes.pixels >= 1 << 30 {
            let pixels = sizes.pixels;
            return Err(format!("{samples} samples per level, {pixels} pixels"));
        }
        let grad_out = &gradients.grad_out;
        let row_bytes = sizes.channels * types.value.size();
        if !row_bytes.is_multiple_of(16) {
            return Err(format!("{row_bytes} bytes of channels"));
        }
        let first = grad_out.first;
        aligned_forward("grad_out", first, &grad_out.layout, &[0, 1], &[2], 16)?;
        let bands = sizes.pixels.div_ceil(specialised::Bands::PIXELS);
        let slices = sizes.channels.div_ceil(specialised::Bands::CHANNELS);
        let blocks = (sizes.images * sizes.heads)
            .checked_mul(bands * slices)
            .and_then(|blocks| i32::try_from(blocks).ok())
            .ok_or("too many blocks")?;
        let kernel = specialised::Bands {
            types,
            sampling: operands.kind.sampling.general(),
            paired: paired(operands),
        };
        Ok(Bands {
            step: Step {
                kernel: KernelVariant::ValueBands(kernel),
                blocks: [blocks as u32, 1],
                threads: specialised::Bands::THREADS,
                shared_bytes: 0,
            },
            arguments: BandArguments {
                bands: bands as u32,
                slices: slices as u32,
                by_points: Divisor::new(sizes.points.max(1) as u32),
            },
        })
    }

    /// Whether that is faster than sorting.
    pub(super) fn pay(operands: &Operands<'_>) -> bool {
        operands.samples_of_level() <= FEW_SAMPLES
    }
}
