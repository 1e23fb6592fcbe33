//! The softmax of the logits of some heads.

use crate::cpu::msda::geometry::BLOCK;
use crate::cpu::simd::{Access, Isa, Lanes, MAX_LANES, Vectorized};
use crate::dtype::{DType, Element, Real};

/// Heads whose logits are turned into weights together: each has to wait for its maximum and its sum, and while one waits the
/// processor goes on with another.
pub(super) const HEADS: usize = 4;

/// Turns the logits of up to [`HEADS`] heads into weights. Each has some blocks of them, minus infinity for those that are
/// not there.
///
/// A NaN or plus infinity among the logits of a head, or minus infinity for all, makes all its weights NaN.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
pub(super) unsafe fn softmax<E: Vectorized, I: Isa>(
    heads: &mut [&mut [E::Accumulator]],
    blocks: usize,
) {
    let mut sums = [E::Lanes::<I>::splat(E::Accumulator::ZERO); HEADS];
    for (logits, sum) in heads.iter_mut().zip(&mut sums) {
        // SAFETY: the processor has the instructions.
        *sum = unsafe { exponentials::<E, I>(&mut logits.as_chunks_mut().0[..blocks]) };
    }
    let sums = Lanes::sums(sums);
    for (weights, sum) in heads.iter_mut().zip(sums) {
        let share = E::Lanes::<I>::splat(E::Accumulator::ONE / sum);
        for block in &mut weights.as_chunks_mut::<BLOCK>().0[..blocks] {
            for first in (0..BLOCK).step_by(E::Lanes::<I>::COUNT) {
                // SAFETY: a block is some whole vectors.
                unsafe {
                    let at = block.as_mut_ptr().add(first);
                    let weights: E::Lanes<I> = Access::<E::Accumulator>::load(at);
                    Access::<E::Accumulator>::store(weights.mul(share), at);
                }
            }
        }
    }
}

/// Turns logits into e to their powers, the greatest subtracted, and returns their sums.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn exponentials<E: Vectorized, I: Isa>(
    logits: &mut [[E::Accumulator; BLOCK]],
) -> E::Lanes<I> {
    let lanes = E::Lanes::<I>::COUNT;
    let mut most = E::Lanes::<I>::splat(E::Accumulator::NEG_INFINITY);
    for block in &*logits {
        for first in (0..BLOCK).step_by(lanes) {
            // SAFETY: a block is some whole vectors.
            let logits: E::Lanes<I> =
                unsafe { Access::<E::Accumulator>::load(block.as_ptr().add(first)) };
            most = logits.max(most);
        }
    }
    // SAFETY: the processor has the instructions.
    let most = E::Lanes::<I>::splat(unsafe { greatest::<E, I>(most) });
    let mut sum = E::Lanes::<I>::splat(E::Accumulator::ZERO);
    for block in logits {
        for first in (0..BLOCK).step_by(lanes) {
            // SAFETY: a block is some whole vectors, and the processor has the instructions.
            unsafe {
                let at = block.as_mut_ptr().add(first);
                let logits: E::Lanes<I> = Access::<E::Accumulator>::load(at);
                let power = exp::<E, I>(logits.sub(most));
                sum = sum.add(power);
                Access::<E::Accumulator>::store(power, at);
            }
        }
    }
    sum
}

/// e to these powers, which are 0 or less.
///
/// Rounding `power * log2(e)` would cost as many units in the last place as the power has, so what is lost there is made up
/// for afterwards: `2^(p + q) = 2^p + 2^p * (q * ln 2)` for small q.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn exp<E: Vectorized, I: Isa>(power: E::Lanes<I>) -> E::Lanes<I> {
    let number = |number: f64| E::Accumulator::from_f64(number);
    // Far below the least whose result is not 0, and short of where the parts of a product overflow. NaN stays NaN.
    let power = E::Lanes::<I>::splat(number(-2000.0)).max(power);
    let log2_e = number(std::f64::consts::LOG2_E);
    // What the constant itself lost: in f64 from its next digits.
    let lost = match E::Accumulator::DTYPE {
        DType::F64 => number(2.035_527_374_093_103_3e-17),
        _ => number(std::f64::consts::LOG2_E - log2_e.to_f64()),
    };
    let factor = E::Lanes::<I>::splat(log2_e);
    let whole = power.mul(factor);
    let rest = power.mul_add(
        E::Lanes::<I>::splat(lost),
        product_error::<E, I>(power, factor, whole),
    );
    let result = whole.exp2();
    let ln_2 = E::Lanes::<I>::splat(number(std::f64::consts::LN_2));
    rest.mul(ln_2).mul_add(result, result)
}

/// What rounding lost of a product.
#[inline(always)]
fn product_error<E: Vectorized, I: Isa>(
    one: E::Lanes<I>,
    other: E::Lanes<I>,
    product: E::Lanes<I>,
) -> E::Lanes<I> {
    if E::Lanes::<I>::FUSES {
        let zero = E::Lanes::<I>::splat(E::Accumulator::ZERO);
        return one.mul_add(other, zero.sub(product));
    }
    // In parts of half the digits, whose products are exact (Dekker).
    let ([a, b], [c, d]) = (halves::<E, I>(one), halves::<E, I>(other));
    let rest = a.mul(c).sub(product).add(a.mul(d)).add(b.mul(c));
    rest.add(b.mul(d))
}

/// Numbers of half the digits whose sum is the number (Veltkamp).
#[inline(always)]
fn halves<E: Vectorized, I: Isa>(number: E::Lanes<I>) -> [E::Lanes<I>; 2] {
    let digits = match E::Accumulator::DTYPE {
        DType::F64 => 27,
        _ => 12,
    };
    let factor = E::Accumulator::from_f64(((1u64 << digits) + 1) as f64);
    let scaled = number.mul(E::Lanes::<I>::splat(factor));
    let upper = scaled.sub(scaled.sub(number));
    [upper, number.sub(upper)]
}

/// The greatest lane.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn greatest<E: Vectorized, I: Isa>(vector: E::Lanes<I>) -> E::Accumulator {
    let mut lanes = [E::Accumulator::NEG_INFINITY; MAX_LANES];
    // SAFETY: there is room for any vector.
    unsafe { Access::<E::Accumulator>::store(vector, lanes.as_mut_ptr()) };
    let mut half = MAX_LANES / 2;
    while half > 0 {
        for i in 0..half {
            let other = lanes[i + half];
            lanes[i] = if other > lanes[i] { other } else { lanes[i] };
        }
        half /= 2;
    }
    lanes[0]
}
