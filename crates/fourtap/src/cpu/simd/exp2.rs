//! 2 to a power, as a polynomial: the standard library would make one call per number.
//!
//! A power is split into the nearest integer, which becomes an exponent, and a remainder of at most 1/2, for which the
//! polynomial is the best approximation of its degree. The constant term is 1, so that 2 to the 0 is 1 exactly.

use crate::dtype::Real;

/// Coefficients of the powers from 1 on. Relative error 3e-8, half of what rounding the result to f32 costs.
pub(super) const F32_COEFFICIENTS: [f32; 6] = [
    std::f32::consts::LN_2,
    0.240_226_53,
    0.055_503_106,
    0.009_617_693,
    0.001_340_664_4,
    0.000_155_946_77,
];

/// The same for f64: 2e-17, a sixth.
const F64_COEFFICIENTS: [f64; 11] = [
    0.693_147_180_559_945_7,
    0.240_226_506_959_100_98,
    0.055_504_108_664_790_39,
    0.009_618_129_107_607_003,
    0.001_333_355_815_343_997,
    1.540_353_044_157_185e-4,
    1.525_272_738_518_977_5e-5,
    1.321_544_267_545_285_5e-6,
    1.018_064_766_057_307e-7,
    7.072_570_394_540_799e-9,
    4.078_071_786_092_87e-10,
];

/// The lowest power whose result is a normal number.
pub(super) const F32_LEAST: f32 = -126.0;

/// The lowest integer power whose result is infinite: its exponent, made from the integer, is that of infinity.
pub(super) const F32_INFINITE: f32 = 128.0;

/// A real whose exponent can be made from an integer, in a form compilers vectorise.
pub(crate) trait Exp2: Real {
    /// 2 to this power; 0 where that would not be a normal number, infinite where it would be too large. NaN stays NaN.
    fn exp2<const FUSED: bool>(self) -> Self;
}

macro_rules! exp2 {
    ($real:ty, $coefficients:expr, $least:expr, $infinite:expr, $mantissa_bits:expr, $bias:expr) => {
        impl Exp2 for $real {
            #[inline(always)]
            fn exp2<const FUSED: bool>(self) -> Self {
                // In this range the last bit is worth 1: adding rounds to an integer and leaves it in the lowest bits.
                const ROUND: $real = 1.5 * (1u64 << $mantissa_bits) as $real;
                let power = if self < $least { $least } else { self };
                let power = if power > $infinite { $infinite } else { power };
                let shifted = power + ROUND;
                let rest = power - (shifted - ROUND);
                let mut polynomial = 0.0;
                for coefficient in $coefficients.into_iter().rev() {
                    polynomial = multiply_add::<$real, FUSED>(polynomial, rest, coefficient);
                }
                polynomial = multiply_add::<$real, FUSED>(polynomial, rest, 1.0);
                let exponent = shifted.to_bits().wrapping_add($bias) << $mantissa_bits;
                let result = polynomial * <$real>::from_bits(exponent);
                if self < $least { 0.0 } else { result }
            }
        }
    };
}

exp2!(f32, F32_COEFFICIENTS, F32_LEAST, F32_INFINITE, 23, 127);
exp2!(f64, F64_COEFFICIENTS, -1022.0, 1024.0, 52, 1023);

/// Fused only where there is an instruction for it.
#[inline(always)]
fn multiply_add<R: Real, const FUSED: bool>(a: R, b: R, c: R) -> R {
    if FUSED { a.fused(b, c) } else { a * b + c }
}
