//! Tensors of candle as views of the library, and results as tensors of candle.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Device, Error, Layout, Result, Storage, StorageRef, Tensor};
use fourtap::{View, ViewMut, bf16, f16};

/// A refusal of the library, in its words.
pub fn refused(error: fourtap::Error) -> Error {
    Error::wrap(error)
}

/// A tensor as candle stores it, with its offset and strides; `name` is for errors.
pub fn view<'a>(name: &'static str, storage: &'a CpuStorage, layout: &Layout) -> Result<View<'a>> {
    let (offset, shape) = (layout.start_offset(), layout.dims());
    // candle's strides are never negative, and no allocation is so large that one would become so.
    let strides: Vec<_> = layout.stride().iter().map(|&step| step as isize).collect();
    match storage {
        CpuStorage::F16(data) => Ok(View::strided(data, offset, shape, &strides)),
        CpuStorage::BF16(data) => Ok(View::strided(data, offset, shape, &strides)),
        CpuStorage::F32(data) => Ok(View::strided(data, offset, shape, &strides)),
        CpuStorage::F64(data) => Ok(View::strided(data, offset, shape, &strides)),
        other => Err(unsupported(name, other.dtype())),
    }
}

fn unsupported(name: &'static str, found: DType) -> Error {
    refused(fourtap::Error::Argument {
        argument: name,
        expected: "element type f16, bf16, f32 or f64".to_string(),
        found: found.as_str().to_string(),
    })
}

/// A tensor whose storage is locked for reading.
pub struct Locked<'a> {
    name: &'static str,
    storage: StorageRef<'a>,
    layout: &'a Layout,
}

impl<'a> Locked<'a> {
    /// `name` is for errors.
    pub fn new(name: &'static str, tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Locked {
            name,
            storage,
            layout,
        }
    }

    /// The tensor, which must be in host memory.
    pub fn view(&self) -> Result<View<'_>> {
        match &*self.storage {
            Storage::Cpu(storage) => view(self.name, storage, self.layout),
            _ => Err(refused(fourtap::Error::Argument {
                argument: self.name,
                expected: "a tensor on the CPU".to_string(),
                found: "one on another device".to_string(),
            })),
        }
    }
}

/// Memory for a result: contiguous, and zero until it is written.
pub struct Output {
    storage: CpuStorage,
    shape: Vec<usize>,
}

impl Output {
    /// Of a type that the library computes.
    pub fn new(dtype: fourtap::DType, shape: &[usize]) -> Self {
        let count = shape.iter().product();
        let storage = match dtype {
            fourtap::DType::F16 => CpuStorage::F16(vec![f16::ZERO; count]),
            fourtap::DType::BF16 => CpuStorage::BF16(vec![bf16::ZERO; count]),
            fourtap::DType::F32 => CpuStorage::F32(vec![0.0; count]),
            fourtap::DType::F64 => CpuStorage::F64(vec![0.0; count]),
        };
        Output {
            storage,
            shape: shape.to_vec(),
        }
    }

    /// Of the shape and type of a tensor, if gradients flow to that one.
    pub fn gradient_of(tensor: &Tensor, view: &View<'_>) -> Option<Self> {
        let shape = view.shape();
        tensor
            .track_op()
            .then(|| Output::new(view.dtype(), shape.sizes()))
    }

    /// To be written.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        match &mut self.storage {
            CpuStorage::F16(data) => ViewMut::new(data, &self.shape),
            CpuStorage::BF16(data) => ViewMut::new(data, &self.shape),
            CpuStorage::F32(data) => ViewMut::new(data, &self.shape),
            CpuStorage::F64(data) => ViewMut::new(data, &self.shape),
            _ => unreachable!("`new` makes no other"),
        }
    }

    /// To be read.
    pub fn view(&self) -> View<'_> {
        match &self.storage {
            CpuStorage::F16(data) => View::new(data, &self.shape),
            CpuStorage::BF16(data) => View::new(data, &self.shape),
            CpuStorage::F32(data) => View::new(data, &self.shape),
            CpuStorage::F64(data) => View::new(data, &self.shape),
            _ => unreachable!("`new` makes no other"),
        }
    }

    /// What an operator returns to candle.
    pub fn into_storage(self) -> (CpuStorage, candle_core::Shape) {
        (self.storage, self.shape.into())
    }

    /// A tensor of its own, which no gradient flows to.
    pub fn into_tensor(self) -> Result<Tensor> {
        let shape = self.shape;
        match self.storage {
            CpuStorage::F16(data) => Tensor::from_vec(data, shape, &Device::Cpu),
            CpuStorage::BF16(data) => Tensor::from_vec(data, shape, &Device::Cpu),
            CpuStorage::F32(data) => Tensor::from_vec(data, shape, &Device::Cpu),
            CpuStorage::F64(data) => Tensor::from_vec(data, shape, &Device::Cpu),
            _ => unreachable!("`new` makes no other"),
        }
    }
}

/// The three gradients of an operator with three inputs.
pub type ThreeGradients = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

/// The gradients that were asked for as tensors.
pub fn into_tensors(gradients: [Option<Output>; 3]) -> Result<ThreeGradients> {
    let [first, second, third] = gradients.map(|one| one.map(Output::into_tensor).transpose());
    Ok((first?, second?, third?))
}
