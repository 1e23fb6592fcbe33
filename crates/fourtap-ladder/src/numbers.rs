//! A problem of either operator with its tensors.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::TensorMapDesc;
use fourtap_lab::extension::record::RungOperator;
use fourtap_lab::extension::{Array, DeviceArray, Result, Rule, Verification};

use crate::plan::{Map, Shape};
use crate::{dense, msda};

/// The sizes of a problem that rungs can take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnyShape {
    /// Of deformable attention.
    Msda(Shape),
    /// Of dense attention.
    Dense(dense::Shape),
}

/// What rungs are given by value.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // copied once per problem
pub enum ProblemArgument {
    /// Those of deformable attention.
    Msda(msda::ProblemArgument),
    /// Those of dense attention.
    Dense(dense::ProblemArgument),
}

impl AnyShape {
    /// What stands before the source of every rung.
    pub fn header(&self) -> &'static str {
        match self {
            AnyShape::Msda(_) => msda::HEADER,
            AnyShape::Dense(_) => dense::HEADER,
        }
    }

    /// What every rung is compiled for.
    pub fn defines(&self) -> Vec<(&'static str, u32)> {
        match self {
            AnyShape::Msda(shape) => msda::defines(shape),
            AnyShape::Dense(shape) => dense::defines(shape),
        }
    }

    /// What rungs are given, with the addresses of the inputs, the result and scratch memory.
    pub fn argument(&self, inputs: [u64; 3], out: u64, scratch: u64) -> ProblemArgument {
        match self {
            AnyShape::Msda(shape) => {
                ProblemArgument::Msda(msda::ProblemArgument::new(shape, inputs, out, scratch))
            }
            AnyShape::Dense(shape) => {
                ProblemArgument::Dense(dense::ProblemArgument::new(shape, inputs, out, scratch))
            }
        }
    }

    /// What a map of a plan describes; none if the plan is of another operator.
    pub fn map(&self, map: &Map, inputs: [u64; 3]) -> Option<TensorMapDesc> {
        match (self, *map) {
            (AnyShape::Msda(shape), Map::Level { level, sides }) => {
                Some(msda::level_map(shape, level, sides, inputs[0]))
            }
            (AnyShape::Dense(shape), Map::Rows { input, rows }) => {
                Some(dense::rows_map(shape, input, rows, inputs[input]))
            }
            _ => None,
        }
    }
}

/// A problem with its tensors in host memory.
#[derive(Debug)]
pub enum Numbers {
    /// Of deformable attention.
    Msda(msda::Numbers),
    /// Of dense attention.
    Dense(dense::Numbers),
}

impl Numbers {
    /// The sizes, if rungs can take them; else in words, why not.
    pub fn shape(&self) -> Result<std::result::Result<AnyShape, String>> {
        Ok(match self {
            Numbers::Msda(numbers) => numbers.shape()?.map(AnyShape::Msda),
            Numbers::Dense(numbers) => numbers.shape().map(AnyShape::Dense),
        })
    }

    /// The inputs in the order of the kernels' arguments.
    pub fn inputs(&self) -> [&Array; 3] {
        match self {
            Numbers::Msda(numbers) => numbers.inputs(),
            Numbers::Dense(numbers) => numbers.inputs(),
        }
    }

    /// A result that is not a number anywhere.
    pub fn poisoned(&self) -> Result<Array> {
        match self {
            Numbers::Msda(numbers) => numbers.poisoned(),
            Numbers::Dense(numbers) => numbers.poisoned(),
        }
    }

    /// Compares sampled rows of a result, or without a seed every row.
    pub fn verify(&self, out: &Array, seed: Option<u64>, rule: Rule) -> Result<Verification> {
        match self {
            Numbers::Msda(numbers) => numbers.verify(out, seed, rule),
            Numbers::Dense(numbers) => numbers.verify(out, seed, rule),
        }
    }

    /// Queues the library's forward on copies of the inputs.
    pub fn queue_shipped(
        &self,
        cuda: &Cuda,
        inputs: &[DeviceArray; 3],
        out: &mut DeviceArray,
    ) -> Result<()> {
        match self {
            Numbers::Msda(numbers) => numbers.queue_shipped(cuda, inputs, out),
            Numbers::Dense(numbers) => numbers.queue_shipped(cuda, inputs, out),
        }
    }
}

/// A small problem, every element of which is compared.
#[derive(Clone, Copy, Debug)]
pub enum Small {
    /// Of deformable attention.
    Msda(msda::Small),
    /// Of dense attention.
    Dense(dense::Small),
}

impl Small {
    /// Sizes, as in an error message.
    pub fn in_words(&self) -> String {
        match self {
            Small::Msda(small) => small.in_words(),
            Small::Dense(small) => small.in_words(),
        }
    }

    /// Fresh numbers for it.
    pub fn numbers(&self, seed: u64) -> Result<Numbers> {
        Ok(match self {
            Small::Msda(small) => Numbers::Msda(small.numbers(seed)?),
            Small::Dense(small) => Numbers::Dense(small.numbers(seed)?),
        })
    }
}

/// Those that every rung of an operator must get right.
pub fn small_problems(operator: RungOperator) -> Vec<Small> {
    match operator {
        RungOperator::Msda => msda::SMALL.map(Small::Msda).to_vec(),
        RungOperator::Dense => dense::SMALL.map(Small::Dense).to_vec(),
    }
}
