//! The levels of a call: two tensors of integers.

use fourtap::Place;
use fourtap::msda::{CudaLevels, LevelTable, Levels};

use crate::status::{Error, Result};
use crate::tensor::{DType, Described, Tensor, describe};

/// Levels that were read from host memory, or that a device will read.
pub enum OwnedLevels {
    Host(Levels),
    Cuda(CudaLevels),
}

impl OwnedLevels {
    /// As calls take them.
    pub fn table(&self) -> LevelTable<'_> {
        match self {
            OwnedLevels::Host(levels) => levels.into(),
            OwnedLevels::Cuda(levels) => (*levels).into(),
        }
    }
}

/// Reads `spatial_shapes`, `[L, 2]`, and `level_start_index`, `[L]`, which may be null.
///
/// # Safety
/// As for [`describe`]; data pointers are null or lead to elements that stay unchanged until the work of the call is done.
pub unsafe fn read(shapes: *const Tensor, starts: *const Tensor) -> Result<OwnedLevels> {
    // SAFETY: as the caller promises.
    let shapes = unsafe { describe(shapes, "spatial_shapes")? };
    let &[count, 2] = shapes.sizes() else {
        return Err(wrong_shape(&shapes, "[L, 2]".into()));
    };
    let starts = match starts.is_null() {
        true => None,
        // SAFETY: as the caller promises.
        false => Some(unsafe { describe(starts, "level_start_index")? }),
    };
    if let Some(starts) = &starts {
        if starts.sizes() != [count] {
            return Err(wrong_shape(starts, format!("[{count}]")));
        }
        if starts.place != shapes.place {
            let expected = format!("{}, where spatial_shapes is", shapes.place);
            return Err(Error::value(starts.name, expected, starts.place));
        }
    }
    for tensor in [Some(&shapes), starts.as_ref()].into_iter().flatten() {
        check(tensor)?;
    }
    match shapes.place {
        Place::Cuda { ordinal } => {
            let starts = starts.map(|starts| starts.data as u64);
            // SAFETY: as the caller promises; `check` has seen that they are int64 without gaps, and aligned.
            let levels = unsafe { CudaLevels::new(ordinal, count, shapes.data as u64, starts) };
            Ok(OwnedLevels::Cuda(levels))
        }
        _ => {
            // SAFETY: as the caller promises; `check` has seen that their elements lie one after another.
            let (shapes, starts) = unsafe { (numbers(&shapes), starts.map(|it| numbers(&it))) };
            Ok(OwnedLevels::Host(Levels::from_i64(
                &shapes,
                starts.as_deref(),
            )?))
        }
    }
}

fn wrong_shape(tensor: &Described, expected: String) -> Error {
    let found = shape_of(tensor);
    Error::value(tensor.name, format!("shape {expected}"), found)
}

fn shape_of(tensor: &Described) -> fourtap::Shape {
    fourtap::Shape::new(tensor.sizes())
}

/// Integers without gaps, with memory for them.
fn check(tensor: &Described) -> Result<()> {
    let is_on_device = tensor.place != Place::Host;
    let fits = tensor.dtype == DType::I64 || tensor.dtype == DType::I32 && !is_on_device;
    if !fits {
        return Err(tensor.wrong_dtype(if is_on_device { "i64" } else { "i64 or i32" }));
    }
    if !tensor.is_contiguous() {
        return Err(Error::value(
            tensor.name,
            "row-major elements without gaps",
            "other strides",
        ));
    }
    let elements = shape_of(tensor).elements();
    if tensor.data.is_null() && elements != Some(0) {
        return Err(fourtap::Error::Null {
            tensor: tensor.name,
            shape: shape_of(tensor),
        }
        .into());
    }
    if is_on_device && !tensor.data.addr().is_multiple_of(size_of::<i64>()) {
        return Err(fourtap::Error::Misaligned {
            tensor: tensor.name,
            expected: size_of::<i64>(),
            address: tensor.data.addr(),
        }
        .into());
    }
    // Copied to the host's memory, they take no more of it than they take now.
    match elements {
        Some(elements) if elements <= isize::MAX as usize / size_of::<i64>() => Ok(()),
        _ => Err(fourtap::Error::Overflow {
            tensor: tensor.name,
            what: format!("shape {}", shape_of(tensor)),
        }
        .into()),
    }
}

/// The elements of a tensor in host memory.
///
/// # Safety
/// [`check`] has passed, and the data pointer leads to the elements.
unsafe fn numbers(tensor: &Described) -> Vec<i64> {
    let elements = tensor.sizes().iter().product();
    let number = |index: usize| {
        // SAFETY: the index is less than the number of elements, which lie one after another.
        unsafe {
            match tensor.dtype {
                DType::I32 => i64::from(tensor.data.cast::<i32>().add(index).read_unaligned()),
                _ => tensor.data.cast::<i64>().add(index).read_unaligned(),
            }
        }
    };
    (0..elements).map(number).collect()
}
