//! Problems by name, of either operator.

mod dense;
mod msda;

use std::fs;
use std::path::Path;

use clap::ValueEnum;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

pub use dense::{Corner, DenseWorkload};
pub use msda::{Queries, Reference, Workload};

/// What is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Operator {
    /// Multi-scale deformable attention.
    #[default]
    Msda,
    /// Dense attention.
    Dense,
}

impl Operator {
    /// Both, in the order they are shown.
    pub const ALL: [Operator; 2] = [Operator::Msda, Operator::Dense];

    /// As typed and recorded.
    pub fn name(self) -> &'static str {
        match self {
            Operator::Msda => "msda",
            Operator::Dense => "dense",
        }
    }

    /// In words.
    pub fn in_words(self) -> &'static str {
        match self {
            Operator::Msda => "deformable attention",
            Operator::Dense => "dense attention",
        }
    }

    /// The names of its built-in workloads.
    pub fn workloads(self) -> Vec<&'static str> {
        match self {
            Operator::Msda => Workload::names().collect(),
            Operator::Dense => DenseWorkload::names().collect(),
        }
    }
}

/// A problem of either operator, to be filled with random numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnyWorkload {
    /// Of deformable attention.
    Msda(Workload),
    /// Of dense attention.
    Dense(DenseWorkload),
}

impl AnyWorkload {
    /// The built-in workload of this name.
    pub fn built_in(name: &str) -> Option<Result<Self>> {
        if let Some(workload) = Workload::built_in(name) {
            return Some(workload.map(AnyWorkload::Msda));
        }
        let (name, text) = dense::BUILT_IN.iter().find(|(known, _)| *known == name)?;
        Some(AnyWorkload::parse(name, text))
    }

    /// The workload in the file at `path`.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |source| Error::Read {
            file: path.to_path_buf(),
            source,
        };
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(Error::NotAFile {
                file: path.to_path_buf(),
                found: "a folder",
            });
        }
        AnyWorkload::parse(
            &path.display().to_string(),
            &fs::read_to_string(path).map_err(failed)?,
        )
    }

    fn parse(origin: &str, text: &str) -> Result<Self> {
        /// What else there is depends on it.
        #[derive(Deserialize)]
        struct Of {
            #[serde(default)]
            operator: Operator,
        }
        let Of { operator } = parsed(origin, text)?;
        match operator {
            Operator::Msda => Workload::parse(origin, text).map(AnyWorkload::Msda),
            Operator::Dense => DenseWorkload::parse(origin, text).map(AnyWorkload::Dense),
        }
    }

    /// What is computed of it.
    pub fn operator(&self) -> Operator {
        match self {
            AnyWorkload::Msda(_) => Operator::Msda,
            AnyWorkload::Dense(_) => Operator::Dense,
        }
    }

    /// The same with another number of images, or of sequences.
    pub fn with_batch(self, batch: u32) -> Result<Self> {
        match self {
            AnyWorkload::Msda(workload) => workload.with_images(batch).map(AnyWorkload::Msda),
            AnyWorkload::Dense(workload) => workload.with_batch(batch).map(AnyWorkload::Dense),
        }
    }
}

/// A text of the form that `T` has, or in words what is wrong with it.
fn parsed<T: DeserializeOwned>(origin: &str, text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| Error::Workload {
        origin: origin.to_string(),
        found: error.to_string().trim_end().to_string(),
    })
}
