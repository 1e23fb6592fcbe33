//! Levels as users pass them: a tensor on the host or the device, or a list of pairs.

use fourtap::msda::{CudaLevels, LevelTable, Levels};
use fourtap::{Error, Place};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::{Kind, raise, unexpected};
use crate::frameworks::{Describe, Framework};
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
            let described = whole_numbers(framework, "spatial_shapes", shapes)?;
            expect_sizes(py, &described, "[L, 2]", |sizes| matches!(sizes, [_, 2]))?;
            if described.place != Place::Host {
                return LevelsArgument::on_device(framework, place, (shapes, described), starts);
            }
            of_shapes = Some(described);
        }
        let numbers = match of_shapes {
            Some(described) => read(&described),
            None => pairs(shapes)?,
        };
        if let Some(starts) = starts
            && framework.owns(starts)?
            && framework.describe("level_start_index", starts)?.place != Place::Host
        {
            // Reading the starts would wait for the device, so the shapes are copied to the device instead.
            let shapes = framework.beside(&numbers, starts)?;
            let described = framework.describe("spatial_shapes", &shapes)?;
            return LevelsArgument::on_device(framework, place, (&shapes, described), Some(starts));
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
        (shapes, described): (&Bound<'py, PyAny>, Tensor),
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
        let (shapes, at_shapes) = as_int64(framework, shapes, &described)?;
        let (starts, at_starts) = match starts {
            None => (None, None),
            Some(starts) => {
                let described = whole_numbers(framework, "level_start_index", starts)?;
                if described.place != place {
                    return Err(wrong_place("level_start_index", place, described.place));
                }
                expect_sizes(py, &described, &format!("[{count}]"), |sizes| {
                    sizes == [count]
                })?;
                let (starts, address) = as_int64(framework, starts, &described)?;
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

/// Describes a tensor of integers.
pub fn whole_numbers(
    framework: &impl Describe,
    name: &'static str,
    object: &Bound<'_, PyAny>,
) -> PyResult<Tensor> {
    let described = framework.describe(name, object)?;
    if matches!(described.element, Element::Int32 | Element::Int64) {
        return Ok(described);
    }
    let found = object.getattr("dtype")?.to_string();
    let expected = "element type int64 or int32";
    Err(unexpected(object.py(), Kind::DType, name, expected, found))
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
        let described = whole_numbers(framework, "level_start_index", starts)?;
        expect_sizes(py, &described, "[L]", |sizes| sizes.len() == 1)?;
        return Ok(read(&described));
    }
    starts.extract().map_err(|_| {
        let expected = "a tensor or list of integers, one per level";
        unexpected(
            py,
            Kind::DType,
            "level_start_index",
            expected,
            shown(starts),
        )
    })
}

/// Enough for the levels of any common model.
const USUAL_ROOM: usize = 16;

/// (height, width) of any sequence of pairs, one after another.
pub fn pairs(shapes: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let py = shapes.py();
    let refused = |_| {
        let expected = "a tensor [L, 2] or a list of (height, width) pairs of integers";
        unexpected(py, Kind::DType, "spatial_shapes", expected, shown(shapes))
    };
    let mut numbers = Vec::with_capacity(USUAL_ROOM);
    for pair in shapes.try_iter().map_err(refused)? {
        let pair = pair.map_err(refused)?;
        // Tuples, the usual case, are read without an iterator.
        let (height, width): (i64, i64) = match pair.extract() {
            Ok(pair) => pair,
            Err(_) => any_pair(&pair).map_err(refused)?,
        };
        numbers.extend([height, width]);
    }
    Ok(numbers)
}

fn any_pair(pair: &Bound<'_, PyAny>) -> PyResult<(i64, i64)> {
    let numbers = pair.try_iter()?.map(|number| number?.extract());
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
