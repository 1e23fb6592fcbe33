//! Descriptors of random problems as callers make them: strides left out or without a meaning, integers that are not aligned, no memory for
//! what has no elements.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{null, null_mut};

use fourtap::dense::AttnMask;
use fourtap::msda::Levels;
use fourtap::{BoolView, Layout, View, ViewMut};
use fourtap_c::{DType, Device, Tensor};
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

/// Strides that mean nothing, where an axis has one element or a tensor none. NumPy has had the largest there.
const MEANINGLESS: [i64; 7] = [0, 1, -1, 7, -1_000_003, i64::MAX, i64::MIN];

/// Makes descriptors, differently for each seed.
pub struct Describer {
    rng: Xoshiro256PlusPlus,
}

/// A descriptor together with the numbers it points to.
pub struct Descriptor<'a> {
    tensor: Tensor,
    _numbers: Vec<Integers>,
    memory: PhantomData<&'a mut [u8]>,
}

impl Descriptor<'_> {
    pub fn pointer(&self) -> *const Tensor {
        &raw const self.tensor
    }
}

/// The descriptor, or NULL.
pub fn pointer(descriptor: &Option<Descriptor<'_>>) -> *const Tensor {
    descriptor.as_ref().map_or(null(), Descriptor::pointer)
}

/// Integers at any address.
struct Integers {
    bytes: Vec<u8>,
    first: usize,
}

impl Integers {
    fn as_ptr(&self) -> *const u8 {
        self.bytes[self.first..].as_ptr()
    }
}

impl Describer {
    pub fn new(seed: u64) -> Self {
        Describer {
            rng: Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_add(5 << 32)),
        }
    }

    /// One time in `times`.
    pub fn one_in(&mut self, times: u32) -> bool {
        self.rng.random_ratio(1, times)
    }

    /// A tensor to read.
    pub fn view<'a>(&mut self, view: &View<'a>) -> Descriptor<'a> {
        let layout = view.layout();
        self.tensor(
            dtype(layout.dtype()),
            view.as_ptr(),
            layout.shape().sizes(),
            layout.strides(),
        )
    }

    /// A tensor to write.
    pub fn view_mut<'a>(&mut self, view: &ViewMut<'a>) -> Descriptor<'a> {
        let layout = view.layout();
        self.tensor(
            dtype(layout.dtype()),
            view.as_mut_ptr(),
            layout.shape().sizes(),
            layout.strides(),
        )
    }

    /// A gradient, if it is asked for.
    pub fn optional<'a>(&mut self, view: &Option<ViewMut<'a>>) -> Option<Descriptor<'a>> {
        view.as_ref().map(|view| self.view_mut(view))
    }

    /// A mask.
    pub fn bool_view<'a>(&mut self, view: &BoolView<'a>) -> Descriptor<'a> {
        let shape = view.shape();
        self.tensor(DType::Bool, view.as_ptr(), shape.sizes(), view.strides())
    }

    /// A mask or a bias.
    pub fn attn_mask<'a>(&mut self, mask: &AttnMask<'a>) -> Descriptor<'a> {
        match mask {
            AttnMask::Seen(seen) => self.bool_view(seen),
            AttnMask::Bias(bias) => self.view(bias),
        }
    }

    /// `spatial_shapes` and `level_start_index`; the second is left out now and then, where it says nothing new.
    pub fn levels(&mut self, levels: &Levels) -> [Option<Descriptor<'static>>; 2] {
        let sizes: Vec<i64> = levels
            .iter()
            .flat_map(|level| [level.height as i64, level.width as i64])
            .collect();
        let starts: Vec<i64> = levels.iter().map(|level| level.start as i64).collect();
        let is_packed = Levels::from_i64(&sizes, None).as_ref() == Ok(levels);
        let count = levels.len();
        let sizes = self.numbers(&sizes, &[count, 2]);
        let starts = match is_packed && self.one_in(2) {
            true => None,
            false => Some(self.numbers(&starts, &[count])),
        };
        [Some(sizes), starts]
    }

    /// Integers in host memory, of either type.
    fn numbers(&mut self, numbers: &[i64], sizes: &[usize]) -> Descriptor<'static> {
        let (dtype, integers) = match self.one_in(2) {
            true => (DType::I64, self.integers(numbers)),
            false => {
                let narrow: Vec<_> = numbers.iter().map(|&number| number as i32).collect();
                let bytes = narrow.iter().flat_map(|number| number.to_ne_bytes());
                (DType::I32, self.at_any_address(bytes.collect()))
            }
        };
        let strides = Layout::contiguous(fourtap::DType::F32, sizes);
        let first = integers.as_ptr();
        let mut descriptor = self.tensor(dtype, first, sizes, strides.strides());
        descriptor._numbers.push(integers);
        descriptor
    }

    fn tensor<'a>(
        &mut self,
        dtype: DType,
        first: *const u8,
        sizes: &[usize],
        strides: &[isize],
    ) -> Descriptor<'a> {
        let is_empty = sizes.contains(&0);
        let layout = Layout::strided(fourtap::DType::F32, sizes, strides);
        let leaves_strides_out = layout.is_contiguous() && self.one_in(2);
        let spoils = self.one_in(2);
        let stride = |(&size, &stride): (&usize, &isize)| match spoils && (size <= 1 || is_empty) {
            true => *MEANINGLESS.choose(&mut self.rng).expect("some"),
            false => stride as i64,
        };
        let strides: Vec<i64> = sizes.iter().zip(strides).map(stride).collect();
        let sizes: Vec<i64> = sizes.iter().map(|&size| size as i64).collect();
        let data = match is_empty && self.one_in(2) {
            true => null_mut(),
            false => first.cast_mut().cast::<c_void>(),
        };
        let (shape, steps) = (self.integers(&sizes), self.integers(&strides));
        Descriptor {
            tensor: Tensor {
                struct_size: size_of::<Tensor>() as u32,
                dtype: dtype as u32,
                device: Device::Cpu as u32,
                // Ignored for the host.
                device_index: self.rng.random_range(-1..9),
                rank: sizes.len() as u32,
                data,
                shape: shape.as_ptr().cast(),
                strides: match leaves_strides_out {
                    true => null(),
                    false => steps.as_ptr().cast(),
                },
            },
            _numbers: vec![shape, steps],
            memory: PhantomData,
        }
    }

    fn integers(&mut self, numbers: &[i64]) -> Integers {
        let bytes = numbers.iter().flat_map(|number| number.to_ne_bytes());
        self.at_any_address(bytes.collect())
    }

    fn at_any_address(&mut self, mut bytes: Vec<u8>) -> Integers {
        let first = self.rng.random_range(0..8);
        bytes.splice(..0, vec![0xff; first]);
        Integers { bytes, first }
    }
}

fn dtype(dtype: fourtap::DType) -> DType {
    match dtype {
        fourtap::DType::F16 => DType::F16,
        fourtap::DType::BF16 => DType::BF16,
        fourtap::DType::F32 => DType::F32,
        fourtap::DType::F64 => DType::F64,
    }
}
