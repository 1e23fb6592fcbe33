//! A node as ONNX Runtime asks about it.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null;

use crate::api::{Api, KernelContext, KernelInfo, Status};
use crate::kernel::Kernel;
use crate::nodes::{Node, Provider, is_in_host_memory};
use crate::{API_VERSION, answer};

/// Any element type: it is seen when the node runs.
const UNDEFINED: c_int = 0;
/// An input that must be there, and one that may be left out.
const REQUIRED: c_int = 0;
const OPTIONAL: c_int = 1;
/// An input in the memory of the device, and one in that of the host.
const DEFAULT_MEMORY: c_int = 0;
const HOST_MEMORY: c_int = -2;

type Op = *const CustomOp;

/// `OrtCustomOp`: functions that ONNX Runtime calls with a pointer to this struct, as they are in version 17 of its API. Those that are
/// `None` are for older versions, or for what our nodes do not have.
#[repr(C)]
pub struct CustomOp {
    version: u32,
    create_kernel: Option<unsafe extern "system" fn()>,
    get_name: unsafe extern "system" fn(Op) -> *const c_char,
    get_execution_provider_type: unsafe extern "system" fn(Op) -> *const c_char,
    get_input_type: unsafe extern "system" fn(Op, usize) -> c_int,
    get_input_type_count: unsafe extern "system" fn(Op) -> usize,
    get_output_type: unsafe extern "system" fn(Op, usize) -> c_int,
    get_output_type_count: unsafe extern "system" fn(Op) -> usize,
    kernel_compute: Option<unsafe extern "system" fn()>,
    kernel_destroy: unsafe extern "system" fn(*mut c_void),
    get_input_characteristic: unsafe extern "system" fn(Op, usize) -> c_int,
    get_output_characteristic: unsafe extern "system" fn(Op, usize) -> c_int,
    get_input_memory_type: unsafe extern "system" fn(Op, usize) -> c_int,
    get_variadic_input_min_arity: Option<unsafe extern "system" fn()>,
    get_variadic_input_homogeneity: Option<unsafe extern "system" fn()>,
    get_variadic_output_min_arity: Option<unsafe extern "system" fn()>,
    get_variadic_output_homogeneity: Option<unsafe extern "system" fn()>,
    create_kernel_v2: unsafe extern "system" fn(
        Op,
        *const c_void,
        *const KernelInfo,
        *mut *mut c_void,
    ) -> *mut Status,
    kernel_compute_v2: unsafe extern "system" fn(*mut c_void, *mut KernelContext) -> *mut Status,
    infer_output_shape: Option<unsafe extern "system" fn()>,
    get_start_version: unsafe extern "system" fn(Op) -> c_int,
    get_end_version: unsafe extern "system" fn(Op) -> c_int,
    /// Ours; ONNX Runtime does not look so far.
    api: Api,
    node: Node,
}

impl CustomOp {
    /// A node of the ONNX Runtime with this table of functions.
    pub fn new(api: Api, node: Node) -> Self {
        CustomOp {
            version: API_VERSION,
            create_kernel: None,
            get_name,
            get_execution_provider_type,
            get_input_type,
            get_input_type_count,
            get_output_type,
            get_output_type_count,
            kernel_compute: None,
            kernel_destroy,
            get_input_characteristic,
            get_output_characteristic,
            get_input_memory_type,
            get_variadic_input_min_arity: None,
            get_variadic_input_homogeneity: None,
            get_variadic_output_min_arity: None,
            get_variadic_output_homogeneity: None,
            create_kernel_v2,
            kernel_compute_v2,
            infer_output_shape: None,
            get_start_version,
            get_end_version,
            api,
            node,
        }
    }
}

/// # Safety
/// The pointer is one to a [`CustomOp`] that was added to a domain, as it is for all functions below.
unsafe fn node(op: Op) -> &'static Node {
    // SAFETY: such a struct lives as long as the process.
    unsafe { &(*op).node }
}

unsafe extern "system" fn get_name(op: Op) -> *const c_char {
    // SAFETY: what ONNX Runtime hands over.
    unsafe { node(op) }.name.as_ptr()
}

unsafe extern "system" fn get_execution_provider_type(op: Op) -> *const c_char {
    // SAFETY: what ONNX Runtime hands over.
    match unsafe { node(op) }.provider {
        Provider::Cpu => null(),
        Provider::Cuda => c"CUDAExecutionProvider".as_ptr(),
    }
}

unsafe extern "system" fn get_input_type(op: Op, index: usize) -> c_int {
    match index {
        // SAFETY: what ONNX Runtime hands over.
        0 => unsafe { node(op) }.element,
        _ => UNDEFINED,
    }
}

unsafe extern "system" fn get_input_type_count(op: Op) -> usize {
    // SAFETY: what ONNX Runtime hands over.
    unsafe { node(op) }.inputs().len()
}

unsafe extern "system" fn get_output_type(op: Op, _: usize) -> c_int {
    // SAFETY: what ONNX Runtime hands over.
    unsafe { node(op) }.element
}

unsafe extern "system" fn get_output_type_count(_: Op) -> usize {
    1
}

unsafe extern "system" fn get_input_characteristic(op: Op, index: usize) -> c_int {
    // SAFETY: what ONNX Runtime hands over.
    match unsafe { node(op) }.inputs().get(index) {
        Some((_, true)) => OPTIONAL,
        _ => REQUIRED,
    }
}

unsafe extern "system" fn get_output_characteristic(_: Op, _: usize) -> c_int {
    REQUIRED
}

unsafe extern "system" fn get_input_memory_type(_: Op, index: usize) -> c_int {
    match is_in_host_memory(index) {
        true => HOST_MEMORY,
        false => DEFAULT_MEMORY,
    }
}

unsafe extern "system" fn get_start_version(_: Op) -> c_int {
    1
}

unsafe extern "system" fn get_end_version(_: Op) -> c_int {
    c_int::MAX
}

unsafe extern "system" fn create_kernel_v2(
    op: Op,
    _: *const c_void,
    info: *const KernelInfo,
    kernel: *mut *mut c_void,
) -> *mut Status {
    // SAFETY: what ONNX Runtime hands over.
    let (api, node) = unsafe { ((*op).api, node(op)) };
    answer(api, || {
        // SAFETY: what ONNX Runtime hands over.
        let made = unsafe { Kernel::new(api, node, info)? };
        // SAFETY: where ONNX Runtime wants it, until it calls `kernel_destroy`.
        unsafe { kernel.write(Box::into_raw(Box::new(made)).cast()) };
        Ok(())
    })
}

unsafe extern "system" fn kernel_compute_v2(
    kernel: *mut c_void,
    context: *mut KernelContext,
) -> *mut Status {
    // SAFETY: what `create_kernel_v2` has made, shared by all threads that run this node.
    let kernel = unsafe { &*kernel.cast::<Kernel>() };
    // SAFETY: what ONNX Runtime hands over.
    answer(kernel.api(), || unsafe { kernel.run(context) })
}

unsafe extern "system" fn kernel_destroy(kernel: *mut c_void) {
    if !kernel.is_null() {
        // SAFETY: what `create_kernel_v2` has made, and nobody uses any more.
        drop(unsafe { Box::from_raw(kernel.cast::<Kernel>()) });
    }
}
