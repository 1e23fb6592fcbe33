//! Zeros in place of padding: in a copy of `value`, or in a gradient.

use super::arguments::MaskArguments;
use crate::bool_view::BoolView;
use crate::cuda::handle::Cuda;
use crate::cuda::msda::operands::Operand;
use crate::cuda::msda::specialised::{KernelVariant, Mask};
use crate::cuda::recipe::SpecialisedKernel;
use crate::cuda::step::{LoadedStep, Step, parameter};
use crate::error::Result;

const THREADS: u32 = 256;
/// Blocks per multiprocessor: enough to fill it; they loop over the remaining work.
const BLOCKS_EACH: u32 = 16;

/// A prepared launch: everything but the addresses.
pub(super) struct MaskLaunch {
    step: LoadedStep,
    arguments: MaskArguments,
}

/// How the channels of a pixel are moved: `[N, S, M, units]`.
#[derive(Clone, Copy)]
struct Cut {
    unit: usize,
    heads: usize,
    units: usize,
    from: [i64; 4],
    to: [i64; 4],
}

impl MaskLaunch {
    /// Writes zeros into a tensor `[N, S, M, D]` where the mask is true, and, given `from`, a copy of that elsewhere.
    pub fn new(
        cuda: &Cuda,
        from: Option<&Operand>,
        to: &Operand,
        mask: &BoolView<'_>,
    ) -> Result<Self> {
        let cut = cut(from.unwrap_or(to), to);
        let sizes = to.layout.shape();
        let sizes = sizes.sizes();
        let step = Step {
            kernel: KernelVariant::Mask(Mask {
                copy: from.is_some(),
                unit: cut.unit as u32,
            }),
            blocks: [cuda.size().multiprocessors.max(1) * BLOCKS_EACH, 1],
            threads: THREADS,
            shared_bytes: 0,
        };
        Ok(MaskLaunch {
            step: step.load(cuda)?,
            arguments: MaskArguments {
                from_strides: cut.from,
                to_strides: cut.to,
                mask_strides: [0, 1].map(|axis| mask.strides()[axis] as i64),
                images: sizes[0] as i64,
                pixels: sizes[1] as i64,
                heads: cut.heads as u32,
                units: cut.units as u32,
                ..MaskArguments::default()
            },
        })
    }

    /// The name of its kernel.
    pub fn kernel(&self) -> &'static str {
        let mask = Mask {
            copy: true,
            unit: 16,
        };
        KernelVariant::Mask(mask).entry()
    }

    /// Queues the kernel.
    ///
    /// # Safety
    /// The addresses are of tensors and a mask like those it was prepared for, on the same device, and their memory stays
    /// allocated until the stream has done the work.
    pub unsafe fn launch(&self, cuda: &Cuda, from: u64, to: u64, mask: u64) -> Result<()> {
        let arguments = MaskArguments {
            from,
            to,
            mask,
            ..self.arguments
        };
        // SAFETY: the kernel takes these arguments; the rest as the caller promises.
        Ok(unsafe { self.step.launch(cuda, &mut [parameter(&arguments)]) }?)
    }
}

/// The widest units that both tensors consist of. Heads without gaps between them count as one.
fn cut(from: &Operand, to: &Operand) -> Cut {
    let element = to.layout.dtype().size();
    let shape = to.layout.shape();
    let [mut heads, mut channels] = [shape.sizes()[2], shape.sizes()[3]];
    let both = [from, to];
    let dense = |operand: &&Operand| channels == 1 || operand.layout.strides()[3] == 1;
    let joined = |operand: &&Operand| {
        heads == 1 || operand.layout.strides()[2] == channels as isize && dense(operand)
    };
    let is_dense = both.iter().all(dense);
    let is_joined = both.iter().all(joined);
    if is_joined {
        (heads, channels) = (1, heads * channels);
    }
    let rows = if is_joined { 2 } else { 3 };
    let fits = |unit: usize| {
        let aligned = |operand: &&Operand| {
            let steps = shape.sizes()[..rows].iter().zip(operand.layout.strides());
            (operand.first as usize).is_multiple_of(unit)
                && steps.into_iter().all(|(&size, &stride)| {
                    size <= 1 || (stride.unsigned_abs() * element).is_multiple_of(unit)
                })
        };
        (channels * element).is_multiple_of(unit) && both.iter().all(aligned)
    };
    let wide = [16, 8, 4, 2].into_iter().filter(|_| is_dense);
    let unit = wide
        .filter(|&unit| unit > element)
        .find(|&unit| fits(unit))
        .unwrap_or(element);
    let strides = |operand: &Operand| {
        let bytes = |axis: usize| (operand.layout.strides()[axis] * element as isize) as i64;
        let step = if unit > element || is_dense {
            unit as i64
        } else {
            bytes(3)
        };
        [bytes(0), bytes(1), bytes(2), step]
    };
    Cut {
        unit,
        heads,
        units: channels * element / unit,
        from: strides(from),
        to: strides(to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::layout::Layout;

    fn operand(layout: Layout) -> Operand {
        Operand {
            layout,
            first: std::ptr::without_provenance(0x1000),
        }
    }

    #[test]
    fn pixels_without_gaps_are_moved_in_wide_units() {
        let dense = operand(Layout::contiguous(DType::BF16, &[2, 5, 8, 32]));
        let found = cut(&dense, &dense);
        assert_eq!((found.unit, found.heads, found.units), (16, 1, 32));
    }

    #[test]
    fn strides_decide() {
        let dense = operand(Layout::contiguous(DType::F32, &[2, 5, 2, 3]));
        let found = cut(&dense, &dense);
        assert_eq!((found.unit, found.heads, found.units), (8, 1, 3));
        let apart = operand(Layout::strided(DType::F32, &[2, 5, 2, 3], &[100, 20, 8, 2]));
        let found = cut(&apart, &dense);
        assert_eq!((found.unit, found.heads, found.units), (4, 2, 3));
        assert_eq!((found.from[3], found.to[3]), (8, 4));
    }
}
