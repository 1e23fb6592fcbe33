//! DLPack's exchange of tensors by C functions (DLPack 1.3, PyTorch from 2.10 on): one call describes
//! a tensor, instead of one call per attribute.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use fourtap::{DType, Place};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

use crate::tensor::{Element, Tensor};

const NAME: &CStr = c"dlpack_exchange_api";
const MAJOR_VERSION: u32 = 1;
const CPU: i32 = 1;
const CUDA: i32 = 2;
const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const BOOL: u8 = 6;

#[repr(C)]
struct Description {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    rank: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    sizes: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct Functions {
    major: u32,
    minor: u32,
    previous: *const Functions,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    managed_to_object: *const c_void,
    describe: Option<unsafe extern "C" fn(*mut c_void, *mut Description) -> c_int>,
    current_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

/// The C functions that a tensor class exports.
#[derive(Clone, Copy)]
pub struct Exchange {
    describe: unsafe extern "C" fn(*mut c_void, *mut Description) -> c_int,
    current_stream: unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int,
}

impl Exchange {
    /// The functions of `class`, if it exports them in a supported version.
    pub fn of(class: &Bound<'_, PyAny>) -> Option<Exchange> {
        let capsule = class.getattr("__dlpack_c_exchange_api__").ok()?;
        let capsule = capsule.cast::<PyCapsule>().ok()?;
        let functions: NonNull<c_void> = capsule.pointer_checked(Some(NAME)).ok()?;
        let mut functions: *const Functions = functions.as_ptr().cast();
        // SAFETY: a capsule of this name holds such a table, alive as long as the process; older versions of it are
        // chained to the newest.
        while let Some(table) = unsafe { functions.as_ref() } {
            if table.major == MAJOR_VERSION {
                return Some(Exchange {
                    describe: table.describe?,
                    current_stream: table.current_stream?,
                });
            }
            functions = table.previous;
        }
        None
    }

    /// Describes `object`, which is of exactly that class; `None` if its memory cannot be exported.
    pub fn describe(&self, name: &'static str, object: &Bound<'_, PyAny>) -> Option<Tensor> {
        let mut found = Description {
            data: std::ptr::null_mut(),
            device_type: 0,
            device_id: 0,
            rank: 0,
            code: 0,
            bits: 0,
            lanes: 0,
            sizes: std::ptr::null(),
            strides: std::ptr::null(),
            byte_offset: 0,
        };
        // SAFETY: the object is of the class the function belongs to, and one description is written.
        if unsafe { (self.describe)(object.as_ptr().cast(), &mut found) } != 0 {
            drop(PyErr::take(object.py()));
            return None;
        }
        let place = match found.device_type {
            CPU => Place::Host,
            CUDA => Place::Cuda {
                ordinal: usize::try_from(found.device_id).ok()?,
            },
            _ => return None,
        };
        let element = match (found.code, found.bits, found.lanes) {
            (FLOAT, 16, 1) => Element::Real(DType::F16),
            (BFLOAT, 16, 1) => Element::Real(DType::BF16),
            (FLOAT, 32, 1) => Element::Real(DType::F32),
            (FLOAT, 64, 1) => Element::Real(DType::F64),
            (INT, 32, 1) => Element::Int32,
            (INT, 64, 1) => Element::Int64,
            (BOOL | UINT, 8, 1) => Element::Bool,
            _ => Element::Other,
        };
        let rank = usize::try_from(found.rank).ok()?;
        if rank > 0 && (found.sizes.is_null() || found.strides.is_null()) {
            return None;
        }
        let axes = |first: *const i64| match rank {
            0 => &[],
            // SAFETY: both have `rank` numbers, which belong to the object.
            _ => unsafe { std::slice::from_raw_parts(first, rank) },
        };
        Some(Tensor {
            name,
            address: (found.data as usize).wrapping_add(found.byte_offset as usize),
            place,
            element,
            sizes: axes(found.sizes)
                .iter()
                .map(|&size| size as usize)
                .collect(),
            strides: axes(found.strides)
                .iter()
                .map(|&step| step as isize)
                .collect(),
        })
    }

    /// The handle of the current stream of a CUDA device.
    pub fn stream(&self, py: Python<'_>, ordinal: usize) -> PyResult<usize> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: writes one handle.
        match unsafe { (self.current_stream)(CUDA, ordinal as i32, &mut stream) } {
            0 => Ok(stream as usize),
            _ => Err(PyErr::fetch(py)),
        }
    }
}
