//! Element types a tensor can hold.

use std::fmt;

pub use half::{bf16, f16};

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE half precision: 10 bits of mantissa.
    F16,
    /// The upper half of an f32: 7 bits of mantissa.
    BF16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
}

impl DType {
    /// Every element type, narrowest first.
    pub const ALL: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::F16 | DType::BF16 => 2,
            DType::F32 => 4,
            DType::F64 => 8,
        }
    }

    /// Distance from 1 to the next larger number of this type.
    pub const fn epsilon(self) -> f64 {
        match self {
            DType::F16 => 1.0 / 1024.0,
            DType::BF16 => 1.0 / 128.0,
            DType::F32 => f32::EPSILON as f64,
            DType::F64 => f64::EPSILON,
        }
    }

    /// The lower-case name used in messages and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// A Rust type that is one of the element types.
///
/// `Accumulator` is what coordinates, corner weights and sums of such a tensor are computed in: f64 for f64, f32 for
/// the rest.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + fmt::Debug + 'static {
    /// The matching [`DType`].
    const DTYPE: DType;
    /// The type sums are kept in.
    type Accumulator: Real;
    /// The exact value in the accumulator type.
    fn widen(self) -> Self::Accumulator;
    /// The nearest element, ties to even.
    fn narrow(accumulator: Self::Accumulator) -> Self;
    /// The exact value in double precision.
    fn to_f64(self) -> f64;
    /// The nearest element, ties to even, rounded once through f32 for the 16-bit types.
    fn from_f64(value: f64) -> Self;
}

/// The two types arithmetic is done in.
pub trait Real:
    Element<Accumulator = Self>
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::AddAssign
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// 1/2.
    const HALF: Self;
    /// Not a number.
    const NAN: Self;
    /// Less than every other number.
    const NEG_INFINITY: Self;
    /// `self * factor + addend`, rounded once.
    fn fused(self, factor: Self, addend: Self) -> Self;
    /// The least finite number.
    const LOWEST: Self;
    /// The number without its sign.
    fn magnitude(self) -> Self;
    /// e to this power.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The nearest real to an integer.
    fn from_i32(integer: i32) -> Self;
    /// The integer part.
    ///
    /// # Safety
    /// `self` must be finite and its integer part must fit an i32.
    unsafe fn truncate(self) -> i32;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $accumulator:ty, $widen:expr, $narrow:expr, $to_f64:expr, $from_f64:expr) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Accumulator = $accumulator;
            #[inline(always)]
            fn widen(self) -> $accumulator {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(accumulator: $accumulator) -> Self {
                $narrow(accumulator)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                $to_f64(self)
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                $from_f64(value)
            }
        }
    };
}

element!(
    f16,
    F16,
    f32,
    widen_f16,
    f16::from_f32,
    |v| widen_f16(v) as f64,
    |v| f16::from_f32(v as f32)
);
element!(
    bf16,
    BF16,
    f32,
    bf16::to_f32,
    bf16::from_f32,
    |v| bf16::to_f32(v) as f64,
    |v| bf16::from_f32(v as f32)
);
element!(f32, F32, f32, |v| v, |v| v, |v| v as f64, |v| v as f32);
element!(f64, F64, f64, |v| v, |v| v, |v| v, |v| v);

macro_rules! real {
    ($type:ty) => {
        impl Real for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const HALF: Self = 0.5;
            const NAN: Self = <$type>::NAN;
            const NEG_INFINITY: Self = <$type>::NEG_INFINITY;
            const LOWEST: Self = <$type>::MIN;
            #[inline(always)]
            fn fused(self, factor: Self, addend: Self) -> Self {
                self.mul_add(factor, addend)
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn exp(self) -> Self {
                self.exp()
            }
            #[inline(always)]
            fn ln(self) -> Self {
                self.ln()
            }
            #[inline(always)]
            fn from_i32(integer: i32) -> Self {
                integer as $type
            }
            #[inline(always)]
            unsafe fn truncate(self) -> i32 {
                // SAFETY: the caller promises a finite number whose integer part fits.
                unsafe { self.to_int_unchecked() }
            }
        }
    };
}

real!(f32);
real!(f64);

/// f16 to f32 in a form that compilers vectorise. The conversion in `half` detects features at run time, so it does not.
#[inline(always)]
fn widen_f16(half: f16) -> f32 {
    let bits = half.to_bits() as u32;
    let (sign, magnitude) = ((bits & 0x8000) << 16, (bits & 0x7fff) << 13);
    // Shifting by the difference of the exponents' biases, 112, as a product also normalises subnormal numbers.
    let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let special = magnitude | 0x7f80_0000;
    let bits = if magnitude >= 0x7c00 << 13 {
        special
    } else {
        finite.to_bits()
    };
    f32::from_bits(sign | bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widens_every_f16_exactly() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            let (ours, theirs) = (widen_f16(half), half.to_f32());
            assert!(
                ours == theirs || (ours.is_nan() && theirs.is_nan()),
                "{bits:#x}: {ours} is not {theirs}"
            );
        }
    }
}
