//! An operator's tensors in a safetensors file.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use fourtap::{BoolView, DType, Layout, View};
use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::array::{ALIGNMENT, Array};
use crate::error::{Error, Result};
use crate::header;
use crate::nearest::nearest;
use crate::operators::{OPERATORS, Operator};

/// A tensor by name, its axes and how many they are.
pub type TensorSpec = (&'static str, &'static str, usize);

/// For a tensor with more than one possible number of axes: the operator checks it.
pub const ANY_RANK: usize = 0;

/// A file in memory, read as it is touched.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// Maps the file at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::Read {
            file: path.to_path_buf(),
            source,
        };
        // Looked at before it is opened: opening a pipe would wait for somebody to write to it.
        let kind = fs::metadata(path).map_err(failed)?;
        if !kind.is_file() {
            let found = if kind.is_dir() {
                "a folder"
            } else {
                "something else"
            };
            return Err(Error::NotAFile {
                file: path.to_path_buf(),
                found,
            });
        }
        let file = File::open(path).map_err(failed)?;
        // SAFETY: the map is only read. That nobody changes the file meanwhile cannot be enforced; like every
        // program that maps files, this one relies on it.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        Ok(MappedFile {
            path: path.to_path_buf(),
            map,
        })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it has a tensor of this name; a file that cannot be read has none.
    pub fn has(&self, name: &str) -> bool {
        let parsed = SafeTensors::deserialize(&self.map);
        parsed.is_ok_and(|parsed| parsed.tensor(name).is_ok())
    }

    /// Whose tensors these are. A file that cannot be read, or is nobody's, is left to the first operator to complain of.
    pub fn operator(&self) -> &'static dyn Operator {
        let Ok(parsed) = SafeTensors::deserialize(&self.map) else {
            return OPERATORS[0];
        };
        let is_there = |name: &str| parsed.tensor(name).is_ok();
        let mut all = OPERATORS.into_iter();
        all.find(|it| it.has_tensors(&is_there))
            .unwrap_or(OPERATORS[0])
    }

    /// The file's own entries beside the tensors.
    pub fn metadata(&self) -> HashMap<String, String> {
        let metadata = SafeTensors::read_metadata(&self.map).ok();
        metadata
            .and_then(|(_, metadata)| metadata.metadata().clone())
            .unwrap_or_default()
    }

    /// That its tensors do not fit each other.
    pub fn misfit(&self, source: fourtap::Error) -> Error {
        let source = Box::new(source);
        Error::Tensors {
            file: self.path.clone(),
            source,
        }
    }
}

/// A tensor that is read where it lies if it can be.
#[derive(Debug)]
pub enum Source<'a> {
    /// In somebody else's memory.
    Borrowed(View<'a>),
    /// In its own.
    Owned(Array),
}

impl Source<'_> {
    /// To read.
    pub fn view(&self) -> View<'_> {
        match self {
            Source::Borrowed(view) => *view,
            Source::Owned(array) => array.view(),
        }
    }
}

/// Which tensors are copied to memory of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Those that cannot be read where they lie.
    AsItLies,
    /// Also those that do not begin at a cache line, so that timings do not depend on the length of a header.
    Aligned,
}

/// A parsed header, and its file for messages.
pub struct Reader<'a> {
    file: &'a MappedFile,
    parsed: SafeTensors<'a>,
    placement: Placement,
    known: &'static [TensorSpec],
}

impl<'a> Reader<'a> {
    pub fn new(
        file: &'a MappedFile,
        placement: Placement,
        known: &'static [TensorSpec],
    ) -> Result<Self> {
        let parsed = SafeTensors::deserialize(&file.map).map_err(|error| Error::Header {
            file: file.path.clone(),
            found: header::explain(&file.map, &error),
        })?;
        Ok(Reader {
            file,
            parsed,
            placement,
            known,
        })
    }

    /// That its tensors do not fit each other.
    pub fn misfit(&self, source: fourtap::Error) -> Error {
        self.file.misfit(source)
    }

    fn is_known(&self, name: &str) -> bool {
        self.known.iter().any(|(known, ..)| *known == name)
    }

    /// Names that mean nothing here.
    pub fn ignored(&self) -> Vec<String> {
        let names = self.parsed.names().into_iter();
        let mut ignored: Vec<String> = names
            .filter(|name| !self.is_known(name))
            .map(String::from)
            .collect();
        ignored.sort();
        ignored
    }

    /// The tensor of this name, if it is there and of the right rank.
    pub fn find(&self, tensor: &'static str) -> Result<Option<TensorView<'a>>> {
        let Ok(view) = self.parsed.tensor(tensor) else {
            return Ok(None);
        };
        let found = view.shape().len();
        let known = self.known.iter().find(|(name, ..)| *name == tensor);
        match known.filter(|(.., rank)| ![ANY_RANK, found].contains(rank)) {
            None => Ok(Some(view)),
            Some(&(_, axes, expected)) => {
                let rank = fourtap::Error::Rank {
                    tensor,
                    expected,
                    axes,
                    found,
                };
                Err(self.file.misfit(rank))
            }
        }
    }

    pub fn missing(&self, tensor: &'static str) -> Error {
        let mut names = self.parsed.names();
        names.sort_unstable();
        let unknown = names.iter().copied().filter(|name| !self.is_known(name));
        Error::MissingTensor {
            file: self.file.path.clone(),
            tensor,
            near: nearest(tensor, unknown).map(String::from),
            found: match names.len() {
                0 => "no tensors".to_string(),
                1..=12 => format!("only {}", names.join(", ")),
                more => format!("{more} others: {}, ...", names[..12].join(", ")),
            },
        }
    }

    fn wrong_type(&self, tensor: &'static str, expected: &'static str, found: Dtype) -> Error {
        Error::TensorType {
            file: self.file.path.clone(),
            tensor,
            expected,
            found: found.to_string(),
        }
    }

    pub fn required(&self, tensor: &'static str) -> Result<Source<'a>> {
        self.numbers(tensor)?.ok_or_else(|| self.missing(tensor))
    }

    pub fn numbers(&self, tensor: &'static str) -> Result<Option<Source<'a>>> {
        let Some(view) = self.find(tensor)? else {
            return Ok(None);
        };
        let dtype = match view.dtype() {
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::F32 => DType::F32,
            Dtype::F64 => DType::F64,
            other => return Err(self.wrong_type(tensor, "F16, BF16, F32 or F64", other)),
        };
        let (shape, data) = (view.shape(), view.data());
        // The format does not even align tensors to their element size.
        let multiple = match self.placement {
            Placement::AsItLies => dtype.size(),
            Placement::Aligned => ALIGNMENT,
        };
        if !data.as_ptr().addr().is_multiple_of(multiple) {
            return Array::copied(tensor, dtype, shape, data)
                .map(|array| Some(Source::Owned(array)));
        }
        // SAFETY: the parser has shown that `data`, which lives as long as the map, is as long as shape and type say.
        let view = unsafe { View::from_raw(data.as_ptr(), Layout::contiguous(dtype, shape)) };
        Ok(Some(Source::Borrowed(view)))
    }

    /// A row-major tensor of booleans, if it is there.
    pub fn mask(&self, tensor: &'static str) -> Result<Option<BoolView<'a>>> {
        let Some(view) = self.find(tensor)? else {
            return Ok(None);
        };
        if !matches!(view.dtype(), Dtype::BOOL | Dtype::U8) {
            return Err(self.wrong_type(tensor, "BOOL or U8", view.dtype()));
        }
        let (shape, data) = (view.shape(), view.data());
        let axes = 1..=shape.len();
        let strides: Vec<isize> = axes
            .map(|axis| shape[axis..].iter().product::<usize>() as isize)
            .collect();
        // SAFETY: the parser has shown that `data`, which lives as long as the map, is as long as the shape says.
        Ok(Some(unsafe {
            BoolView::from_raw(data.as_ptr(), shape, &strides)
        }))
    }

    pub fn integers(&self, tensor: &'static str) -> Result<Option<Vec<i64>>> {
        let Some(view) = self.find(tensor)? else {
            return Ok(None);
        };
        let data = view.data();
        let numbers = match view.dtype() {
            Dtype::I64 => data
                .as_chunks()
                .0
                .iter()
                .map(|&n| i64::from_le_bytes(n))
                .collect(),
            Dtype::I32 => data
                .as_chunks()
                .0
                .iter()
                .map(|&n| i32::from_le_bytes(n).into())
                .collect(),
            other => return Err(self.wrong_type(tensor, "I64 or I32", other)),
        };
        Ok(Some(numbers))
    }
}
