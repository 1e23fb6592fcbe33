//! `grad_value` of small problems: every block of pixels searches all samples of its level.

use super::sorting::paired;
use crate::cuda::device_size::DeviceSize;
use crate::cuda::fit::{Fit, aligned_forward};
use crate::cuda::msda::arguments::{BandArguments, Divisor, LEVEL_CAPACITIES};
use crate::cuda::msda::operands::{GradientOperands, Operands};
use crate::cuda::msda::specialised::{self, KernelVariant};
use crate::cuda::step::Step;
use crate::dtype::DType;
use crate::msda::Level;

/// Channels of a block, SLICE of the kernel.
const CHANNELS: usize = 32;
/// Pixels of a warp, at least and at most.
const WARP_PIXELS: [usize; 2] = [4, 32];

/// How a call's pixels are divided into bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bands {
    pub(super) step: Step<KernelVariant>,
    pub(super) arguments: BandArguments,
}

impl Bands {
    /// For a call that asks for `grad_value`, or the reason why the kernel cannot serve it.
    pub(super) fn new(
        operands: &Operands<'_>,
        gradients: &GradientOperands,
        device: DeviceSize,
    ) -> Fit<Self> {
        let sizes = &operands.sizes;
        let types = operands.kind.types;
        if types.value == DType::F64 {
            return Err("value is f64".to_string());
        }
        if sizes.levels == 0 || sizes.levels > LEVEL_CAPACITIES[0] {
            return Err(format!("{} levels", sizes.levels));
        }
        let samples = operands.samples_of_level();
        if samples > specialised::Bands::MOST_SAMPLES || sizes.pixels >= 1 << 27 {
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
        let kernel = specialised::Bands {
            types,
            sampling: operands.kind.sampling.general(),
            paired: paired(operands),
        };
        let shared_bytes = kernel.shared_bytes(samples);
        if shared_bytes > device.shared_bytes {
            return Err(format!("{shared_bytes} bytes of shared memory per block"));
        }
        let grad_value = gradients.value.as_ref().ok_or("no grad_value")?;
        let first = grad_value.first;
        aligned_forward(
            "grad_value",
            first,
            &grad_value.layout,
            &[0, 1, 2],
            &[3],
            16,
        )?;
        let by_query = grad_out.layout.strides()[1] as usize * types.value.size();
        let row_bytes = u32::try_from(by_query)
            .map_err(|_| format!("{by_query} bytes between rows of grad_out"))?;
        let slices = sizes.channels.div_ceil(CHANNELS);
        let planes = sizes.images * sizes.heads * slices;
        let warps = specialised::Bands::WARPS as usize;
        let bands: usize = match operands.levels_in_device_memory {
            // As many as the smallest bands make.
            true => sizes.pixels / (warps * WARP_PIXELS[0]) + sizes.levels,
            false => {
                let of_level = |level: &Level| {
                    let pixels = level.pixels();
                    pixels.div_ceil(warps * pixels_of_warp(pixels, samples))
                };
                operands.levels.iter().map(of_level).sum()
            }
        };
        let blocks = planes
            .checked_mul(bands)
            .and_then(|blocks| i32::try_from(blocks).ok())
            .ok_or("too many blocks")?;
        Ok(Bands {
            step: Step {
                kernel: KernelVariant::ValueBands(kernel),
                blocks: [blocks as u32, 1],
                threads: specialised::Bands::THREADS,
                shared_bytes,
            },
            arguments: BandArguments {
                slices: slices as u32,
                row_bytes,
                capacity: samples as u32,
                by_points: Divisor::new(sizes.points.max(1) as u32),
            },
        })
    }
}

/// Pixels of a warp in a level: `pixels_of_warp` of the kernel.
fn pixels_of_warp(pixels: usize, samples: usize) -> usize {
    let [least, most] = WARP_PIXELS;
    let mut of_warp = most;
    while of_warp > least && of_warp * samples > 16 * pixels {
        of_warp /= 2;
    }
    of_warp
}
