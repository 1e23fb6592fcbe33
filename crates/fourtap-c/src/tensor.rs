//! Tensors as C describes them, and as the library does.

use std::ffi::c_void;

use fourtap::{BoolView, Layout, Place, View, ViewMut};

use crate::descriptor::{self, Descriptor};
use crate::status::{Error, Result};

/// The largest number of axes of a tensor.
pub const MAX_RANK: usize = 6;
const _: () = assert!(MAX_RANK == fourtap::MAX_RANK);

/// What a tensor's elements are.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// IEEE half precision, 16 bits.
    F16 = 1,
    /// The upper half of a float, 16 bits.
    BF16 = 2,
    /// float.
    F32 = 3,
    /// double.
    F64 = 4,
    /// One byte, 0 for false: masks.
    Bool = 5,
    /// int32_t: sizes of levels in host memory.
    I32 = 6,
    /// int64_t: sizes of levels.
    I64 = 7,
}

/// Whose memory a tensor is in. The numbers are those of DLPack.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The host's.
    Cpu = 1,
    /// A CUDA device's.
    Cuda = 2,
}

/// A strided tensor in memory that the caller owns. The library keeps no pointer after a call, but on CUDA the memory must live until
/// the queued work is done.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    /// sizeof(fourtap_tensor).
    pub struct_size: u32,
    /// What the elements are, a fourtap_dtype.
    pub dtype: u32,
    /// Whose memory it is in, a fourtap_device.
    pub device: u32,
    /// Which of the CUDA devices, from 0; ignored for the host.
    pub device_index: i32,
    /// Number of axes, at most FOURTAP_MAX_RANK.
    pub rank: u32,
    /// The first element. May be NULL if the tensor has no elements.
    pub data: *mut c_void,
    /// The sizes of the axes, `rank` numbers.
    pub shape: *const i64,
    /// How many elements lie from one index of an axis to the next, `rank` numbers; may be 0 or negative. NULL for row-major elements
    /// without gaps.
    pub strides: *const i64,
}

// SAFETY: integers and pointers, all of which may be zero; there is one version.
unsafe impl Descriptor for Tensor {
    const SIZES: &'static [usize] = &[size_of::<Tensor>()];
}

/// A tensor's descriptor, its numbers checked one by one.
pub struct Described {
    pub name: &'static str,
    pub dtype: DType,
    pub place: Place,
    pub data: *mut u8,
    sizes: [usize; MAX_RANK],
    /// In elements.
    strides: Option<[isize; MAX_RANK]>,
    rank: usize,
}

/// Reads the descriptor of a tensor.
///
/// # Safety
/// The pointer is null or leads to a descriptor, whose `shape` and `strides`, unless null, lead to `rank` numbers.
pub unsafe fn describe(tensor: *const Tensor, name: &'static str) -> Result<Described> {
    // SAFETY: as the caller promises.
    let tensor = unsafe { descriptor::read(tensor, name)? };
    let field = |field: &str| format!("{name}.{field}");
    let dtype = match tensor.dtype {
        1 => DType::F16,
        2 => DType::BF16,
        3 => DType::F32,
        4 => DType::F64,
        5 => DType::Bool,
        6 => DType::I32,
        7 => DType::I64,
        other => return Err(Error::value(field("dtype"), "a fourtap_dtype", other)),
    };
    let place = match tensor.device {
        1 => Place::Host,
        2 => Place::Cuda {
            ordinal: usize::try_from(tensor.device_index).map_err(|_| {
                Error::value(field("device_index"), "0 or more", tensor.device_index)
            })?,
        },
        other => return Err(Error::value(field("device"), "a fourtap_device", other)),
    };
    let rank = tensor.rank as usize;
    if rank > MAX_RANK {
        return Err(Error::value(
            field("rank"),
            format!("at most {MAX_RANK}"),
            rank,
        ));
    }
    if tensor.shape.is_null() && rank > 0 {
        return Err(Error::value(
            field("shape"),
            format!("{rank} sizes"),
            "NULL",
        ));
    }
    let mut sizes = [0; MAX_RANK];
    let mut strides = (!tensor.strides.is_null()).then_some([0; MAX_RANK]);
    for axis in 0..rank {
        // SAFETY: there are `rank` sizes.
        let size = unsafe { tensor.shape.add(axis).read_unaligned() };
        sizes[axis] = usize::try_from(size).map_err(|_| {
            Error::value(
                field(&format!("shape[{axis}]")),
                format!("a size from 0 to {}", isize::MAX),
                size,
            )
        })?;
        if let Some(strides) = &mut strides {
            // SAFETY: there are `rank` strides.
            let stride = unsafe { tensor.strides.add(axis).read_unaligned() };
            strides[axis] = isize::try_from(stride).map_err(|_| {
                Error::value(
                    field(&format!("strides[{axis}]")),
                    format!("a stride of at most {}", isize::MAX),
                    stride,
                )
            })?;
        }
    }
    Ok(Described {
        name,
        dtype,
        place,
        data: tensor.data.cast(),
        sizes,
        strides,
        rank,
    })
}

impl Described {
    /// The sizes of its axes.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes[..self.rank]
    }

    /// An error about its elements.
    pub fn wrong_dtype(&self, expected: &str) -> Error {
        let found = match self.dtype {
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::Bool => "bool",
            DType::I32 => "i32",
            DType::I64 => "i64",
        };
        Error::value(self.name, format!("element type {expected}"), found)
    }

    /// Whether its elements lie one after another in row-major order, as those of a tensor without any do.
    pub fn is_contiguous(&self) -> bool {
        if self.sizes().contains(&0) {
            return true;
        }
        // The type of the elements does not matter for that.
        let layout = |strides: &[isize; MAX_RANK]| {
            let strides = &strides[..self.rank];
            Layout::strided(fourtap::DType::F32, self.sizes(), strides).is_contiguous()
        };
        self.strides.as_ref().is_none_or(layout)
    }

    /// The strides in elements; those of row-major elements if none were given.
    fn strides(&self) -> [isize; MAX_RANK] {
        self.strides.unwrap_or_else(|| {
            let layout = Layout::contiguous(fourtap::DType::F32, self.sizes());
            let mut strides = [0; MAX_RANK];
            strides[..self.rank].copy_from_slice(layout.strides());
            strides
        })
    }

    fn layout(&self) -> Result<Layout> {
        let dtype = match self.dtype {
            DType::F16 => fourtap::DType::F16,
            DType::BF16 => fourtap::DType::BF16,
            DType::F32 => fourtap::DType::F32,
            DType::F64 => fourtap::DType::F64,
            _ => return Err(self.wrong_dtype("f16, bf16, f32 or f64")),
        };
        Ok(Layout::strided(
            dtype,
            self.sizes(),
            &self.strides()[..self.rank],
        ))
    }

    /// As a tensor of numbers to read.
    ///
    /// # Safety
    /// As for [`View::from_raw`] or [`View::on_cuda`], by where it is.
    pub unsafe fn view<'a>(&self) -> Result<View<'a>> {
        let layout = self.layout()?;
        // SAFETY: as the caller promises.
        Ok(unsafe {
            match self.place {
                Place::Cuda { ordinal } => View::on_cuda(ordinal, self.data as u64, layout),
                _ => View::from_raw(self.data, layout),
            }
        })
    }

    /// As a tensor of numbers to write.
    ///
    /// # Safety
    /// As for [`ViewMut::from_raw`] or [`ViewMut::on_cuda`], by where it is.
    pub unsafe fn view_mut<'a>(&self) -> Result<ViewMut<'a>> {
        let layout = self.layout()?;
        // SAFETY: as the caller promises.
        Ok(unsafe {
            match self.place {
                Place::Cuda { ordinal } => ViewMut::on_cuda(ordinal, self.data as u64, layout),
                _ => ViewMut::from_raw(self.data, layout),
            }
        })
    }

    /// As a mask.
    ///
    /// # Safety
    /// As for [`BoolView::from_raw`] or [`BoolView::on_cuda`], by where it is.
    pub unsafe fn bool_view<'a>(&self) -> Result<BoolView<'a>> {
        if self.dtype != DType::Bool {
            return Err(self.wrong_dtype("bool"));
        }
        let strides = self.strides();
        let (sizes, strides) = (self.sizes(), &strides[..self.rank]);
        // SAFETY: as the caller promises; there are as many strides as sizes.
        Ok(unsafe {
            match self.place {
                Place::Cuda { ordinal } => {
                    BoolView::on_cuda(ordinal, self.data as u64, sizes, strides)
                }
                _ => BoolView::from_raw(self.data, sizes, strides),
            }
        })
    }
}

/// A tensor to read.
///
/// # Safety
/// As for [`describe`] and [`Described::view`].
pub unsafe fn view<'a>(tensor: *const Tensor, name: &'static str) -> Result<View<'a>> {
    // SAFETY: as the caller promises.
    unsafe { describe(tensor, name)?.view() }
}

/// A tensor to write.
///
/// # Safety
/// As for [`describe`] and [`Described::view_mut`].
pub unsafe fn view_mut<'a>(tensor: *const Tensor, name: &'static str) -> Result<ViewMut<'a>> {
    // SAFETY: as the caller promises.
    unsafe { describe(tensor, name)?.view_mut() }
}

/// A tensor to write, if there is one.
///
/// # Safety
/// As for [`view_mut`].
pub unsafe fn optional_view_mut<'a>(
    tensor: *const Tensor,
    name: &'static str,
) -> Result<Option<ViewMut<'a>>> {
    match tensor.is_null() {
        true => Ok(None),
        // SAFETY: as the caller promises.
        false => unsafe { view_mut(tensor, name) }.map(Some),
    }
}
