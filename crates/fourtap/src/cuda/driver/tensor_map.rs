//! Tensor maps: descriptors by which the tensor memory accelerator (TMA) of Hopper and later loads boxes of a tensor.

use std::ffi::c_int;

use super::context::Context;
use super::error::{DriverError, DriverResult};
use super::library::INVALID_VALUE;

/// The numbers cuda.h gives to: no interleaving, and zeros outside.
const PLAIN: [c_int; 2] = [0; 2];

/// How pieces of 16 bytes are exchanged in shared memory, so that the same piece of eight rows is in different banks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Swizzle {
    /// Not at all.
    #[default]
    None,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes.
    Bytes128,
}

impl Swizzle {
    fn number(self) -> c_int {
        match self {
            Swizzle::None => 0,
            Swizzle::Bytes64 => 2,
            Swizzle::Bytes128 => 3,
        }
    }

    /// The number of: L2 fetches as much as is asked for, or 128 bytes.
    fn promotion(self) -> c_int {
        match self {
            Swizzle::None => 0,
            Swizzle::Bytes64 | Swizzle::Bytes128 => 2,
        }
    }
}

/// The elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorElement {
    /// 16-bit float.
    F16,
    /// 32-bit float.
    F32,
    /// 16-bit float with the range of the 32-bit one.
    BF16,
    /// 32-bit number without a sign.
    U32,
}

impl TensorElement {
    /// Its size.
    pub fn bytes(self) -> usize {
        match self {
            TensorElement::F16 | TensorElement::BF16 => 2,
            TensorElement::F32 | TensorElement::U32 => 4,
        }
    }

    fn number(self) -> c_int {
        match self {
            TensorElement::U32 => 2,
            TensorElement::F16 => 6,
            TensorElement::F32 => 7,
            TensorElement::BF16 => 9,
        }
    }
}

/// A tensor in device memory and the box to load of it. Dimensions are in the order of memory: the first is contiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMapDesc {
    /// The elements.
    pub element: TensorElement,
    /// Where the tensor begins.
    pub address: u64,
    /// Elements in each dimension.
    pub dimensions: Vec<u64>,
    /// Bytes from one element to the next in each dimension but the first.
    pub strides: Vec<u64>,
    /// Elements of the box in each dimension.
    pub box_sides: Vec<u32>,
    /// Stride between loaded elements of the box, in each dimension.
    pub element_strides: Vec<u32>,
    /// How a box lies in shared memory.
    pub swizzle: Swizzle,
}

/// A TMA descriptor; a parameter of a kernel, by value.
///
/// It holds an address. That memory must be allocated when a kernel loads by the map, which the caller of the launch
/// promises. The default is a placeholder that no kernel loads by.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(128))]
pub struct TensorMap([u64; 16]);

impl TensorMap {
    /// Encodes a map for the context's device. What lies outside the tensor is loaded as zeros.
    pub fn encode(context: &Context, tiled: &TensorMapDesc) -> DriverResult<Self> {
        let rank = tiled.dimensions.len();
        // The driver reads as many numbers of each as the tensor has dimensions.
        let whole = tiled.strides.len() == rank.saturating_sub(1)
            && tiled.box_sides.len() == rank
            && tiled.element_strides.len() == rank;
        let refused = || DriverError::TensorMap {
            found: tiled.in_words(),
        };
        let Some(rank) = u32::try_from(rank).ok().filter(|_| whole) else {
            return Err(refused());
        };
        let _entered = context.enter()?;
        let api = context.api();
        let mut map = TensorMap([0; 16]);
        let [interleave, fill] = PLAIN;
        // SAFETY: 128 bytes are written, and each list holds what the rank says. The address is not read from.
        let status = unsafe {
            (api.cuTensorMapEncodeTiled)(
                (&raw mut map).cast(),
                tiled.element.number(),
                rank,
                tiled.address,
                tiled.dimensions.as_ptr(),
                tiled.strides.as_ptr(),
                tiled.box_sides.as_ptr(),
                tiled.element_strides.as_ptr(),
                interleave,
                tiled.swizzle.number(),
                tiled.swizzle.promotion(),
                fill,
            )
        };
        if status == INVALID_VALUE {
            return Err(refused());
        }
        api.check(status, "encode a tensor map")?;
        Ok(map)
    }
}

impl TensorMapDesc {
    fn in_words(&self) -> String {
        format!(
            "dimensions {:?} of {:?} at {:#x}, strides {:?}, box {:?}, element strides {:?}, swizzle {:?}",
            self.dimensions,
            self.element,
            self.address,
            self.strides,
            self.box_sides,
            self.element_strides,
            self.swizzle
        )
    }
}
