//! Random masks and biases of dense attention.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::case::{CaseKind, pick, random_storage};
#[cfg(feature = "cuda")]
use super::device_tensor::DeviceTensor;
use super::tensor::Tensor;
use crate::bool_view::BoolView;
#[cfg(feature = "cuda")]
use crate::cuda::Cuda;
#[cfg(feature = "cuda")]
use crate::cuda::driver::Buffer;
use crate::dense::{AttnMask, Sizes};
use crate::dtype::DType;
#[cfg(feature = "cuda")]
use crate::error::Result;

/// A mask or a bias that owns its memory.
#[derive(Clone, Debug)]
pub enum RandomMask {
    /// Added to the logits.
    Bias(Tensor),
    /// Bytes, not 0 where a query sees a key.
    Seen {
        /// All of them, those around it included.
        bytes: Vec<u8>,
        /// The same layout, of other numbers.
        like: Tensor,
    },
}

impl RandomMask {
    /// The mask of this seed for a problem of these sizes and this type.
    pub(super) fn new(seed: u64, sizes: &Sizes, dtype: DType) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_add(3 << 32));
        let shape = random_shape(rng, sizes);
        let storage = random_storage(rng, shape.len(), true, CaseKind::Any);
        let hidden = pick(rng, &[0.0, 0.0, 0.1, 0.5, 0.9, 1.0]);
        if rng.random_bool(0.5) {
            let dtype = pick(rng, &[dtype, DType::F32]);
            let spread = pick(rng, &[1.0, 1.0, 10.0]);
            // Models hide keys by the lowest number, too.
            let lowest = if dtype == DType::F16 {
                -65504.0
            } else {
                -3.38e38
            };
            let unseen = pick(rng, &[f64::NEG_INFINITY, lowest]);
            return RandomMask::Bias(Tensor::from_fn(dtype, &shape, &storage, || {
                match rng.random_bool(hidden) {
                    true => unseen,
                    false => spread * rng.random_range(-1.0..1.0),
                }
            }));
        }
        // Groups of neighbours, which leave whole blocks unseen, or any keys.
        let group = pick(rng, &[None, Some(7), Some(70), Some(130)]);
        let columns = shape.last().copied().unwrap_or(1).max(1);
        let rows = shape.iter().rev().nth(1).copied().unwrap_or(1).max(1);
        let mut index = 0;
        let like = Tensor::from_fn(DType::F32, &shape, &storage, || {
            let (row, column) = (index / columns % rows, index % columns);
            index += 1;
            let seen = match group {
                Some(group) => row / group == column / group,
                None => !rng.random_bool(hidden),
            };
            f64::from(u8::from(seen))
        });
        // Any byte but 0 is true; what belongs to no index, NaN there, may be anything.
        let bytes = like.bits().into_iter().map(|bits| match bits {
            0 => 0,
            _ => rng.random_range(1..=255),
        });
        RandomMask::Seen {
            bytes: bytes.collect(),
            like,
        }
    }

    /// To read.
    pub fn view(&self) -> AttnMask<'_> {
        match self {
            RandomMask::Bias(tensor) => AttnMask::Bias(tensor.view()),
            RandomMask::Seen { bytes, like } => {
                let layout = like.layout();
                let shape = layout.shape();
                let first = bytes.as_ptr().wrapping_add(like.first_element());
                // SAFETY: there is a byte for each element in the memory of `like`, and they live as long as the view.
                AttnMask::Seen(unsafe {
                    BoolView::from_raw(first, shape.sizes(), layout.strides())
                })
            }
        }
    }
}

/// A copy of a mask in the memory of a device.
#[cfg(feature = "cuda")]
pub(super) enum MaskOnDevice {
    Bias(DeviceTensor),
    Seen(Buffer),
}

#[cfg(feature = "cuda")]
impl MaskOnDevice {
    pub fn new(cuda: &Cuda, mask: &RandomMask) -> Result<Self> {
        Ok(match mask {
            RandomMask::Bias(tensor) => MaskOnDevice::Bias(DeviceTensor::new(cuda, tensor)?),
            // Never empty, so that there is an address.
            RandomMask::Seen { bytes, .. } if bytes.is_empty() => {
                MaskOnDevice::Seen(Buffer::zeroed(cuda.context(), 16)?)
            }
            RandomMask::Seen { bytes, .. } => {
                MaskOnDevice::Seen(Buffer::from_slice(cuda.context(), bytes)?)
            }
        })
    }

    /// The copy, of this mask on this device.
    pub fn view(&self, cuda: &Cuda, mask: &RandomMask) -> Option<AttnMask<'_>> {
        match (self, mask) {
            (MaskOnDevice::Bias(tensor), _) => Some(AttnMask::Bias(tensor.view())),
            (MaskOnDevice::Seen(bytes), RandomMask::Seen { like, .. }) => {
                let layout = like.layout();
                let shape = layout.shape();
                let first = bytes.as_ptr() + like.first_element() as u64;
                // SAFETY: the buffer has a byte for each element in the memory of `like`, and outlives the view.
                Some(AttnMask::Seen(unsafe {
                    BoolView::on_cuda(cuda.ordinal(), first, shape.sizes(), layout.strides())
                }))
            }
            _ => None,
        }
    }
}

/// A shape that broadcasts to all rows and keys.
fn random_shape(rng: &mut Xoshiro256PlusPlus, sizes: &Sizes) -> Vec<usize> {
    let whole = [sizes.batch, sizes.query_heads, sizes.queries, sizes.keys];
    let mut shape: Vec<usize> = whole
        .into_iter()
        .map(|size| if rng.random_bool(0.35) { 1 } else { size })
        .collect();
    while shape.len() > 1 && shape[0] == 1 && rng.random_bool(0.5) {
        shape.remove(0);
    }
    shape
}
