//! Tensors made for a test, on the device.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, Plain};
use fourtap::msda::{Inputs, LevelTable, Sizes};
use fourtap::{DType, Element, Layout, View, ViewMut};

/// A row-major tensor in device memory.
pub struct OnDevice {
    pub buffer: Buffer,
    layout: Layout,
    ordinal: usize,
}

impl OnDevice {
    pub fn new<T: Element + Plain>(cuda: &Cuda, numbers: &[T], shape: &[usize]) -> Self {
        OnDevice {
            buffer: Buffer::from_slice(cuda.context(), numbers).unwrap(),
            layout: Layout::contiguous(T::DTYPE, shape),
            ordinal: cuda.ordinal(),
        }
    }

    /// NaN everywhere.
    pub fn poisoned(cuda: &Cuda, dtype: DType, shape: &[usize]) -> Self {
        let elements: usize = shape.iter().product();
        let mut buffer = Buffer::alloc(cuda.context(), elements * dtype.size()).unwrap();
        buffer.fill(0xff, cuda.stream()).unwrap();
        OnDevice {
            buffer,
            layout: Layout::contiguous(dtype, shape),
            ordinal: cuda.ordinal(),
        }
    }

    pub fn view(&self) -> View<'_> {
        // SAFETY: the buffer was made for this many elements and outlives the view.
        unsafe { View::on_cuda(self.ordinal, self.buffer.as_ptr(), self.layout) }
    }

    pub fn view_mut(&mut self) -> ViewMut<'_> {
        // SAFETY: as in `view`, and borrowed mutably.
        unsafe { ViewMut::on_cuda(self.ordinal, self.buffer.as_ptr(), self.layout) }
    }
}

/// Numbers from 0 to 1 that look random, by a formula (splitmix64's), so that millions of them take no time to make.
pub fn numbers(count: usize, salt: u64) -> impl Iterator<Item = f64> {
    (0..count as u64).map(move |i| {
        let mut mixed = ((salt << 40) + i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 40) as f64 / (1u64 << 24) as f64
    })
}

/// The inputs of a problem of f32 coordinates.
pub struct Problem {
    pub sizes: Sizes,
    pub value: OnDevice,
    pub locations: OnDevice,
    pub weights: OnDevice,
}

impl Problem {
    pub fn new<T: Element + Plain>(cuda: &Cuda, sizes: Sizes) -> Self {
        let count = |shape: &[usize]| shape.iter().product::<usize>();
        let value: Vec<T> = numbers(count(&sizes.value()), 1)
            .map(|x| T::from_f64(2.0 * x - 1.0))
            .collect();
        let locations: Vec<f32> = numbers(count(&sizes.sampling_locations()), 2)
            .map(|x| (1.2 * x - 0.1) as f32)
            .collect();
        let weights: Vec<f32> = numbers(count(&sizes.attention_weights()), 3)
            .map(|x| x as f32)
            .collect();
        Problem {
            sizes,
            value: OnDevice::new(cuda, &value, &sizes.value()),
            locations: OnDevice::new(cuda, &locations, &sizes.sampling_locations()),
            weights: OnDevice::new(cuda, &weights, &sizes.attention_weights()),
        }
    }

    pub fn inputs<'a>(&'a self, levels: impl Into<LevelTable<'a>>) -> Inputs<'a> {
        Inputs {
            value: self.value.view(),
            levels: levels.into(),
            sampling_locations: self.locations.view(),
            attention_weights: self.weights.view(),
        }
    }
}
