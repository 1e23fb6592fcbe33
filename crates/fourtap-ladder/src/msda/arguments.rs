//! What rungs are given. Mirrored in kernels/rung.cuh.

use fourtap::cuda::driver::{Swizzle, TensorElement, TensorMap, TensorMapDesc};

use crate::plan::{LEVEL_CAPACITY, Shape};

/// A level, as kernels see it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct LevelArgument {
    width: i32,
    height: i32,
    start: i32,
    /// Pixels from a row to the next; 0 if there is but one.
    below: i32,
}

/// The tensors and sizes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProblemArgument {
    value: u64,
    locations: u64,
    weights: u64,
    out: u64,
    scratch: u64,
    images: u32,
    queries: u32,
    heads: u32,
    pixels: u32,
    levels: [LevelArgument; LEVEL_CAPACITY],
}

impl ProblemArgument {
    /// Of these sizes; value, locations and weights, the result and scratch are at these addresses.
    pub fn new(shape: &Shape, inputs: [u64; 3], out: u64, scratch: u64) -> Self {
        let [value, locations, weights] = inputs;
        let mut levels = [LevelArgument::default(); LEVEL_CAPACITY];
        for (argument, level) in levels.iter_mut().zip(&shape.levels) {
            *argument = LevelArgument {
                width: level.width as i32,
                height: level.height as i32,
                start: level.start as i32,
                below: if level.height > 1 {
                    level.width as i32
                } else {
                    0
                },
            };
        }
        ProblemArgument {
            value,
            locations,
            weights,
            out,
            scratch,
            images: shape.images,
            queries: shape.queries,
            heads: shape.heads,
            pixels: shape.pixels,
            levels,
        }
    }
}

/// The tensor maps of a plan; those it does not have are never used.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub struct MapsArgument(pub [TensorMap; LEVEL_CAPACITY]);

/// A level of value, which is at this address, and the box to load of it.
pub fn level_map(shape: &Shape, level: usize, sides: [u32; 4], value: u64) -> TensorMapDesc {
    let level = shape.levels[level];
    let pixel = u64::from(shape.heads) * u64::from(shape.pixel_bytes());
    let row = u64::from(level.width) * pixel;
    TensorMapDesc {
        element: TensorElement::F16,
        address: value + u64::from(level.start) * pixel,
        dimensions: vec![
            u64::from(shape.heads * shape.channels),
            level.width.into(),
            level.height.into(),
            shape.images.into(),
        ],
        strides: vec![pixel, row, u64::from(shape.pixels) * pixel],
        box_sides: sides.to_vec(),
        element_strides: vec![1; 4],
        swizzle: Swizzle::None,
    }
}
