//! Levels as users pass them: a tensor on the host or the device, or a list of pairs.

use fourtap::msda::{CudaLevels, LevelTable, Levels};
use fourtap::{Error, Place};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::errors::{Kind, raise, unexpected};
use crate::frameworks::Framework;
use crate::tensor::{Element, Tensor};

/// The levels of a call, and the tensors that must live as long as they are used.
pub enum LevelsArgument<'py> {
    Host(Levels),
    Cuda(
        CudaLevels,
        #[expect(dead_code, reason = "held")] [Option<Bound<'py, PyAny>>; 2],
    ),
}

impl<'py> LevelsArgument<'py> {
    /// The levels of a call whose `value` is in `place`.
    pub fn new(
        framework: &impl Framework,
        place: Place,
        shapes: &Bound<'py, PyAny>,
        starts: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let py = shapes.py();
        let mut of_shapes = None;
        if framework.owns(shapes)? {
            let (shapes, described) = &whole_numbers(framework, "spatial_shapes", shapes)?;
            expect_sizes(py, described, "[L, 2]", |sizes| matches!(sizes, [_, 2]))?;
            if described.place != Place::Host {
                return LevelsArgument::on_device(framework, place, (shapes, described), starts);
            }
            of_shapes = Some(read(described));
        }
        let numbers = match of_shapes {
            Some(numbers) => numbers,
            None => pairs(shapes)?,
        };
        if let Some(starts) = starts
            && framework.owns(starts)?
            && framework.describe("level_start_index", starts)?.place != Place::Host
        {
            // Reading the starts would wait for the device, so the shapes are copied to the device instead.
            let shapes = framework.beside(&numbers, starts)?;
            let described = framework.describe("spatial_shapes", &shapes)?;
            return LevelsArgument::on_device(
                framework,
                place,
                (&shapes, &described),
                Some(starts),
            );
        }
        let starts = starts
            .map(|starts| first_pixels(framework, starts))
            .transpose()?;
        let levels =
            Levels::from_i64(&numbers, starts.as_deref()).map_err(|error| raise(py, error))?;
        Ok(LevelsArgument::Host(levels))
    }

    fn on_device(
        framework: &impl Framework,
        place: Place,
        (shapes, described): (&Bound<'py, PyAny>, &Tensor),
        starts: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let py = shapes.py();
        let wrong_place = |tensor, expected: Place, found| {
            let expected = format!(
                "{expected} (where {} is)",
                if tensor == "spatial_shapes" {
                    "value"
                } else {
                    "spatial_shapes"
                }
            );
            raise(
                py,
                Error::Place {
                    tensor,
                    expected,
                    found,
                },
            )
        };
        let Place::Cuda { ordinal } = place else {
            return Err(wrong_place("spatial_shapes", place, described.place));
        };
        if described.place != place {
            return Err(wrong_place("spatial_shapes", place, described.place));
        }
        let count = described.sizes[0];
        let (shapes, at_shapes) = as_int64(framework, shapes, described)?;
        let (starts, at_starts) = match starts {
            None => (None, None),
            Some(starts) => {
                let (starts, described) = &whole_numbers(framework, "level_start_index", starts)?;
                if described.place != place {
                    return Err(wrong_place("level_start_index", place, described.place));
                }
                expect_sizes(py, described, &format!("[{count}]"), |sizes| {
                    sizes == [count]
                })?;
                let (starts, address) = as_int64(framework, starts, described)?;
                (Some(starts), Some(address as u64))
            }
        };
        // SAFETY: both are contiguous int64 of that many levels on this device; they are kept alive with it, and work
        // queued on the current stream reads them before their memory can be reused.
        let levels = unsafe { CudaLevels::new(ordinal, count, at_shapes as u64, at_starts) };
        Ok(LevelsArgument::Cuda(levels, [Some(shapes), starts]))
    }

    /// As many levels in device memory, for a check: they must not be launched with.
    pub fn unread(count: usize) -> Self {
        // SAFETY: nothing reads them.
        let levels = unsafe { CudaLevels::new(0, count, 0, None) };
        LevelsArgument::Cuda(levels, [None, None])
    }

    /// The library's type.
    pub fn table(&self) -> LevelTable<'_> {
        match self {
            LevelsArgument::Host(levels) => levels.into(),
            LevelsArgument::Cuda(levels, _) => (*levels).into(),
        }
    }
}

/// Refuses a tensor of anything but integers.
pub fn expect_integers(
    name: &'static str,
    object: &Bound<'_, PyAny>,
    described: &Tensor,
) -> PyResult<()> {
    if matches!(described.element, Element::Int32 | Element::Int64) {
        return Ok(());
    }
    let found = object.getattr("dtype")?.to_string();
    let bits = found.strip_prefix("torch.").unwrap_or(&found);
    if matches!(
        bits,
        "int8" | "int16" | "uint8" | "uint16" | "uint32" | "uint64"
    ) {
        return Ok(());
    }
    let expected = "element type int64 or another of integers";
    Err(unexpected(object.py(), Kind::DType, name, expected, found))
}

/// A tensor of integers, and its description: the tensor itself if it is of int32 or int64, else a copy in int64.
fn whole_numbers<'py>(
    framework: &impl Framework,
    name: &'static str,
    object: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyAny>, Tensor)> {
    let described = framework.describe(name, object)?;
    expect_integers(name, object, &described)?;
    if matches!(described.element, Element::Int32 | Element::Int64) {
        return Ok((object.clone(), described));
    }
    let copy = framework.dense_int64(object)?;
    let described = framework.describe(name, &copy)?;
    Ok((copy, described))
}

/// Refuses a tensor of another shape.
pub fn expect_sizes(
    py: Python<'_>,
    tensor: &Tensor,
    expected: &str,
    fits: impl Fn(&[usize]) -> bool,
) -> PyResult<()> {
    if fits(&tensor.sizes) {
        return Ok(());
    }
    let expected = format!("shape {expected}");
    let found = format!("{:?}", tensor.sizes);
    Err(unexpected(py, Kind::Input, tensor.name, &expected, found))
}

/// The tensor, or a copy of it that kernels can read, and its address.
fn as_int64<'py>(
    framework: &impl Framework,
    object: &Bound<'py, PyAny>,
    described: &Tensor,
) -> PyResult<(Bound<'py, PyAny>, usize)> {
    let mut step = 1;
    let dense = described
        .sizes
        .iter()
        .zip(described.strides.iter())
        .rev()
        .all(|(&size, &stride)| {
            let fits = size <= 1 || stride == step;
            step *= size as isize;
            fits
        });
    if dense && described.element == Element::Int64 {
        return Ok((object.clone(), described.address));
    }
    let copy = framework.dense_int64(object)?;
    let address = framework.describe(described.name, &copy)?.address;
    Ok((copy, address))
}

/// All numbers of a tensor of one or two axes in host memory.
fn read(tensor: &Tensor) -> Vec<i64> {
    let (rows, columns) = match *tensor.sizes {
        [rows] => (rows, 1),
        [rows, columns] => (rows, columns),
        _ => (0, 0),
    };
    let step = |axis: usize| tensor.strides.get(axis).copied().unwrap_or(0);
    let at = |row: usize, column: usize| {
        let offset = row as isize * step(0) + column as isize * step(1);
        let first: *const u8 = std::ptr::with_exposed_provenance(tensor.address);
        // SAFETY: the framework describes that many integers in host memory that its tensor owns; the reads do not
        // require alignment.
        unsafe {
            match tensor.element {
                Element::Int32 => first.cast::<i32>().offset(offset).read_unaligned().into(),
                _ => first.cast::<i64>().offset(offset).read_unaligned(),
            }
        }
    };
    (0..rows)
        .flat_map(|row| (0..columns).map(move |column| (row, column)))
        .map(|(row, column)| at(row, column))
        .collect()
}

fn first_pixels(framework: &impl Framework, starts: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let py = starts.py();
    if framework.owns(starts)? {
        let (_copy, described) = whole_numbers(framework, "level_start_index", starts)?;
        expect_sizes(py, &described, "[L]", |sizes| sizes.len() == 1)?;
        return Ok(read(&described));
    }
    let numbers = || -> PyResult<Vec<i64>> {
        let numbers = starts.try_iter()?;
        numbers.map(|number| integer(&number?)).collect()
    };
    numbers().map_err(|error| {
        let expected = "a tensor or list of integers, one per level";
        not_integers(py, "level_start_index", expected, starts, &error)
    })
}

/// A number of a list. Booleans are integers to Python, but no count of pixels.
fn integer(number: &Bound<'_, PyAny>) -> PyResult<i64> {
    match number.is_instance_of::<PyBool>() {
        true => Err(PyTypeError::new_err("a boolean")),
        false => number.extract(),
    }
}

/// The exception for a list whose numbers cannot be read, because of `error`.
fn not_integers(
    py: Python<'_>,
    name: &'static str,
    expected: &str,
    list: &Bound<'_, PyAny>,
    error: &PyErr,
) -> PyErr {
    match error.is_instance_of::<PyOverflowError>(py) {
        true => {
            let expected = "integers that fit into 64 bits";
            unexpected(py, Kind::Input, name, expected, shown(list))
        }
        false => unexpected(py, Kind::DType, name, expected, shown(list)),
    }
}

/// Enough for the levels of any common model.
const USUAL_ROOM: usize = 16;

/// (height, width) of any sequence of pairs, one after another.
pub fn pairs(shapes: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let py = shapes.py();
    let refused = |error: PyErr| {
        let expected = "a tensor [L, 2] or a list of (height, width) pairs of integers";
        not_integers(py, "spatial_shapes", expected, shapes, &error)
    };
    let mut numbers = Vec::with_capacity(USUAL_ROOM);
    for pair in shapes.try_iter().map_err(refused)? {
        let pair = pair.map_err(refused)?;
        // Tuples, the usual case, are read without an iterator.
        let (height, width): (i64, i64) = match pair.extract() {
            // Only these may have been booleans.
            Ok((height, width)) if !matches!(height, 0 | 1) && !matches!(width, 0 | 1) => {
                (height, width)
            }
            _ => any_pair(&pair).map_err(refused)?,
        };
        numbers.extend([height, width]);
    }
    Ok(numbers)
}

fn any_pair(pair: &Bound<'_, PyAny>) -> PyResult<(i64, i64)> {
    let numbers = pair.try_iter()?.map(|number| integer(&number?));
    match *numbers.collect::<PyResult<Vec<i64>>>()? {
        [height, width] => Ok((height, width)),
        _ => Err(PyValueError::new_err("not a pair")),
    }
}

/// An argument as text, shortened.
pub fn shown(object: &Bound<'_, PyAny>) -> String {
    let text = object
        .repr()
        .map_or_else(|_| "something else".to_string(), |repr| repr.to_string());
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
