//! Problems by name, of whatever operator.

use std::any::Any;
use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use fourtap::DType;
use fourtap::cuda::DeviceSize;
use fourtap::tuning::{Choice, Class};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{OPERATORS, Operator};
use crate::cli::{CaseArgs, Direction, Distribution};
use crate::computation::TensorSet;
use crate::error::{Error, Result};
use crate::explain::Case;
use crate::record::{DTypes, ProblemRecord};
use crate::tune::{Gpu, LaunchPlan, Points, threads};

/// A workload that is compiled in: its name, and the text of its file.
pub type BuiltIn = (&'static str, &'static str);

/// A problem to be filled with random numbers.
pub trait Workload: Any + Debug + Send + Sync {
    /// What is computed of it.
    fn operator(&self) -> &'static dyn Operator;

    /// What it is called.
    fn name(&self) -> &str;

    /// The same with another number of images, or of sequences.
    fn with_batch(&self, batch: u32) -> Result<Arc<dyn Workload>>;

    /// What its numbers are like if sampling points, should it have any, lie so.
    fn numbers(&self, points: Distribution) -> Numbers;

    /// The same computed from projections; none if its operator does not know them.
    fn with_projections(&self) -> Option<Arc<dyn Workload>> {
        None
    }

    /// What it is computed from, if that is not the usual; part of a benchmark's name.
    fn variant(&self) -> Option<&'static str> {
        None
    }

    /// Whether its operator's name does not stand for it on a processor, which would take long.
    fn takes_long_on_cpu(&self) -> Result<bool> {
        Ok(false)
    }

    /// Its sizes, for a record.
    fn problem(&self, dtype: DType) -> Result<ProblemRecord>;

    /// Its element types, for a record.
    fn dtypes(&self, filling: &DataSpec) -> DTypes;

    /// Which problems are like it.
    fn class(&self) -> Result<Class>;

    /// Bytes of memory to compute every pass in.
    fn bytes(&self, filling: &DataSpec) -> Result<u64>;

    /// Random numbers, the same on every machine.
    fn filled(&self, filling: &DataSpec) -> Result<Box<dyn TensorSet>>;

    /// One case of it, to be explained.
    fn case(&self, arguments: &CaseArgs) -> Result<Box<dyn Case>>;

    /// The library's plan for a pass on a CUDA device by a choice.
    fn planned(
        &self,
        device: DeviceSize,
        pass: (DType, Direction),
        choice: &Choice,
    ) -> Result<LaunchPlan>;

    /// Choices for the library's kernels on a CUDA device that are worth trying first.
    fn hints(&self, points: &Points, gpu: &Gpu) -> Vec<Choice> {
        threads(points, gpu)
    }
}

impl dyn Workload {
    /// As an operator's own type, if it is of that operator.
    pub fn downcast<W: Workload>(&self) -> Option<&W> {
        (self as &dyn Any).downcast_ref()
    }
}

/// How to generate the tensors of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSpec {
    /// Element type.
    pub dtype: DType,
    /// Element type of sampling locations and attention weights, if there are any.
    pub coordinates: DType,
    /// Where sampling points lie, if there are any.
    pub distribution: Distribution,
    /// Whether gradients are computed, too.
    pub backward: bool,
    /// The same seed, the same numbers.
    pub seed: u64,
}

/// What the numbers of a problem are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// As recorded.
    pub name: &'static str,
    /// Where sampling points lie; none where there are none, or a file has them.
    pub points: Option<Distribution>,
}

impl Numbers {
    /// All of the normal distribution.
    pub const NORMAL: Numbers = Numbers {
        name: "normal",
        points: None,
    };

    /// Those of a file.
    pub const FILE: Numbers = Numbers {
        name: "file",
        points: None,
    };
}

impl From<Distribution> for Numbers {
    fn from(points: Distribution) -> Self {
        Numbers {
            name: points.name(),
            points: Some(points),
        }
    }
}

/// The built-in workload of this name.
pub fn built_in(name: &str) -> Option<Result<Arc<dyn Workload>>> {
    OPERATORS.iter().find_map(|operator| {
        let mut all = operator.built_in().iter().chain(operator.unlisted());
        let (name, text) = all.find(|(known, _)| *known == name)?;
        Some(operator.workload(name, text))
    })
}

/// The workload in the file at `path`.
pub fn read(path: &Path) -> Result<Arc<dyn Workload>> {
    /// What else there is depends on it.
    #[derive(Deserialize)]
    struct OperatorField {
        #[serde(default = "usual")]
        operator: &'static dyn Operator,
    }
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
    let origin = path.display().to_string();
    let text = fs::read_to_string(path).map_err(failed)?;
    let OperatorField { operator } = parsed(&origin, &text)?;
    operator.workload(&origin, &text)
}

/// The operator of a workload that names none.
fn usual() -> &'static dyn Operator {
    OPERATORS[0]
}

/// A text of the form that `T` has, or in words what is wrong with it.
pub fn parsed<T: DeserializeOwned>(origin: &str, text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| Error::Workload {
        origin: origin.to_string(),
        found: error.to_string().trim_end().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_workloads_are_told_apart_and_say_whose_they_are() {
        let mut names = Vec::new();
        for operator in OPERATORS {
            names.push(operator.name());
            for (name, text) in operator.built_in().iter().chain(operator.unlisted()) {
                let workload = operator.workload(name, text).unwrap();
                assert_eq!(workload.name(), *name);
                assert_eq!(workload.operator(), operator);
                names.push(name);
            }
            let of_it = |name: &&str| built_in(name).unwrap().unwrap().operator() == operator;
            assert!(operator.quick_workloads().iter().all(of_it));
            assert!(of_it(&operator.tuning_workload()));
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
