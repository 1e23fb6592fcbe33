//! How kernels are put together: sources one after the other, and what they are specialised by.

use std::fmt;

use super::jit::{Architecture, Program};
use crate::dtype::DType;

/// Sources that kernels of both operators share.
pub(super) mod sources {
    pub const TYPES: &str = include_str!("../../kernels/common/types.cuh");
    pub const DIVISOR: &str = include_str!("../../kernels/common/divisor.cuh");
    pub const MEMORY: &str = include_str!("../../kernels/common/memory.cuh");
    pub const COPY: &str = include_str!("../../kernels/common/copy.cuh");
    pub const MATRIX: &str = include_str!("../../kernels/common/matrix.cuh");
    pub const ARITHMETIC: &str = include_str!("../../kernels/common/arithmetic.cuh");
}

/// Names and values of preprocessor symbols.
pub type Defines = Vec<(&'static str, String)>;

/// A source and what it is compiled for. Its `Display` is short and speaking: it names cache entries too.
pub trait Recipe: fmt::Display {
    /// Its function's name.
    fn entry(&self) -> &'static str;
    /// What its source is put together from.
    fn parts(&self) -> &'static [&'static str];
    /// What it is specialised by.
    fn defines(&self) -> Defines;
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
    /// Some; how a multiprocessor divides its fast memory is left to the driver.
    Some,
    /// Some, at most so many bytes of a multiprocessor: first-level cache needs the rest.
    AtMost(u32),
    /// All there is: what passes through it is read past the cache.
    All,
}

/// A kernel of an operator, compiled for a kind of problem: the one way from it to its source.
pub trait SpecialisedKernel: fmt::Display + Send + Sync {
    /// What it is made of.
    #[doc(hidden)]
    fn recipe(&self) -> Box<dyn Recipe + '_>;

    /// Its function's name.
    fn entry(&self) -> &'static str {
        self.recipe().entry()
    }

    /// Hash of its source, as [`super::shipped`] has it.
    fn source_hash(&self) -> String {
        hash(self.recipe().parts())
    }

    /// To compile for `architecture`.
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

/// What the compiler is told.
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

/// A kernel this library ships, whatever it is specialised for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShippedKernel {
    /// Its function's name.
    pub entry: &'static str,
    /// Hash of its source, in hexadecimal digits. Evidence that it works is kept under it.
    pub source_hash: String,
}

impl ShippedKernel {
    pub(super) fn new(&(entry, parts): &(&'static str, &[&str])) -> Self {
        ShippedKernel {
            entry,
            source_hash: hash(parts),
        }
    }
}

fn hash(parts: &[&str]) -> String {
    blake3::hash(parts.concat().as_bytes()).to_hex().to_string()
}
