//! Locations and weights as kernels see them: of either element type, read a block of samples at a time.

use super::geometry::{BLOCK, Block};
use crate::cpu::raw::Raw;
use crate::cpu::simd::{prefetch, widen_f16};
use crate::dtype::{DType, Element, Real, bf16, f16};
use crate::layout::Layout;

/// Locations or weights: f32, or whatever `value` is.
#[derive(Clone, Copy)]
pub(super) struct Coordinates<const RANK: usize> {
    dtype: DType,
    raw: Raw<u8, RANK>,
}

impl<const RANK: usize> Coordinates<RANK> {
    pub fn new(first: *mut u8, layout: &Layout) -> Self {
        let strides = layout.strides().try_into().expect("checked with the call");
        Coordinates {
            dtype: layout.dtype(),
            raw: Raw { first, strides },
        }
    }

    pub fn strides(&self) -> [isize; RANK] {
        self.raw.strides
    }

    /// Offset, in elements, of the entries of one (image, query, head).
    #[inline(always)]
    pub fn row(&self, row: [usize; 3]) -> isize {
        let mut offset = 0isize;
        for axis in 0..3 {
            // Wrapping, because a row may be asked for that lies outside.
            offset = offset.wrapping_add((row[axis] as isize).wrapping_mul(self.raw.strides[axis]));
        }
        offset
    }

    #[inline(always)]
    pub fn prefetch(&self, row: [usize; 3], place: isize, count: usize) {
        let offset = self
            .row(row)
            .wrapping_add(place)
            .wrapping_mul(self.dtype.size() as isize);
        prefetch(
            self.raw.first.wrapping_offset(offset),
            count * self.dtype.size(),
        );
    }

    /// The `width` numbers of each of `count` samples that follow each other from `row` on, one block a number.
    ///
    /// # Safety
    /// They lie in the tensor, without gaps.
    #[inline(always)]
    pub unsafe fn read_packed<R: Real, const WIDTH: usize>(
        &self,
        row: isize,
        count: usize,
    ) -> [Block<R>; WIDTH] {
        // SAFETY: as the caller promises.
        unsafe {
            match self.dtype {
                DType::F32 => packed(self.raw.first.cast::<f32>().offset(row), count, |x| {
                    x as f64
                }),
                DType::F16 => packed(self.raw.first.cast::<f16>().offset(row), count, |x| {
                    widen_f16(x) as f64
                }),
                DType::BF16 => packed(self.raw.first.cast::<bf16>().offset(row), count, |x| {
                    x.to_f32() as f64
                }),
                DType::F64 => packed(self.raw.first.cast::<f64>().offset(row), count, |x| x),
            }
        }
    }

    /// The same for samples that lie in runs of `RUN`, each beginning at the place of its first.
    ///
    /// # Safety
    /// The samples lie in the tensor, and `count` is a multiple of `RUN`.
    #[inline(always)]
    pub unsafe fn read_runs<R: Real, const WIDTH: usize, const RUN: usize>(
        &self,
        row: isize,
        places: &Block<isize>,
        count: usize,
    ) -> [Block<R>; WIDTH] {
        // SAFETY: as the caller promises.
        unsafe {
            match self.dtype {
                DType::F32 => runs::<f32, R, WIDTH, RUN>(self.at(row), places, count, |x| x as f64),
                DType::F16 => {
                    runs::<f16, R, WIDTH, RUN>(self.at(row), places, count, |x| widen_f16(x) as f64)
                }
                DType::BF16 => {
                    runs::<bf16, R, WIDTH, RUN>(self.at(row), places, count, |x| x.to_f32() as f64)
                }
                DType::F64 => runs::<f64, R, WIDTH, RUN>(self.at(row), places, count, |x| x),
            }
        }
    }

    /// # Safety
    /// The offset lies in the tensor.
    #[inline(always)]
    unsafe fn at<E>(&self, offset: isize) -> *const E {
        // SAFETY: as the caller promises.
        unsafe { self.raw.first.cast_const().cast::<E>().offset(offset) }
    }

    /// The numbers at `row + places[..count]`.
    ///
    /// # Safety
    /// They lie in the tensor.
    pub unsafe fn read_scattered<R: Real>(
        &self,
        row: isize,
        places: &Block<isize>,
        count: usize,
    ) -> Block<R> {
        // SAFETY: as the caller promises.
        unsafe {
            match self.dtype {
                DType::F32 => gather(
                    self.raw.first.cast::<f32>().offset(row),
                    places,
                    count,
                    |x| x as f64,
                ),
                DType::F16 => gather(
                    self.raw.first.cast::<f16>().offset(row),
                    places,
                    count,
                    |x| widen_f16(x) as f64,
                ),
                DType::BF16 => gather(
                    self.raw.first.cast::<bf16>().offset(row),
                    places,
                    count,
                    |x| x.to_f32() as f64,
                ),
                DType::F64 => gather(
                    self.raw.first.cast::<f64>().offset(row),
                    places,
                    count,
                    |x| x,
                ),
            }
        }
    }

    /// Writes the first `count` of `numbers` to `row + places`, rounded to the tensor's type.
    ///
    /// # Safety
    /// The places lie in the tensor and nobody else uses them.
    #[inline(always)]
    pub unsafe fn write<R: Real>(
        &self,
        row: isize,
        places: &Block<isize>,
        count: usize,
        numbers: &Block<R>,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            match self.dtype {
                DType::F32 => scatter(
                    self.raw.first.cast::<f32>().offset(row),
                    places,
                    count,
                    numbers,
                ),
                DType::F16 => scatter(
                    self.raw.first.cast::<f16>().offset(row),
                    places,
                    count,
                    numbers,
                ),
                DType::BF16 => scatter(
                    self.raw.first.cast::<bf16>().offset(row),
                    places,
                    count,
                    numbers,
                ),
                DType::F64 => scatter(
                    self.raw.first.cast::<f64>().offset(row),
                    places,
                    count,
                    numbers,
                ),
            }
        }
    }
}

// Every type goes through f64, which is exact; f32 there and back compiles to nothing.

#[inline(always)]
unsafe fn packed<E: Element, R: Real, const WIDTH: usize>(
    row: *const E,
    count: usize,
    widen: impl Fn(E) -> f64,
) -> [Block<R>; WIDTH] {
    let mut elements = [[E::default(); WIDTH]; BLOCK];
    // SAFETY: `count` samples are readable, as the caller promises.
    unsafe {
        // A copy of fixed size becomes a few loads.
        match count {
            BLOCK => elements = row.cast::<[[E; WIDTH]; BLOCK]>().read(),
            _ => row.copy_to_nonoverlapping(elements.as_mut_ptr().cast(), count * WIDTH),
        }
    }
    deal(&elements, widen)
}

#[inline(always)]
unsafe fn runs<E: Element, R: Real, const WIDTH: usize, const RUN: usize>(
    row: *const E,
    places: &Block<isize>,
    count: usize,
    widen: impl Fn(E) -> f64,
) -> [Block<R>; WIDTH] {
    let mut elements = [[E::default(); WIDTH]; BLOCK];
    for (run, samples) in elements
        .as_chunks_mut::<RUN>()
        .0
        .iter_mut()
        .enumerate()
        .take(count / RUN)
    {
        // SAFETY: a run lies in the tensor without gaps, as the caller promises.
        *samples = unsafe {
            row.offset(places[run * RUN])
                .cast::<[[E; WIDTH]; RUN]>()
                .read()
        };
    }
    deal(&elements, widen)
}

/// The first number of each sample to the first block, and so on.
#[inline(always)]
fn deal<E: Element, R: Real, const WIDTH: usize>(
    elements: &[[E; WIDTH]; BLOCK],
    widen: impl Fn(E) -> f64,
) -> [Block<R>; WIDTH] {
    let mut numbers = [[R::ZERO; BLOCK]; WIDTH];
    for (i, element) in elements.iter().enumerate() {
        for (number, &element) in numbers.iter_mut().zip(element) {
            number[i] = R::from_f64(widen(element));
        }
    }
    numbers
}

#[inline(always)]
unsafe fn gather<E: Element, R: Real>(
    row: *const E,
    places: &Block<isize>,
    count: usize,
    widen: impl Fn(E) -> f64,
) -> Block<R> {
    let mut numbers = [R::ZERO; BLOCK];
    for (number, &place) in numbers.iter_mut().zip(places).take(count) {
        // SAFETY: the place lies in the tensor, as the caller promises.
        *number = R::from_f64(widen(unsafe { *row.offset(place) }));
    }
    numbers
}

#[inline(always)]
unsafe fn scatter<E: Element, R: Real>(
    row: *mut E,
    places: &Block<isize>,
    count: usize,
    numbers: &Block<R>,
) {
    for (number, &place) in numbers.iter().zip(places).take(count) {
        // SAFETY: the place lies in the tensor, as the caller promises.
        unsafe { *row.offset(place) = E::from_f64(number.to_f64()) };
    }
}
