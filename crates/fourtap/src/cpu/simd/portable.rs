//! Vectors as arrays, which the compiler turns into whatever instructions it may use.

use super::exp2::Exp2;
use super::{Access, Isa, Lanes};
use crate::dtype::{Element, Real};

/// Only the instructions that the program was compiled for.
pub(super) struct Portable;

// Where the target has no fused multiply-add instruction it is a library call, hundreds of times slower.
const FUSED: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

impl Isa for Portable {
    type F32 = Array<f32, 8, FUSED>;
    type F64 = Array<f64, 8, FUSED>;
    const REGISTERS: usize = 16;
}

/// `N` sums.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(super) struct Array<R, const N: usize, const FUSED: bool>([R; N]);

impl<R: Exp2, const N: usize, const FUSED: bool> Lanes<R> for Array<R, N, FUSED> {
    const COUNT: usize = N;
    const FUSES: bool = FUSED;

    #[inline(always)]
    fn splat(number: R) -> Self {
        Array([number; N])
    }

    #[inline(always)]
    fn add(mut self, other: Self) -> Self {
        for lane in 0..N {
            self.0[lane] += other.0[lane];
        }
        self
    }

    #[inline(always)]
    fn sub(mut self, other: Self) -> Self {
        for lane in 0..N {
            self.0[lane] = self.0[lane] - other.0[lane];
        }
        self
    }

    #[inline(always)]
    fn mul(mut self, other: Self) -> Self {
        for lane in 0..N {
            self.0[lane] = self.0[lane] * other.0[lane];
        }
        self
    }

    #[inline(always)]
    fn max(self, mut other: Self) -> Self {
        for lane in 0..N {
            if self.0[lane] > other.0[lane] {
                other.0[lane] = self.0[lane];
            }
        }
        other
    }

    #[inline(always)]
    fn where_seen(mut self, logit: Self) -> Self {
        for lane in 0..N {
            if logit.0[lane] == R::NEG_INFINITY {
                self.0[lane] = R::ZERO;
            }
        }
        self
    }

    #[inline(always)]
    fn exp2(mut self) -> Self {
        for lane in 0..N {
            self.0[lane] = self.0[lane].exp2::<FUSED>();
        }
        self
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, mut addend: Self) -> Self {
        for lane in 0..N {
            addend.0[lane] = if FUSED {
                self.0[lane].fused(factor.0[lane], addend.0[lane])
            } else {
                self.0[lane] * factor.0[lane] + addend.0[lane]
            };
        }
        addend
    }

    #[inline(always)]
    fn sums(vectors: [Self; 4]) -> [R; 4] {
        vectors.map(|mut vector| {
            let mut half = N / 2;
            while half > 0 {
                for lane in 0..half {
                    let other = vector.0[lane + half];
                    vector.0[lane] += other;
                }
                half /= 2;
            }
            vector.0[0]
        })
    }
}

impl<E, const N: usize, const FUSED: bool> Access<E> for Array<E::Accumulator, N, FUSED>
where
    E: Element<Accumulator: Exp2>,
{
    #[inline(always)]
    unsafe fn load(from: *const E) -> Self {
        // SAFETY: N elements are readable, as the caller promises.
        Array(unsafe { from.cast::<[E; N]>().read_unaligned() }.map(E::widen))
    }

    #[inline(always)]
    unsafe fn load_first(from: *const E, count: usize) -> Self {
        let mut vector = [E::Accumulator::ZERO; N];
        for (lane, number) in vector.iter_mut().enumerate().take(count) {
            // SAFETY: `count` elements are readable, as the caller promises.
            *number = unsafe { *from.add(lane) }.widen();
        }
        Array(vector)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut E) {
        // SAFETY: N elements are writable, as the caller promises.
        unsafe { to.cast::<[E; N]>().write_unaligned(self.0.map(E::narrow)) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut E, count: usize) {
        for (lane, number) in self.0.iter().enumerate().take(count) {
            // SAFETY: `count` elements are writable, as the caller promises.
            unsafe { *to.add(lane) = E::narrow(*number) };
        }
    }
}
