//! Vectors of sums, and the choice of instructions at run time.
//!
//! A kernel is written once, generic over [`Isa`], and compiled once for each instruction set; [`Simd::run`] picks
//! the copy. Everything a kernel calls must be `#[inline(always)]`, or it is compiled without the instructions; so no
//! closure in a kernel may touch a vector (one that did made a pass more than ten times slower).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod exp2;
mod portable;

use std::fmt;

use crate::dtype::{Element, Real, bf16, f16};
use crate::error::{Error, Result};

/// A set of vector instructions the CPU backend has code for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Simd {
    /// AVX-512, and AMX tiles of bf16 where matrices of 16-bit types are multiplied; needs AVX-512 BF16 too, and Linux.
    Amx,
    /// AVX-512 F, BW, DQ and VL: 16 channels at a time.
    Avx512,
    /// AVX2, FMA and F16C: 8 channels at a time.
    Avx2,
    /// Plain Rust, vectorised by the compiler; available on every processor.
    Portable,
}

impl Simd {
    /// Every path, best first.
    pub const ALL: [Simd; 4] = [Simd::Amx, Simd::Avx512, Simd::Avx2, Simd::Portable];

    /// The best path this processor has.
    pub fn best() -> Simd {
        *Self::ALL
            .iter()
            .find(|simd| simd.is_available())
            .unwrap_or(&Simd::Portable)
    }

    /// The paths this processor has, best first.
    pub fn available() -> impl Iterator<Item = Simd> {
        Self::ALL.into_iter().filter(|simd| simd.is_available())
    }

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Simd::Amx => {
                use std::arch::is_x86_feature_detected as has;
                Simd::Avx512.is_available() && has!("avx512bf16") && super::amx::is_available()
            }
            #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
            Simd::Amx => false,
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => {
                use std::arch::is_x86_feature_detected as has;
                Simd::Avx2.is_available()
                    && has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512dq")
                    && has!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => {
                use std::arch::is_x86_feature_detected as has;
                has!("avx2") && has!("fma") && has!("f16c")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Simd::Avx512 | Simd::Avx2 => false,
            Simd::Portable => true,
        }
    }

    /// The lower-case name used in messages and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Simd::Amx => "amx",
            Simd::Avx512 => "avx512",
            Simd::Avx2 => "avx2",
            Simd::Portable => "portable",
        }
    }

    /// Itself, or an error that lists the available paths.
    pub(crate) fn require(self) -> Result<Simd> {
        if self.is_available() {
            return Ok(self);
        }
        let available: Vec<_> = Simd::available().map(Simd::name).collect();
        Err(Error::SimdUnavailable {
            requested: self.name(),
            available: available.join(", "),
        })
    }

    /// Runs the copy of `kernel` compiled for these instructions.
    ///
    /// # Safety
    /// The processor must have them.
    pub(crate) unsafe fn run<K: Kernel>(self, kernel: K) {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Simd::Amx | Simd::Avx512 => avx512::run(kernel),
                #[cfg(target_arch = "x86_64")]
                Simd::Avx2 => avx2::run(kernel),
                _ => kernel.run::<portable::Portable>(),
            }
        }
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A piece of work that can be compiled for any instruction set.
pub(crate) trait Kernel {
    /// Runs it. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// The processor must have the instructions `I` stands for.
    unsafe fn run<I: Isa>(self);
}

/// An instruction set: the vector types its code uses.
pub(crate) trait Isa {
    type F32: Lanes<f32> + Access<f32> + Access<f16> + Access<bf16>;
    type F64: Lanes<f64> + Access<f64>;
    /// Vectors of f32 that its registers hold.
    const REGISTERS: usize;
}

/// A real type and its vectors.
pub(crate) trait VectorReal: Real {
    type Vector<I: Isa>: Lanes<Self> + Access<Self>;
}

impl VectorReal for f32 {
    type Vector<I: Isa> = I::F32;
}
impl VectorReal for f64 {
    type Vector<I: Isa> = I::F64;
}

/// An element type and the vectors of its accumulator.
pub(crate) trait Vectorized: Element<Accumulator: VectorReal> {
    type Lanes<I: Isa>: Lanes<Self::Accumulator> + Access<Self> + Access<Self::Accumulator>;
}

impl Vectorized for f16 {
    type Lanes<I: Isa> = I::F32;
}
impl Vectorized for bf16 {
    type Lanes<I: Isa> = I::F32;
}
impl Vectorized for f32 {
    type Lanes<I: Isa> = I::F32;
}
impl Vectorized for f64 {
    type Lanes<I: Isa> = I::F64;
}

/// A vector of sums. The functions are safe to call only where the instructions exist, which the caller of
/// [`Kernel::run`] has shown.
pub(crate) trait Lanes<R: Real>: Copy {
    /// How many sums.
    const COUNT: usize;
    /// Whether `mul_add` rounds once.
    const FUSES: bool;
    fn splat(number: R) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// The maximum; `other` where either is NaN.
    fn max(self, other: Self) -> Self;
    /// These numbers; 0 where `logit` is minus infinity.
    fn where_seen(self, logit: Self) -> Self;
    /// 2 to these powers, within two units in the last place; 0 where that would not be a normal number, infinite or NaN where
    /// it would be too large. NaN stays NaN.
    fn exp2(self) -> Self;
    /// `self * factor + addend`.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// The sum over the lanes of each of four vectors.
    fn sums(vectors: [Self; 4]) -> [R; 4];
}

/// Loads and stores of `E`, converted to and from the vector's type.
pub(crate) trait Access<E: Element>: Lanes<E::Accumulator> {
    /// # Safety
    /// `COUNT` elements are readable at `from`.
    unsafe fn load(from: *const E) -> Self;
    /// The first `count` lanes; the others are 0.
    /// # Safety
    /// `count <= COUNT` elements are readable at `from`.
    unsafe fn load_first(from: *const E, count: usize) -> Self;
    /// # Safety
    /// `COUNT` elements are writable at `to`.
    unsafe fn store(self, to: *mut E);
    /// # Safety
    /// `count <= COUNT` elements are writable at `to`.
    unsafe fn store_first(self, to: *mut E, count: usize);

    /// Two vectors' worth of elements, in whatever lane order is fastest. [`Access::store_pair`]
    /// restores the order.
    ///
    /// # Safety
    /// `2 * COUNT` elements are readable at `from`.
    #[inline(always)]
    unsafe fn load_pair(from: *const E) -> [Self; 2] {
        // SAFETY: as the caller promises.
        unsafe { [Self::load(from), Self::load(from.add(Self::COUNT))] }
    }

    /// Stores a pair in the lane order of [`Access::load_pair`] back in memory order.
    ///
    /// # Safety
    /// `2 * COUNT` elements are writable at `to`.
    #[inline(always)]
    unsafe fn store_pair([first, second]: [Self; 2], to: *mut E) {
        // SAFETY: as the caller promises.
        unsafe {
            first.store(to);
            second.store(to.add(Self::COUNT));
        }
    }
}

/// `VECTORS` vectors' worth of elements, in the lane order of [`Access::load_pair`].
///
/// # Safety
/// They are readable at `from`.
#[inline(always)]
pub(crate) unsafe fn load_dealt<E: Vectorized, I: Isa, const VECTORS: usize>(
    from: *const E,
) -> [E::Lanes<I>; VECTORS] {
    let lanes = E::Lanes::<I>::COUNT;
    let mut vectors = [E::Lanes::<I>::splat(E::Accumulator::ZERO); VECTORS];
    // SAFETY: as the caller promises.
    unsafe {
        for pair in 0..VECTORS / 2 {
            let [first, second] = Access::<E>::load_pair(from.add(2 * pair * lanes));
            vectors[2 * pair] = first;
            vectors[2 * pair + 1] = second;
        }
        if VECTORS % 2 == 1 {
            vectors[VECTORS - 1] = Access::<E>::load(from.add((VECTORS - 1) * lanes));
        }
    }
    vectors
}

/// The most lanes a vector has.
pub(crate) const MAX_LANES: usize = 16;

/// `count` elements `stride` apart; the other lanes are 0.
///
/// # Safety
/// They are readable, and `count` is at most the number of lanes.
#[inline(always)]
pub(crate) unsafe fn load_strided<E: Element, V: Access<E>>(
    from: *const E,
    stride: isize,
    count: usize,
) -> V {
    let mut gathered = [E::default(); MAX_LANES];
    for (lane, element) in gathered.iter_mut().enumerate().take(count) {
        // SAFETY: readable, as the caller promises.
        *element = unsafe { *from.offset(lane as isize * stride) };
    }
    // SAFETY: `gathered` has room for any vector.
    unsafe { V::load(gathered.as_ptr()) }
}

/// `count` channels from `first` on, of elements `stride` apart; the other lanes are 0.
///
/// # Safety
/// They are readable, and `count` is at most the number of lanes.
#[inline(always)]
pub(crate) unsafe fn load_some<E: Vectorized, I: Isa>(
    from: *const E,
    stride: isize,
    first: usize,
    count: usize,
) -> E::Lanes<I> {
    // SAFETY: as the caller promises.
    unsafe {
        let from = from.offset(first as isize * stride);
        match stride {
            1 => Access::<E>::load_first(from, count),
            _ => load_strided(from, stride, count),
        }
    }
}

/// Stores the first `count` lanes `stride` apart.
///
/// # Safety
/// They are writable, and `count` is at most the number of lanes.
#[inline(always)]
pub(crate) unsafe fn store_strided<E: Element, V: Access<E>>(
    vector: V,
    to: *mut E,
    stride: isize,
    count: usize,
) {
    let mut scattered = [E::default(); MAX_LANES];
    // SAFETY: `scattered` has room for any vector; the addresses written are writable, as the caller promises.
    unsafe {
        vector.store(scattered.as_mut_ptr());
        for (lane, element) in scattered.iter().enumerate().take(count) {
            *to.offset(lane as isize * stride) = *element;
        }
    }
}

/// Stores `count` channels from `first` on, `stride` apart.
///
/// # Safety
/// They are writable, and `count` is at most the number of lanes.
#[inline(always)]
pub(crate) unsafe fn store_some<E: Vectorized, I: Isa>(
    vector: E::Lanes<I>,
    to: *mut E,
    stride: isize,
    first: usize,
    count: usize,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let to = to.offset(first as isize * stride);
        match stride {
            1 => Access::<E>::store_first(vector, to, count),
            _ => store_strided::<E, _>(vector, to, stride, count),
        }
    }
}

/// Prefetches `bytes` bytes at `address`, which need not be readable. Does nothing where there is no such
/// instruction.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        // SAFETY: a prefetch of any address is a hint and never faults.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(address.wrapping_byte_add(line).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 to each of `powers`.
    struct Powers<'a, R> {
        powers: &'a [R],
        results: &'a mut [R],
    }

    impl<R: VectorReal> Kernel for Powers<'_, R> {
        #[inline(always)]
        unsafe fn run<I: Isa>(self) {
            let lanes = R::Vector::<I>::COUNT;
            for first in (0..self.powers.len()).step_by(lanes) {
                let count = lanes.min(self.powers.len() - first);
                // SAFETY: `count` numbers from `first` on lie in both.
                unsafe {
                    let powers: R::Vector<I> =
                        Access::<R>::load_first(self.powers[first..].as_ptr(), count);
                    Access::<R>::store_first(
                        powers.exp2(),
                        self.results[first..].as_mut_ptr(),
                        count,
                    );
                }
            }
        }
    }

    fn holds_two_to_a_power<R: VectorReal>(least: f64, epsilon: f64) {
        let mut powers: Vec<R> = (0..100_000)
            .map(|i| R::from_f64(least * (i as f64 / 99_999.0).powi(3)))
            .collect();
        powers.extend([0.5, 1.0, 2.0, 9.75].map(R::from_f64));
        let ordinary = powers.len();
        powers.extend([-1.1 * least, 1e30].map(R::from_f64));
        powers.extend([R::NAN, R::NEG_INFINITY, R::from_f64(1.01 * least)]);
        for simd in Simd::available() {
            let mut results = vec![R::NAN; powers.len()];
            let kernel = Powers {
                powers: &powers,
                results: &mut results,
            };
            // SAFETY: the path is available.
            unsafe { simd.run(kernel) };
            assert_eq!(results[0].to_f64(), 1.0, "{simd}: 2 to the 0");
            let [.., above, far_above, nan, infinite, below] = results[..] else {
                unreachable!("five were added")
            };
            let overflow = [above, far_above].map(R::to_f64);
            assert!(
                overflow.iter().all(|x| !x.is_finite()),
                "{simd}: {overflow:?}"
            );
            assert!(nan.to_f64().is_nan(), "{simd}: NaN became {nan:?}");
            assert_eq!([infinite.to_f64(), below.to_f64()], [0.0; 2], "{simd}");
            for (power, result) in powers[..ordinary].iter().zip(results) {
                let (exact, result) = (power.to_f64().exp2(), result.to_f64());
                assert!(
                    (result - exact).abs() <= 2.0 * epsilon * exact,
                    "{simd}: 2 to the {power:?} is {exact:e}, not {result:e}"
                );
            }
        }
    }

    #[test]
    fn powers_of_two_are_within_two_units_in_the_last_place() {
        holds_two_to_a_power::<f32>(-126.0, f32::EPSILON as f64);
        holds_two_to_a_power::<f64>(-1022.0, f64::EPSILON);
    }
}
