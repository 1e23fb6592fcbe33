//! How kernels are assembled: concatenated sources and preprocessor symbols.

use std::fmt;

use super::jit::{Architecture, Program};
use super::source_hash::source_hash;
use crate::dtype::DType;

/// Sources that kernels of both operators share.
pub(super) mod sources {
    pub const TYPES: &str = include_str!("../../kernels/common/types.cuh");
    pub const DIVISOR: &str = include_str!("../../kernels/common/divisor.cuh");
    pub const MEMORY: &str = include_str!("../../kernels/common/memory.cuh");
    pub const OVERLAP: &str = include_str!("../../kernels/common/overlap.cuh");
    pub const COPY: &str = include_str!("../../kernels/common/copy.cuh");
    pub const MATRIX: &str = include_str!("../../kernels/common/matrix.cuh");
    pub const ASYNC: &str = include_str!("../../kernels/common/async.cuh");
    pub const GROUP_MATRIX: &str = include_str!("../../kernels/common/group_matrix.cuh");
    pub const ARITHMETIC: &str = include_str!("../../kernels/common/arithmetic.cuh");
}

/// Names and values of preprocessor symbols.
pub type Defines = Vec<(&'static str, String)>;

/// A source and its specialisation. Its `Display` is a short readable name, which cache entries use too.
pub trait Recipe: fmt::Display {
    /// Its function's name.
    fn entry(&self) -> &'static str;
    /// The parts of its source, in order.
    fn parts(&self) -> &'static [&'static str];
    /// The symbols it is specialised by.
    fn defines(&self) -> Defines;
    /// The one architecture it is for, if there is one.
    fn only_for(&self) -> Option<&'static str> {
        None
    }
    /// How launches use shared memory beyond what the source declares.
    fn dynamic_shared(&self) -> DynamicShared {
        DynamicShared::None
    }
}

/// Shared memory that launches ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DynamicShared {
    /// None.
    None,
    /// Some; the driver chooses the split between shared memory and L1.
    Some,
    /// Some, at most this many bytes per multiprocessor: L1 needs the rest.
    AtMost(u32),
    /// All there is: the data bypasses L1.
    All,
}

/// A kernel of an operator, specialised for a kind of problem.
pub trait SpecialisedKernel: fmt::Display + Send + Sync {
    /// Its source and symbols.
    #[doc(hidden)]
    fn recipe(&self) -> Box<dyn Recipe + '_>;

    /// Its function's name.
    fn entry(&self) -> &'static str {
        self.recipe().entry()
    }

    /// Whether it can be compiled for an architecture.
    fn is_for(&self, architecture: Architecture) -> bool {
        let only = self.recipe().only_for();
        only.is_none_or(|name| architecture.to_string() == name)
    }

    /// Hash of its source, as in [`super::shipped`].
    fn source_hash(&self) -> String {
        source_hash(self.recipe().parts())
    }

    /// The program to compile for `architecture`.
    fn program(&self, architecture: Architecture) -> Program {
        let recipe = self.recipe();
        Program {
            name: recipe.to_string(),
            source: recipe.parts().concat(),
            options: options(&*recipe),
            architecture,
        }
    }
}

/// The compiler options.
pub(super) fn options(recipe: &dyn Recipe) -> Vec<String> {
    let option = |(name, value): &(&str, String)| format!("-D{name}={value}");
    recipe.defines().iter().map(option).collect()
}

pub(super) fn name(dtype: DType) -> String {
    dtype.to_string().to_uppercase()
}

pub(super) fn number(number: u32) -> String {
    number.to_string()
}

pub(super) fn flag(flag: bool) -> String {
    (flag as u32).to_string()
}

/// A kernel that this library ships, without its specialisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShippedKernel {
    /// Its function's name.
    pub entry: &'static str,
    /// Hash of its source but for comments and blank space, in hexadecimal digits. Records of GPU test runs refer to it.
    pub source_hash: String,
}

impl ShippedKernel {
    pub(super) fn new(&(entry, parts): &(&'static str, &[&str])) -> Self {
        ShippedKernel {
            entry,
            source_hash: source_hash(parts),
        }
    }
}
