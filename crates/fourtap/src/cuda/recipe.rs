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
pub(super) type Defines = Vec<(&'static str, String)>;

/// A kernel and what it is compiled for.
pub(super) trait Recipe: fmt::Display {
    /// Its function's name.
    fn entry(&self) -> &'static str;
    /// What its source is put together from.
    fn parts(&self) -> &'static [&'static str];
    /// What it is specialised by.
    fn defines(&self) -> Defines;
}

/// What `recipe` compiles from, for `architecture`.
pub(super) fn program(recipe: &dyn Recipe, architecture: Architecture) -> Program {
    let option = |(name, value): &(&str, String)| format!("-D{name}={value}");
    Program {
        name: recipe.to_string(),
        source: recipe.parts().concat(),
        options: recipe.defines().iter().map(option).collect(),
        architecture,
    }
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
pub struct Shipped {
    /// Its function's name.
    pub entry: &'static str,
    /// Hash of its source, in hexadecimal digits. Evidence that it works is kept under it.
    pub source_hash: String,
}

impl Shipped {
    pub(super) fn new(&(entry, parts): &(&'static str, &[&str])) -> Self {
        Shipped {
            entry,
            source_hash: hash(parts),
        }
    }
}

pub(super) fn hash(parts: &[&str]) -> String {
    blake3::hash(parts.concat().as_bytes()).to_hex().to_string()
}
