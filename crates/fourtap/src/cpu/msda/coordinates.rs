//! Locations and weights, or what they are made of, in either element type, read one block of samples at a time.

use std::marker::PhantomData;

use super::geometry::{BLOCK, Block};
use crate::cpu::raw::Raw;
use crate::cpu::simd::prefetch;
use crate::dtype::{DType, Element, Real};
use crate::layout::Layout;

/// Locations or weights, or what they are made of: f32, or `E`, the element type of `value`.
#[derive(Clone, Copy)]
pub(super) struct Coordinates<E, const RANK: usize> {
    is_f32: bool,
    raw: Raw<u8, RANK>,
    other: PhantomData<E>,
}

impl<E: Element, const RANK: usize> Coordinates<E, RANK> {
    /// # Panics
    /// If the tensor was not checked to have one of the two types.
    pub fn new(first: *mut u8, layout: &Layout) -> Self {
        let strides = layout.strides().try_into().expect("checked with the call");
        Coordinates::with_strides(first, layout.dtype(), strides)
    }

    /// # Panics
    /// As for `new`.
    pub fn with_strides(first: *mut u8, dtype: DType, strides: [isize; RANK]) -> Self {
        assert!(
            dtype == DType::F32 || dtype == E::DTYPE,
            "checked with the call"
        );
        Coordinates {
            is_f32: dtype == DType::F32,
            raw: Raw { first, strides },
            other: PhantomData,
        }
    }

    pub fn strides(&self) -> [isize; RANK] {
        self.raw.strides
    }

    /// Whether to read f32. A compile-time constant where `E` is f32, so that its code is not generated twice.
    #[inline(always)]
    fn is_f32(&self) -> bool {
        matches!(E::DTYPE, DType::F32) || self.is_f32
    }

    /// Offset, in elements, of the entries of one (image, query, head).
    #[inline(always)]
    pub fn row(&self, row: [usize; 3]) -> isize {
        let mut offset = 0isize;
        for axis in 0..3 {
            // Wrapping, because the row may lie outside the tensor.
            offset = offset.wrapping_add((row[axis] as isize).wrapping_mul(self.raw.strides[axis]));
        }
        offset
    }

    #[inline(always)]
    pub fn prefetch(&self, row: [usize; 3], place: isize, count: usize) {
        let bytes = match self.is_f32() {
            true => size_of::<f32>(),
            false => size_of::<E>(),
        };
        let offset = self
            .row(row)
            .wrapping_add(place)
            .wrapping_mul(bytes as isize);
        prefetch(self.raw.first.wrapping_offset(offset), count * bytes);
    }

    /// The `WIDTH` numbers of each of `count` samples, one block per number. Samples come in runs of `run`, each
    /// contiguous from the place of its first.
    ///
    /// # Safety
    /// The samples lie in the tensor; `run` is 2, 4 or 8 and divides `count`, or is at least `count`.
    #[inline(always)]
    pub unsafe fn read_runs<R: Real, const WIDTH: usize>(
        &self,
        row: isize,
        places: &Block<isize>,
        run: usize,
        count: usize,
    ) -> [Block<R>; WIDTH] {
        // SAFETY: as the caller promises.
        unsafe {
            match self.is_f32() {
                true => read_runs::<f32, R, WIDTH>(self.at(row), places, run, count),
                false => read_runs::<E, R, WIDTH>(self.at(row), places, run, count),
            }
        }
    }

    /// # Safety
    /// The offset lies in the tensor, whose type is `T`.
    #[inline(always)]
    unsafe fn at<T>(&self, offset: isize) -> *mut T {
        // SAFETY: as the caller promises.
        unsafe { self.raw.first.cast::<T>().offset(offset) }
    }

    /// The number at an offset in elements.
    ///
    /// # Safety
    /// It lies in the tensor.
    #[inline(always)]
    pub unsafe fn get<R: Real>(&self, offset: isize) -> R {
        // SAFETY: as the caller promises.
        unsafe {
            match self.is_f32() {
                true => R::from_f64((*self.at::<f32>(offset)).to_f64()),
                false => R::from_f64((*self.at::<E>(offset)).to_f64()),
            }
        }
    }

    /// Writes a number at an offset in elements, rounded to the tensor's type.
    ///
    /// # Safety
    /// It lies in the tensor and nothing else uses it.
    pub unsafe fn set(&self, offset: isize, number: f64) {
        // SAFETY: as the caller promises.
        unsafe {
            match self.is_f32() {
                true => *self.at::<f32>(offset) = Element::from_f64(number),
                false => *self.at::<E>(offset) = Element::from_f64(number),
            }
        }
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
            match self.is_f32() {
                true => gather::<f32, R>(self.at(row), places, count),
                false => gather::<E, R>(self.at(row), places, count),
            }
        }
    }

    /// Writes the first `count` of `numbers` to `row + places`, rounded to the tensor's type.
    ///
    /// # Safety
    /// The places lie in the tensor and nothing else uses them.
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
            match self.is_f32() {
                true => scatter::<f32, R>(self.at(row), places, count, numbers),
                false => scatter::<E, R>(self.at(row), places, count, numbers),
            }
        }
    }
}

/// # Safety
/// As for [`Coordinates::read_runs`].
#[inline(always)]
unsafe fn read_runs<E: Element, R: Real, const WIDTH: usize>(
    row: *const E,
    places: &Block<isize>,
    run: usize,
    count: usize,
) -> [Block<R>; WIDTH] {
    // SAFETY: as the caller promises. Copies of fixed size become a few loads.
    unsafe {
        if run == BLOCK && count == BLOCK {
            // Most blocks are whole: from memory to registers, not by way of the stack.
            return deal(&row.offset(places[0]).cast::<[[E; WIDTH]; BLOCK]>().read());
        }
        let mut samples = [[E::default(); WIDTH]; BLOCK];
        match run {
            _ if run >= count => {
                let first = row.offset(places[0]);
                first.copy_to_nonoverlapping(samples.as_mut_ptr().cast(), count * WIDTH);
            }
            8 => copy_each::<E, WIDTH, 8>(row, places, count, &mut samples),
            4 => copy_each::<E, WIDTH, 4>(row, places, count, &mut samples),
            _ => copy_each::<E, WIDTH, 2>(row, places, count, &mut samples),
        }
        deal(&samples)
    }
}

/// # Safety
/// The samples lie in runs of `RUN`, which divides `count`.
#[inline(always)]
unsafe fn copy_each<E: Element, const WIDTH: usize, const RUN: usize>(
    row: *const E,
    places: &Block<isize>,
    count: usize,
    samples: &mut [[E; WIDTH]; BLOCK],
) {
    let runs = samples.as_chunks_mut::<RUN>().0;
    for (run, samples) in runs.iter_mut().enumerate().take(count / RUN) {
        // SAFETY: a run lies in the tensor without gaps, as the caller promises.
        *samples = unsafe {
            row.offset(places[run * RUN])
                .cast::<[[E; WIDTH]; RUN]>()
                .read()
        };
    }
}

// Every type goes through f64, which is exact; f32 there and back compiles to nothing.

/// The first number of each sample to the first block, and so on.
#[inline(always)]
fn deal<E: Element, R: Real, const WIDTH: usize>(
    samples: &[[E; WIDTH]; BLOCK],
) -> [Block<R>; WIDTH] {
    let mut numbers = [[R::ZERO; BLOCK]; WIDTH];
    for (i, sample) in samples.iter().enumerate() {
        for (number, element) in numbers.iter_mut().zip(sample) {
            number[i] = R::from_f64(element.to_f64());
        }
    }
    numbers
}

#[inline(always)]
unsafe fn gather<E: Element, R: Real>(
    row: *const E,
    places: &Block<isize>,
    count: usize,
) -> Block<R> {
    let mut numbers = [R::ZERO; BLOCK];
    for (number, &place) in numbers.iter_mut().zip(places).take(count) {
        // SAFETY: the place lies in the tensor, as the caller promises.
        *number = R::from_f64(unsafe { *row.offset(place) }.to_f64());
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
