//! The part of ONNX Runtime's C API that custom operators need.
//!
//! The API is a table of functions that only ever grows at its end, so a function is known by its position in
//! onnxruntime_c_api.h, counted from 0. Every function that can fail returns a status, null for success, that its caller releases.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use crate::custom_op::CustomOp;
use crate::error::{Error, Result};

macro_rules! opaque {
    ($($(#[$about:meta])* $name:ident),*) => {
        $($(#[$about])* #[repr(C)] pub struct $name { _opaque: [u8; 0] })*
    };
}

opaque! {
    /// `OrtStatus`: an error.
    Status,
    /// `OrtSessionOptions`.
    SessionOptions,
    /// `OrtKernelInfo`: a node of a model, with its attributes.
    KernelInfo,
    /// `OrtKernelContext`: a run of a node, with its inputs and outputs.
    KernelContext,
    /// `OrtValue`: a tensor.
    Value,
    /// `OrtCustomOpDomain`.
    OpaqueDomain,
    /// `OrtTensorTypeAndShapeInfo`.
    TensorInfo,
    /// `OrtMemoryInfo`.
    MemoryInfo
}

/// `OrtApiBase`: where ONNX Runtime tells of its tables.
#[repr(C)]
pub struct ApiBase {
    get_api: unsafe extern "system" fn(version: u32) -> *const *const c_void,
    get_version: unsafe extern "system" fn() -> *const c_char,
}

/// Error codes of ONNX Runtime.
pub const FAIL: c_int = 1;
/// An input or attribute is wrong.
pub const INVALID_ARGUMENT: c_int = 2;

/// Positions in the table.
mod position {
    pub const CREATE_STATUS: usize = 0;
    pub const CREATE_CUSTOM_OP_DOMAIN: usize = 26;
    pub const CUSTOM_OP_DOMAIN_ADD: usize = 27;
    pub const ADD_CUSTOM_OP_DOMAIN: usize = 28;
    pub const GET_TENSOR_MUTABLE_DATA: usize = 51;
    pub const GET_TENSOR_ELEMENT_TYPE: usize = 60;
    pub const GET_DIMENSIONS_COUNT: usize = 61;
    pub const GET_DIMENSIONS: usize = 62;
    pub const GET_TENSOR_TYPE_AND_SHAPE: usize = 65;
    pub const MEMORY_INFO_GET_ID: usize = 72;
    pub const KERNEL_INFO_GET_ATTRIBUTE_STRING: usize = 87;
    pub const KERNEL_CONTEXT_GET_INPUT_COUNT: usize = 88;
    pub const KERNEL_CONTEXT_GET_INPUT: usize = 90;
    pub const KERNEL_CONTEXT_GET_OUTPUT: usize = 91;
    pub const RELEASE_STATUS: usize = 93;
    pub const RELEASE_TENSOR_TYPE_AND_SHAPE_INFO: usize = 99;
    pub const KERNEL_INFO_GET_ATTRIBUTE_ARRAY_FLOAT: usize = 162;
    pub const KERNEL_INFO_GET_ATTRIBUTE_ARRAY_INT64: usize = 163;
    pub const KERNEL_CONTEXT_GET_GPU_COMPUTE_STREAM: usize = 193;
    pub const GET_TENSOR_MEMORY_INFO: usize = 194;
    pub const KERNEL_CONTEXT_PARALLEL_FOR: usize = 274;
}

/// Functions that make something of a thing: `status function(thing, &mut out)`.
type Getter<Thing, Out> = unsafe extern "system" fn(Thing, *mut Out) -> *mut Status;
/// Functions that copy an attribute, or say how long it is where there is no memory for it.
type AttributeGetter<T> =
    unsafe extern "system" fn(*const KernelInfo, *const c_char, *mut T, *mut usize) -> *mut Status;

/// `OrtApi`: the table of functions of one ONNX Runtime.
#[derive(Clone, Copy, PartialEq)]
pub struct Api(*const *const c_void);

// SAFETY: a constant table of functions that may be called from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

/// A domain of nodes.
#[derive(Clone, Copy)]
pub struct Domain(*mut OpaqueDomain);

// SAFETY: it is changed only while it is made; later ONNX Runtime only reads it.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Api {
    /// The table of this version; a status if this ONNX Runtime is too old to have it.
    ///
    /// # Safety
    /// The pointer is the one that ONNX Runtime hands over.
    pub unsafe fn of(base: *const ApiBase, version: u32) -> Result<Api, *mut Status> {
        // SAFETY: as the caller promises. The first table is there always, and can make a status.
        unsafe {
            let table = ((*base).get_api)(version);
            if !table.is_null() {
                return Ok(Api(table));
            }
            let found = CStr::from_ptr(((*base).get_version)()).to_string_lossy();
            let words =
                format!("fourtap: expected ONNX Runtime 1.{version} or later, found {found}");
            Err(Api(((*base).get_api)(1)).create_status(FAIL, &words))
        }
    }

    /// # Safety
    /// `F` is the type of the function at this position.
    unsafe fn function<F: Copy>(&self, position: usize) -> F {
        // SAFETY: tables of our version and later have all positions that are named above, each with a pointer to a function.
        unsafe { self.0.add(position).cast::<F>().read() }
    }

    /// An error of ONNX Runtime, if it is one.
    fn check(&self, status: *mut Status) -> Result<()> {
        match status.is_null() {
            true => Ok(()),
            false => Err(Error::Runtime(status)),
        }
    }

    /// A status with these words.
    pub fn create_status(&self, code: c_int, words: &str) -> *mut Status {
        let words = CString::new(words.replace('\0', " ")).unwrap_or_default();
        type Create = unsafe extern "system" fn(c_int, *const c_char) -> *mut Status;
        // SAFETY: the function at this position; it copies the words.
        unsafe { self.function::<Create>(position::CREATE_STATUS)(code, words.as_ptr()) }
    }

    /// Forgets an error.
    pub fn release_status(&self, status: *mut Status) {
        type Release = unsafe extern "system" fn(*mut Status);
        // SAFETY: the function at this position; a status that we were handed is ours.
        unsafe { self.function::<Release>(position::RELEASE_STATUS)(status) }
    }

    /// A domain without nodes.
    pub fn create_domain(&self, name: &CStr) -> Result<Domain> {
        let mut domain = null_mut();
        // SAFETY: the function at this position; it copies the name.
        unsafe {
            let create: Getter<*const c_char, *mut OpaqueDomain> =
                self.function(position::CREATE_CUSTOM_OP_DOMAIN);
            self.check(create(name.as_ptr(), &mut domain))?;
        }
        Ok(Domain(domain))
    }

    /// Adds a node to a domain.
    pub fn add_op(&self, domain: Domain, op: &'static CustomOp) -> Result<()> {
        type Add = unsafe extern "system" fn(*mut OpaqueDomain, *const CustomOp) -> *mut Status;
        // SAFETY: the function at this position; the domain is one that it made, and the node lives as long.
        unsafe {
            let add = self.function::<Add>(position::CUSTOM_OP_DOMAIN_ADD);
            self.check(add(domain.0, op))
        }
    }

    /// Adds a domain to the options of a session.
    ///
    /// # Safety
    /// The options are those that ONNX Runtime handed over.
    pub unsafe fn add_domain(&self, options: *mut SessionOptions, domain: Domain) -> Result<()> {
        type Add = unsafe extern "system" fn(*mut SessionOptions, *mut OpaqueDomain) -> *mut Status;
        // SAFETY: the function at this position; the domain is one that it made.
        unsafe {
            let add = self.function::<Add>(position::ADD_CUSTOM_OP_DOMAIN);
            self.check(add(options, domain.0))
        }
    }

    /// An attribute that is a list of integers.
    ///
    /// # Safety
    /// The node is the one that ONNX Runtime handed over; so for the functions below.
    pub unsafe fn integers(&self, info: *const KernelInfo, name: &CStr) -> Result<Vec<i64>> {
        // SAFETY: the function at this position; the rest as the caller promises.
        unsafe {
            let get = self.function(position::KERNEL_INFO_GET_ATTRIBUTE_ARRAY_INT64);
            self.attribute(get, info, name)
        }
    }

    /// An attribute that is a list of numbers.
    ///
    /// # Safety
    /// As for [`Api::integers`].
    pub unsafe fn floats(&self, info: *const KernelInfo, name: &CStr) -> Result<Vec<f32>> {
        // SAFETY: the function at this position; the rest as the caller promises.
        unsafe {
            let get = self.function(position::KERNEL_INFO_GET_ATTRIBUTE_ARRAY_FLOAT);
            self.attribute(get, info, name)
        }
    }

    /// An attribute that is a string, without the zero at its end.
    ///
    /// # Safety
    /// As for [`Api::integers`].
    pub unsafe fn string(&self, info: *const KernelInfo, name: &CStr) -> Result<String> {
        // SAFETY: the function at this position, for which a character is a byte; the rest as the caller promises.
        let bytes: Vec<u8> = unsafe {
            let get = self.function(position::KERNEL_INFO_GET_ATTRIBUTE_STRING);
            self.attribute(get, info, name)?
        };
        let text = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// # Safety
    /// As for [`Api::integers`]; the function copies attributes of this type.
    unsafe fn attribute<T: Copy + Default>(
        &self,
        get: AttributeGetter<T>,
        info: *const KernelInfo,
        name: &CStr,
    ) -> Result<Vec<T>> {
        let mut length = 0;
        // SAFETY: without memory it only says the length; then it gets memory of that length.
        unsafe {
            self.check(get(info, name.as_ptr(), null_mut(), &mut length))?;
            let mut content = vec![T::default(); length];
            if length > 0 {
                self.check(get(info, name.as_ptr(), content.as_mut_ptr(), &mut length))?;
            }
            Ok(content)
        }
    }

    /// How many inputs a node was given.
    ///
    /// # Safety
    /// The context is the one that ONNX Runtime handed over; so for the functions below.
    pub unsafe fn input_count(&self, context: *const KernelContext) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the function at this position; the rest as the caller promises.
        unsafe {
            let get: Getter<*const KernelContext, usize> =
                self.function(position::KERNEL_CONTEXT_GET_INPUT_COUNT);
            self.check(get(context, &mut count))?;
        }
        Ok(count)
    }

    /// An input; null if it is optional and left out.
    ///
    /// # Safety
    /// As for [`Api::input_count`], and there are more inputs than the index.
    pub unsafe fn input(
        &self,
        context: *const KernelContext,
        index: usize,
    ) -> Result<*const Value> {
        type Get = unsafe extern "system" fn(
            *const KernelContext,
            usize,
            *mut *const Value,
        ) -> *mut Status;
        let mut value = null();
        // SAFETY: the function at this position; the rest as the caller promises.
        unsafe {
            let get = self.function::<Get>(position::KERNEL_CONTEXT_GET_INPUT);
            self.check(get(context, index, &mut value))?;
        }
        Ok(value)
    }

    /// The output, allocated with these sizes.
    ///
    /// # Safety
    /// As for [`Api::input_count`].
    pub unsafe fn output(&self, context: *mut KernelContext, sizes: &[i64]) -> Result<*mut Value> {
        type Get = unsafe extern "system" fn(
            *mut KernelContext,
            usize,
            *const i64,
            usize,
            *mut *mut Value,
        ) -> *mut Status;
        let mut value = null_mut();
        // SAFETY: the function at this position; the rest as the caller promises.
        unsafe {
            let get = self.function::<Get>(position::KERNEL_CONTEXT_GET_OUTPUT);
            self.check(get(context, 0, sizes.as_ptr(), sizes.len(), &mut value))?;
        }
        Ok(value)
    }

    /// The CUDA stream that a node on such a device runs on.
    ///
    /// # Safety
    /// As for [`Api::input_count`].
    pub unsafe fn stream(&self, context: *const KernelContext) -> Result<*mut c_void> {
        let mut stream = null_mut();
        // SAFETY: the function at this position; the rest as the caller promises.
        unsafe {
            let get: Getter<*const KernelContext, *mut c_void> =
                self.function(position::KERNEL_CONTEXT_GET_GPU_COMPUTE_STREAM);
            self.check(get(context, &mut stream))?;
        }
        Ok(stream)
    }

    /// Calls a function with `data` and each index below `total`, on the threads of the session's intra-op pool, this one among them.
    ///
    /// # Safety
    /// As for [`Api::input_count`]; the function may be called so from any thread.
    pub unsafe fn parallel_for(
        &self,
        context: *const KernelContext,
        function: unsafe extern "C" fn(data: *mut c_void, index: usize),
        total: usize,
        data: *mut c_void,
    ) -> Result<()> {
        type ParallelFor = unsafe extern "system" fn(
            *const KernelContext,
            unsafe extern "C" fn(*mut c_void, usize),
            usize,
            usize,
            *mut c_void,
        ) -> *mut Status;
        // SAFETY: the function at this position; the rest as the caller promises. With 0 batches threads take indices one by one.
        unsafe {
            let run = self.function::<ParallelFor>(position::KERNEL_CONTEXT_PARALLEL_FOR);
            self.check(run(context, function, total, 0, data))
        }
    }

    /// The number of the device that a tensor is on.
    ///
    /// # Safety
    /// The tensor is one that ONNX Runtime handed over; so for the functions below.
    pub unsafe fn device(&self, value: *const Value) -> Result<c_int> {
        let (mut memory, mut device) = (null(), 0);
        // SAFETY: the functions at these positions; the rest as the caller promises.
        unsafe {
            let get: Getter<*const Value, *const MemoryInfo> =
                self.function(position::GET_TENSOR_MEMORY_INFO);
            self.check(get(value, &mut memory))?;
            let get: Getter<*const MemoryInfo, c_int> = self.function(position::MEMORY_INFO_GET_ID);
            self.check(get(memory, &mut device))?;
        }
        Ok(device)
    }

    /// Where the elements of a tensor are.
    ///
    /// # Safety
    /// As for [`Api::device`].
    pub unsafe fn data(&self, value: *const Value) -> Result<*mut u8> {
        let mut data = null_mut();
        // SAFETY: the function at this position, which changes nothing; the rest as the caller promises.
        unsafe {
            let get: Getter<*mut Value, *mut u8> = self.function(position::GET_TENSOR_MUTABLE_DATA);
            self.check(get(value.cast_mut(), &mut data))?;
        }
        Ok(data)
    }

    /// The number of a tensor's element type, and its sizes.
    ///
    /// # Safety
    /// As for [`Api::device`].
    pub unsafe fn type_and_sizes(&self, value: *const Value) -> Result<(c_int, Vec<i64>)> {
        let mut info = null_mut();
        // SAFETY: the functions at these positions; the rest as the caller promises. What is made here is released here.
        unsafe {
            let get: Getter<*const Value, *mut TensorInfo> =
                self.function(position::GET_TENSOR_TYPE_AND_SHAPE);
            self.check(get(value, &mut info))?;
            let read = self.read_info(info);
            let release: unsafe extern "system" fn(*mut TensorInfo) =
                self.function(position::RELEASE_TENSOR_TYPE_AND_SHAPE_INFO);
            release(info);
            read
        }
    }

    /// # Safety
    /// It was made by ONNX Runtime.
    unsafe fn read_info(&self, info: *const TensorInfo) -> Result<(c_int, Vec<i64>)> {
        type Dimensions =
            unsafe extern "system" fn(*const TensorInfo, *mut i64, usize) -> *mut Status;
        let (mut element, mut rank) = (0, 0);
        // SAFETY: the functions at these positions; the rest as the caller promises.
        unsafe {
            let get: Getter<*const TensorInfo, c_int> =
                self.function(position::GET_TENSOR_ELEMENT_TYPE);
            self.check(get(info, &mut element))?;
            let get: Getter<*const TensorInfo, usize> =
                self.function(position::GET_DIMENSIONS_COUNT);
            self.check(get(info, &mut rank))?;
            let mut sizes = vec![0; rank];
            let get = self.function::<Dimensions>(position::GET_DIMENSIONS);
            self.check(get(info, sizes.as_mut_ptr(), rank))?;
            Ok((element, sizes))
        }
    }
}
