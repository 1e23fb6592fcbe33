//! Tensors of ONNX Runtime: row-major, without gaps.

use std::ffi::c_int;

use fourtap::{BoolView, DType, Layout, Place, Shape, View, ViewMut};

use crate::api::{Api, Value};
use crate::error::{Error, Result};

/// The numbers of element types in ONNX.
pub const FLOAT: c_int = 1;
pub const INT32: c_int = 6;
pub const INT64: c_int = 7;
pub const BOOL: c_int = 9;
pub const FLOAT16: c_int = 10;
pub const DOUBLE: c_int = 11;
pub const BFLOAT16: c_int = 16;

/// An input or output of a node.
pub struct Tensor {
    pub name: &'static str,
    pub element: c_int,
    pub place: Place,
    pub data: *mut u8,
    sizes: Vec<usize>,
}

impl Tensor {
    /// # Safety
    /// The tensor is one that ONNX Runtime handed over, in this memory.
    pub unsafe fn new(
        api: Api,
        name: &'static str,
        value: *const Value,
        place: Place,
    ) -> Result<Tensor> {
        // SAFETY: as the caller promises.
        let ((element, sizes), data) = unsafe { (api.type_and_sizes(value)?, api.data(value)?) };
        let size = |size: i64| {
            let wrong = |_| Error::argument(name, "sizes of 0 or more", size);
            usize::try_from(size).map_err(wrong)
        };
        Ok(Tensor {
            name,
            element,
            place,
            data,
            sizes: sizes.into_iter().map(size).collect::<Result<_>>()?,
        })
    }

    /// The sizes of its axes.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// An error about its shape.
    pub fn wrong_shape(&self, expected: &str) -> Error {
        let found = Shape::new(&self.sizes);
        Error::argument(self.name, format!("shape {expected}"), found)
    }

    /// An error about its elements.
    pub fn wrong_element(&self, expected: &str) -> Error {
        // As ONNX names those that are likely to be met here.
        let found = match self.element {
            FLOAT => "float".to_string(),
            INT32 => "int32".to_string(),
            INT64 => "int64".to_string(),
            BOOL => "bool".to_string(),
            FLOAT16 => "float16".to_string(),
            DOUBLE => "double".to_string(),
            BFLOAT16 => "bfloat16".to_string(),
            other => format!("number {other} of ONNX"),
        };
        Error::argument(self.name, format!("element type {expected}"), found)
    }

    fn layout(&self) -> Result<Layout> {
        let dtype = match self.element {
            FLOAT => DType::F32,
            FLOAT16 => DType::F16,
            BFLOAT16 => DType::BF16,
            DOUBLE => DType::F64,
            _ => return Err(self.wrong_element("float, float16, bfloat16 or double")),
        };
        Ok(Layout::contiguous(dtype, &self.sizes))
    }

    /// As a tensor of numbers to read.
    pub fn view(&self) -> Result<View<'_>> {
        let layout = self.layout()?;
        // SAFETY: ONNX Runtime keeps inputs as they are while a node runs and, on a device, until its stream has got there.
        Ok(unsafe {
            match self.place {
                Place::Cuda { ordinal } => View::on_cuda(ordinal, self.data as u64, layout),
                _ => View::from_raw(self.data, layout),
            }
        })
    }

    /// As a mask.
    pub fn bool_view(&self) -> Result<BoolView<'_>> {
        if self.element != BOOL {
            return Err(self.wrong_element("bool"));
        }
        let layout = Layout::contiguous(DType::F32, &self.sizes);
        let (sizes, strides) = (&self.sizes[..layout.strides().len()], layout.strides());
        // SAFETY: as for `view`; there are as many strides as sizes.
        Ok(unsafe {
            match self.place {
                Place::Cuda { ordinal } => {
                    BoolView::on_cuda(ordinal, self.data as u64, sizes, strides)
                }
                _ => BoolView::from_raw(self.data, sizes, strides),
            }
        })
    }

    /// As a tensor of numbers to write, with other sizes of the same product.
    ///
    /// # Safety
    /// It is an output, and this its only view.
    pub unsafe fn view_mut(&self, sizes: &[usize]) -> Result<ViewMut<'_>> {
        let layout = Layout::contiguous(self.layout()?.dtype(), sizes);
        // SAFETY: ONNX Runtime has allocated it for this run of the node.
        Ok(unsafe {
            match self.place {
                Place::Cuda { ordinal } => ViewMut::on_cuda(ordinal, self.data as u64, layout),
                _ => ViewMut::from_raw(self.data, layout),
            }
        })
    }
}
