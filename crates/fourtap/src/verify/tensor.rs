//! Tensors that own their memory, in any layout, with guard memory around it.

use crate::dtype::{DType, Element, bf16, f16};
use crate::layout::Layout;
use crate::shape::Shape;
use crate::tensor::{View, ViewMut};

/// How a tensor's elements are laid out in its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Axes from the slowest to the fastest.
    pub order: Vec<usize>,
    /// Unused elements after each index of an axis, by axis.
    pub gaps: Vec<usize>,
    /// Axes with a negative stride.
    pub reversed: Vec<bool>,
    /// Axes with a stride of 0.
    pub broadcast: Vec<bool>,
    /// Unused elements before the first and after the last.
    pub guard: usize,
}

impl Storage {
    /// Row-major without gaps or guards.
    pub fn dense(rank: usize) -> Self {
        Storage {
            order: (0..rank).collect(),
            gaps: vec![0; rank],
            reversed: vec![false; rank],
            broadcast: vec![false; rank],
            guard: 0,
        }
    }
}

/// A tensor that owns its memory. Elements that belong to no index hold NaN.
#[derive(Clone, Debug)]
pub struct Tensor {
    data: Data,
    offset: usize,
    dense: bool,
    layout: Layout,
}

#[derive(Clone, Debug)]
enum Data {
    F16(Vec<f16>),
    BF16(Vec<bf16>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

macro_rules! with_data {
    ($data:expr, $vec:ident => $body:expr) => {
        match $data {
            Data::F16($vec) => $body,
            Data::BF16($vec) => $body,
            Data::F32($vec) => $body,
            Data::F64($vec) => $body,
        }
    };
}

impl Tensor {
    /// A tensor of NaN.
    pub fn poisoned(dtype: DType, shape: &[usize], storage: &Storage) -> Self {
        let mut strides = vec![0isize; shape.len()];
        let (mut length, mut offset) = (1usize, storage.guard);
        for &axis in storage.order.iter().rev() {
            if storage.broadcast[axis] {
                continue;
            }
            let stride = length
                + if length == 1 {
                    storage.gaps[axis].min(1)
                } else {
                    storage.gaps[axis]
                };
            strides[axis] = stride as isize;
            length = stride * shape[axis].max(1);
            if storage.reversed[axis] && shape[axis] > 0 {
                offset += stride * (shape[axis] - 1);
                strides[axis] = -strides[axis];
            }
        }
        let dense = *storage == Storage::dense(shape.len());
        let empty = shape.contains(&0);
        let length = if dense && empty {
            0
        } else {
            length + 2 * storage.guard
        };
        let data = match dtype {
            DType::F16 => Data::F16(vec![f16::NAN; length]),
            DType::BF16 => Data::BF16(vec![bf16::NAN; length]),
            DType::F32 => Data::F32(vec![f32::NAN; length]),
            DType::F64 => Data::F64(vec![f64::NAN; length]),
        };
        Tensor {
            data,
            offset,
            dense,
            layout: Layout::strided(dtype, shape, &strides),
        }
    }

    /// A tensor of the numbers `next` gives, in row-major order, rounded to `dtype`. On a broadcast axis the last
    /// number counts.
    pub fn from_fn(
        dtype: DType,
        shape: &[usize],
        storage: &Storage,
        mut next: impl FnMut() -> f64,
    ) -> Self {
        let mut tensor = Tensor::poisoned(dtype, shape, storage);
        for place in places(&tensor.layout, tensor.offset) {
            let number = next();
            with_data!(&mut tensor.data, data => data[place] = Element::from_f64(number));
        }
        tensor
    }

    /// A row-major tensor over `data`.
    pub fn dense<T: Element>(data: Vec<T>, shape: &[usize]) -> Self {
        let mut tensor = Tensor::poisoned(T::DTYPE, shape, &Storage::dense(shape.len()));
        assert_eq!(
            tensor.len(),
            data.len(),
            "as many elements as the shape {:?} has",
            tensor.shape()
        );
        with_data!(&mut tensor.data, own => {
            for (own, number) in own.iter_mut().zip(data) {
                *own = Element::from_f64(number.to_f64());
            }
        });
        tensor
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.layout.shape()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape().elements().unwrap_or(0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// To read.
    pub fn view(&self) -> View<'_> {
        let (sizes, strides) = (self.shape(), self.layout.strides());
        with_data!(&self.data, data => match self.dense {
            true => View::new(data, sizes.sizes()),
            false => View::strided(data, self.offset, sizes.sizes(), strides),
        })
    }

    /// Some of its elements, the first of them `first` elements after its own.
    pub(super) fn part(&self, first: usize, layout: Layout) -> View<'_> {
        let (sizes, strides) = (layout.shape(), layout.strides());
        let first = self.offset + first;
        with_data!(&self.data, data => View::strided(data, first, sizes.sizes(), strides))
    }

    /// To write.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let (sizes, strides) = (self.shape(), self.layout.strides());
        with_data!(&mut self.data, data => match self.dense {
            true => ViewMut::new(data, sizes.sizes()),
            false => ViewMut::strided(data, self.offset, sizes.sizes(), strides),
        })
    }

    /// The memory as bytes, guards included.
    #[cfg(feature = "cuda")]
    pub(super) fn memory(&self) -> &[u8] {
        // SAFETY: numbers without padding or invalid bits, looked at as bytes.
        with_data!(&self.data, data => unsafe {
            std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data.as_slice()))
        })
    }

    /// The same, to write.
    #[cfg(feature = "cuda")]
    pub(super) fn memory_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `memory`; any bytes are legal numbers.
        with_data!(&mut self.data, data => unsafe {
            std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data.as_slice()))
        })
    }

    /// Bytes from the start of the memory to the first element.
    #[cfg(feature = "cuda")]
    pub(super) fn first_byte(&self) -> usize {
        self.offset * self.dtype().size()
    }

    /// How many elements of its memory lie before the first.
    pub(super) fn first_element(&self) -> usize {
        self.offset
    }

    /// Where the elements lie.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// All elements in row-major order, exactly.
    pub fn to_f64(&self) -> Vec<f64> {
        let places = places(&self.layout, self.offset);
        with_data!(&self.data, data => places.map(|place| data[place].to_f64()).collect())
    }

    /// The bits of every element in memory, guards included.
    pub fn bits(&self) -> Vec<u64> {
        match &self.data {
            Data::F16(data) => data.iter().map(|x| x.to_bits() as u64).collect(),
            Data::BF16(data) => data.iter().map(|x| x.to_bits() as u64).collect(),
            Data::F32(data) => data.iter().map(|x| x.to_bits() as u64).collect(),
            Data::F64(data) => data.iter().map(|x| x.to_bits()).collect(),
        }
    }

    /// How many elements that belong to no index are not the NaN they were made with.
    pub fn damaged_guards(&self) -> usize {
        let mut bits = self.bits();
        let poison = Tensor::poisoned(self.dtype(), &[1], &Storage::dense(1)).bits()[0];
        for place in places(&self.layout, self.offset) {
            bits[place] = poison;
        }
        bits.iter().filter(|&&bits| bits != poison).count()
    }
}

/// Where each element lies, in row-major order.
fn places(layout: &Layout, offset: usize) -> impl Iterator<Item = usize> + use<> {
    let layout = *layout;
    let count = layout.shape().elements().unwrap_or(0);
    (0..count).map(move |mut index| {
        let mut place = offset as isize;
        for (&size, &stride) in layout.shape().sizes().iter().zip(layout.strides()).rev() {
            place += (index % size) as isize * stride;
            index /= size;
        }
        place as usize
    })
}
