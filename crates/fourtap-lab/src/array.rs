//! Owned tensors in host memory.

use fourtap::{BoolView, DType, Element, Layout, Place, Shape, View, ViewMut, bf16, f16};
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::machine;

#[cfg(target_endian = "big")]
compile_error!("safetensors holds little-endian numbers, which are used as they lie");

/// A row-major tensor of any element type.
#[derive(Debug)]
pub struct Array {
    dtype: DType,
    shape: Shape,
    /// Whole cache lines, as frameworks allocate them: a vector that crosses lines takes up to twice as long to
    /// read. The last may be filled in part.
    lines: Vec<Line>,
}

/// The elements of a row-major tensor in host memory, as they lie there.
pub fn bytes_of<'a>(view: &View<'a>) -> Option<&'a [u8]> {
    let layout = view.layout();
    if view.place() != Place::Host || !layout.is_contiguous() {
        return None;
    }
    let length = layout.shape().elements().unwrap_or(0) * layout.dtype().size();
    if length == 0 || view.as_ptr().is_null() {
        return Some(&[]);
    }
    // SAFETY: a row-major tensor in host memory is this many initialised bytes, borrowed as long as the view.
    Some(unsafe { std::slice::from_raw_parts(view.as_ptr(), length) })
}

/// The booleans of a row-major mask in host memory, a byte each.
pub fn bytes_of_mask<'a>(view: &BoolView<'a>) -> Option<&'a [u8]> {
    let shape = view.shape();
    let length = shape.elements().unwrap_or(0);
    let mut step = length as isize;
    let is_row_major = shape
        .sizes()
        .iter()
        .zip(view.strides())
        .all(|(&size, &stride)| {
            step /= size.max(1) as isize;
            stride == step || size <= 1
        });
    if view.place() != Place::Host || !is_row_major && length > 0 {
        return None;
    }
    if length == 0 || view.as_ptr().is_null() {
        return Some(&[]);
    }
    // SAFETY: a row-major mask in host memory is this many initialised bytes, borrowed as long as the view.
    Some(unsafe { std::slice::from_raw_parts(view.as_ptr(), length) })
}

/// Every array begins at a multiple of this many bytes.
pub const ALIGNMENT: usize = align_of::<Line>();

/// A cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Array {
    /// A tensor of NaN, or an error if memory is not enough.
    pub fn poisoned(tensor: &str, dtype: DType, shape: &[usize]) -> Result<Self> {
        let shape = Shape::new(shape);
        let overflow = || Error::Memory {
            what: format!("{tensor} {shape}"),
            needed: u64::MAX,
            available: None,
        };
        let bytes = shape
            .elements()
            .and_then(|elements| elements.checked_mul(dtype.size()))
            .ok_or_else(overflow)?;
        let failed = |available| Error::Memory {
            what: format!("{tensor} {shape} {dtype}"),
            needed: bytes as u64,
            available,
        };
        // Systems that promise more memory than they have end the process when it is used, so ask beforehand.
        if let Some(available) =
            machine::memory_available().filter(|&available| (bytes as u64) > available)
        {
            return Err(failed(Some(available)));
        }
        let mut lines = Vec::new();
        lines
            .try_reserve_exact(bytes.div_ceil(size_of::<Line>()))
            .map_err(|_| failed(None))?;
        lines.resize(bytes.div_ceil(size_of::<Line>()), POISON);
        Ok(Array {
            dtype,
            shape,
            lines,
        })
    }

    /// A copy of `bytes`, which must be as many as the shape has.
    pub fn copied(tensor: &str, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Self> {
        let mut array = Array::poisoned(tensor, dtype, shape)?;
        for (line, bytes) in array.lines.iter_mut().zip(bytes.chunks(size_of::<Line>())) {
            line.0[..bytes.len()].copy_from_slice(bytes);
        }
        Ok(array)
    }

    /// A copy of a tensor in host memory; none if it has gaps or another order than row-major.
    pub fn of(tensor: &str, view: &View<'_>) -> Result<Option<Self>> {
        let shape = view.shape();
        let copy = |bytes| Array::copied(tensor, view.dtype(), shape.sizes(), bytes);
        bytes_of(view).map(copy).transpose()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of elements.
    pub fn element_count(&self) -> usize {
        self.shape.elements().unwrap_or(0)
    }

    /// The elements as they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the lines were allocated for this many bytes, all initialised; any bytes are legal as u8.
        unsafe {
            std::slice::from_raw_parts(
                self.lines.as_ptr().cast(),
                self.element_count() * self.dtype.size(),
            )
        }
    }

    /// The elements as they lie in memory, to write: any bytes are some number.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.element_count() * self.dtype.size();
        // SAFETY: as in `bytes`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), length) }
    }

    /// The elements.
    ///
    /// # Panics
    /// If `T` is not the element type.
    pub fn elements<T: Element>(&self) -> &[T] {
        assert_eq!(T::DTYPE, self.dtype, "elements of the array's own type");
        // SAFETY: the lines were allocated for this many elements, are aligned for each of the four types and
        // initialised; any bits are legal in them.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.element_count()) }
    }

    /// The elements, to write.
    ///
    /// # Panics
    /// If `T` is not the element type.
    pub fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        assert_eq!(T::DTYPE, self.dtype, "elements of the array's own type");
        // SAFETY: as in `elements`, and borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.element_count())
        }
    }

    /// To read.
    pub fn view(&self) -> View<'_> {
        // SAFETY: the lines hold every element of the contiguous layout, and are borrowed as long as the view.
        unsafe { View::from_raw(self.lines.as_ptr().cast(), self.layout()) }
    }

    /// To write.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        // SAFETY: as in `view`, and borrowed mutably.
        unsafe { ViewMut::from_raw(self.lines.as_mut_ptr().cast(), self.layout()) }
    }

    /// Some element that is NaN.
    pub fn find_nan(&self) -> Option<usize> {
        fn search<T: Element>(elements: &[T]) -> Option<usize> {
            elements
                .par_iter()
                .position_any(|element| element.to_f64().is_nan())
        }
        match self.dtype {
            DType::F16 => search::<f16>(self.elements()),
            DType::BF16 => search::<bf16>(self.elements()),
            DType::F32 => search::<f32>(self.elements()),
            DType::F64 => search::<f64>(self.elements()),
        }
    }

    /// `count` elements from `first` on, exactly.
    pub fn to_f64(&self, first: usize, count: usize) -> Vec<f64> {
        fn widen<T: Element>(elements: &[T]) -> Vec<f64> {
            elements.iter().map(|element| element.to_f64()).collect()
        }
        let range = first..first + count;
        match self.dtype {
            DType::F16 => widen(&self.elements::<f16>()[range]),
            DType::BF16 => widen(&self.elements::<bf16>()[range]),
            DType::F32 => widen(&self.elements::<f32>()[range]),
            DType::F64 => widen(&self.elements::<f64>()[range]),
        }
    }

    /// The same numbers in another type, rounded to nearest.
    pub fn rounded(&self, tensor: &str, dtype: DType) -> Result<Self> {
        fn fill<T: Element>(source: &Array, target: &mut Array) {
            let chunks = target.elements_mut::<T>().par_chunks_mut(ROUNDED_TOGETHER);
            chunks.enumerate().for_each(|(chunk, elements)| {
                let numbers = source.to_f64(chunk * ROUNDED_TOGETHER, elements.len());
                for (element, number) in elements.iter_mut().zip(numbers) {
                    *element = T::from_f64(number);
                }
            });
        }
        let mut rounded = Array::poisoned(tensor, dtype, self.shape.sizes())?;
        match dtype {
            DType::F16 => fill::<f16>(self, &mut rounded),
            DType::BF16 => fill::<bf16>(self, &mut rounded),
            DType::F32 => fill::<f32>(self, &mut rounded),
            DType::F64 => fill::<f64>(self, &mut rounded),
        }
        Ok(rounded)
    }

    fn layout(&self) -> Layout {
        Layout::contiguous(self.dtype, self.shape.sizes())
    }
}

/// Elements a thread rounds at a time.
const ROUNDED_TOGETHER: usize = 1 << 14;

/// All bits set are NaN in every element type.
const POISON: Line = Line([u8::MAX; 64]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_is_nan_in_every_type() {
        for dtype in DType::ALL {
            let array = Array::poisoned("out", dtype, &[3]).unwrap();
            assert!(
                array.to_f64(0, 3).iter().all(|element| element.is_nan()),
                "{dtype}"
            );
        }
    }

    #[test]
    fn copies_bytes_that_fill_no_whole_line() {
        let numbers = [1.5f32, -2.0, 3.25];
        let bytes: Vec<u8> = numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let array = Array::copied("value", DType::F32, &[3], &bytes).unwrap();
        assert_eq!(array.elements::<f32>(), numbers);
        assert_eq!(array.bytes(), bytes);
    }

    #[test]
    fn rounds_to_nearest_in_the_other_type() {
        let mut array = Array::poisoned("weights", DType::F32, &[3]).unwrap();
        array.elements_mut().copy_from_slice(&[1.0f32, 0.1, 1e-9]);
        let half = array.rounded("weights", DType::F16).unwrap();
        let expected = [1.0, 0.1, 1e-9].map(f16::from_f32);
        assert_eq!(half.elements::<f16>(), expected);
        let wide = array.rounded("weights", DType::F64).unwrap();
        assert_eq!(wide.elements::<f64>()[1], f64::from(0.1f32));
    }

    #[test]
    fn refuses_more_memory_than_there_is() {
        for shape in [&[1 << 50][..], &[usize::MAX, 3], &[1 << 62, 1]] {
            let error = Array::poisoned("out", DType::F32, shape).unwrap_err();
            assert!(matches!(error, Error::Memory { .. }), "{error}");
        }
    }
}
