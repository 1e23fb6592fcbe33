//! The levels of a node: two tensors of integers in host memory.

use fourtap::msda::Levels;

use crate::error::Result;
use crate::tensor::{INT32, INT64, Tensor};

/// Reads `spatial_shapes`, `[L, 2]`, and `level_start_index`, `[L]`.
pub fn read(shapes: &Tensor, starts: Option<&Tensor>) -> Result<Levels> {
    let &[count, 2] = shapes.sizes() else {
        return Err(shapes.wrong_shape("[L, 2]"));
    };
    if let Some(starts) = starts
        && starts.sizes() != [count]
    {
        return Err(starts.wrong_shape(&format!("[{count}]")));
    }
    let starts = starts.map(integers).transpose()?;
    Ok(Levels::from_i64(&integers(shapes)?, starts.as_deref())?)
}

fn integers(tensor: &Tensor) -> Result<Vec<i64>> {
    let count = tensor.sizes().iter().product();
    let (wide, narrow) = (tensor.data.cast::<i64>(), tensor.data.cast::<i32>());
    // SAFETY: an input in host memory has as many elements as its sizes say, and is not written while the node runs. Whoever feeds a
    // session may hand over memory that is not aligned, which ONNX Runtime does not look at.
    unsafe {
        match tensor.element {
            INT64 => Ok((0..count)
                .map(|index| wide.add(index).read_unaligned())
                .collect()),
            INT32 => Ok((0..count)
                .map(|index| narrow.add(index).read_unaligned().into())
                .collect()),
            _ => Err(tensor.wrong_element("int64 or int32")),
        }
    }
}
