//! What can be wrong with a call.

#[cfg(feature = "cuda")]
use crate::cuda::{driver::DriverError, error::CudaError, jit::JitError};
use crate::dtype::DType;
use crate::place::Place;
use crate::shape::Shape;

/// Why a call was refused. Nothing was computed and no output was touched, unless the call was [`Error::Cancelled`].
///
/// Each message names the tensor, what was expected and what was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor has the wrong number of axes.
    #[error("{tensor}: expected rank {expected} {axes}, found rank {found}")]
    Rank {
        /// Name of the tensor.
        tensor: &'static str,
        /// Number of axes it must have.
        expected: usize,
        /// The names of those axes.
        axes: &'static str,
        /// Number of axes it has.
        found: usize,
    },
    /// A tensor's shape does not fit the others'.
    #[error("{tensor}: expected shape {expected}, found {found}")]
    Shape {
        /// Name of the tensor.
        tensor: &'static str,
        /// The shape it must have; letters stand for axes that are free.
        expected: String,
        /// The shape it has.
        found: Shape,
    },
    /// A tensor has no channels; any other size may be zero.
    #[error("{tensor}: expected at least 1 channel per head (axis D), found shape {found}")]
    NoChannels {
        /// Name of the tensor.
        tensor: &'static str,
        /// The shape it has.
        found: Shape,
    },
    /// The number of key and value heads does not divide the number of query heads.
    #[error(
        "{tensor}: expected a number of heads (axis Hk) that divides the {query_heads} of query, found {found}"
    )]
    Heads {
        /// Name of the tensor.
        tensor: &'static str,
        /// Heads `query` has.
        query_heads: usize,
        /// Heads it has.
        found: usize,
    },
    /// The scale of the logits is not a finite number.
    #[error("scale: expected a finite number of {expected}, found {found}")]
    Scale {
        /// The type logits are computed in.
        expected: DType,
        /// The factor.
        found: String,
    },
    /// An argument that is not a tensor does not fit the tensors.
    #[error("{argument}: expected {expected}, found {found}")]
    Argument {
        /// Name of the argument.
        argument: &'static str,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A tensor's element type does not fit the others'.
    #[error("{tensor}: expected element type {expected}, found {found}")]
    DType {
        /// Name of the tensor.
        tensor: &'static str,
        /// The types it may have.
        expected: String,
        /// The type it has.
        found: DType,
    },
    /// A slice is shorter or longer than the shape it is viewed with.
    #[error("{tensor}: expected {expected} elements for shape {shape}, found a slice of {found}")]
    Length {
        /// Name of the tensor.
        tensor: &'static str,
        /// Shape of the view.
        shape: Shape,
        /// Elements such a view has.
        expected: usize,
        /// Elements the slice has.
        found: usize,
    },
    /// Strides lead outside the slice a view was made of.
    #[error(
        "{tensor}: expected strides that stay in the slice of {available} elements, found offsets {lowest} to {highest}"
    )]
    StridesOutOfRange {
        /// Name of the tensor.
        tensor: &'static str,
        /// Elements the slice has.
        available: usize,
        /// Lowest element offset reached, counted from the start of the slice.
        lowest: isize,
        /// Highest element offset reached.
        highest: isize,
    },
    /// The number of strides is not the number of axes.
    #[error("{tensor}: expected {expected} strides, one per axis, found {found}")]
    StrideCount {
        /// Name of the tensor.
        tensor: &'static str,
        /// Number of axes.
        expected: usize,
        /// Number of strides.
        found: usize,
    },
    /// A tensor with elements lies at address 0.
    #[error("{tensor}: expected memory for shape {shape}, found a null pointer")]
    Null {
        /// Name of the tensor.
        tensor: &'static str,
        /// Shape of the view.
        shape: Shape,
    },
    /// A tensor's address is not a multiple of its element size.
    #[error("{tensor}: expected an address that is a multiple of {expected}, found {address:#x}")]
    Misaligned {
        /// Name of the tensor.
        tensor: &'static str,
        /// What the address must be a multiple of; for a tensor, the bytes per element.
        expected: usize,
        /// Address of the first element.
        address: usize,
    },
    /// A size does not fit the address space.
    #[error(
        "{tensor}: expected at most {} bytes, found {what} that overflows",
        isize::MAX
    )]
    Overflow {
        /// Name of the tensor.
        tensor: &'static str,
        /// The shape or product that is too large.
        what: String,
    },
    /// Memory to be written is shared with another tensor of the same call.
    #[error("{output}: expected memory of its own, found it sharing bytes with {other}")]
    Overlap {
        /// Tensor to be written.
        output: &'static str,
        /// Tensor it shares memory with.
        other: &'static str,
    },
    /// A tensor to be written reaches the same element by two indices.
    #[error(
        "{tensor}: expected each element at its own address, found shape {shape} with strides {strides:?}"
    )]
    SelfOverlap {
        /// Name of the tensor.
        tensor: &'static str,
        /// Shape of the view.
        shape: Shape,
        /// Its strides in elements.
        strides: Vec<isize>,
    },
    /// A level has a negative or too large height or width.
    #[error(
        "spatial_shapes[{level}]: expected height and width from 0 to {}, found ({height}, {width})",
        i32::MAX
    )]
    LevelSize {
        /// Index of the level.
        level: usize,
        /// Its height.
        height: i64,
        /// Its width.
        width: i64,
    },
    /// The levels do not add up to the rows of `value`.
    #[error(
        "value: expected {expected} pixels (axis S), the sum over spatial_shapes, found {found}"
    )]
    LevelSum {
        /// Sum of height times width.
        expected: usize,
        /// Size of axis S.
        found: usize,
    },
    /// `spatial_shapes` does not consist of pairs.
    #[error("spatial_shapes: expected (height, width) pairs, found {found} numbers")]
    LevelPairs {
        /// How many numbers there are.
        found: usize,
    },
    /// `level_start_index` and `spatial_shapes` differ in length.
    #[error("level_start_index: expected {expected} entries, one per level, found {found}")]
    LevelStartCount {
        /// Number of levels.
        expected: usize,
        /// Number of starts.
        found: usize,
    },
    /// A level begins before the first or ends after the last pixel.
    #[error(
        "level_start_index[{level}]: expected a start from 0 to {highest}, so that {pixels} pixels fit, found {found}"
    )]
    LevelStart {
        /// Index of the level.
        level: usize,
        /// Last start at which the level still fits.
        highest: usize,
        /// Pixels of the level.
        pixels: usize,
        /// The start found.
        found: i64,
    },
    /// Two levels share pixels.
    #[error(
        "level_start_index[{level}]: expected {expected} or more, after the last pixel of level {other}, found {found}"
    )]
    LevelOverlap {
        /// Index of the level.
        level: usize,
        /// Index of the level it runs into.
        other: usize,
        /// First free start after that level.
        expected: usize,
        /// The start found.
        found: usize,
    },
    /// A tensor is in memory the call cannot use.
    #[error("{tensor}: expected {expected}, found {found}")]
    Place {
        /// Name of the tensor.
        tensor: &'static str,
        /// The memory it must be in.
        expected: String,
        /// The memory it is in.
        found: Place,
    },
    /// A backend does not support the call.
    #[error("{backend}: expected {expected}, found {found}")]
    Unsupported {
        /// The backend.
        backend: &'static str,
        /// What it supports.
        expected: String,
        /// What the call asks for.
        found: String,
    },
    /// The CUDA driver, the compilation of a kernel or the device failed.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The processor lacks the requested instruction set.
    #[error("simd: expected a path this processor has ({available}), found {requested}")]
    SimdUnavailable {
        /// The path asked for.
        requested: &'static str,
        /// The paths this processor has.
        available: String,
    },
    /// A table of tuned choices cannot be used.
    #[error(
        "{}, line {line}: expected {expected}, found {found} (FOURTAP_TUNE=off disables tuning tables)",
        .file.display()
    )]
    Tuning {
        /// The table.
        file: std::path::PathBuf,
        /// The line number.
        line: usize,
        /// What the line must contain.
        expected: String,
        /// What it contains.
        found: String,
    },
    /// A workspace could not be allocated.
    #[error("workspace: expected {bytes} bytes of free memory, found less")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The call was given up before it was done: [`Cpu::cancelled_by`](crate::cpu::Cpu::cancelled_by).
    #[error("call: expected to run to its end, found its cancel flag set")]
    Cancelled,
}

#[cfg(feature = "cuda")]
impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        CudaError::from(error).into()
    }
}

#[cfg(feature = "cuda")]
impl From<JitError> for Error {
    fn from(error: JitError) -> Self {
        CudaError::from(error).into()
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
