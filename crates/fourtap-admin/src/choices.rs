//! Values of the options for element types.

use clap::ValueEnum;
use fourtap::DType;

/// `--coordinates`: the element type of sampling_locations and attention_weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(
    missing_docs,
    reason = "`--help` would spend a paragraph on each variant"
)]
pub enum CoordinatesChoice {
    F32,
    Value,
}

impl CoordinatesChoice {
    /// Their type, given the type of `value`.
    pub fn dtype(self, value: DType) -> DType {
        match self {
            CoordinatesChoice::F32 => DType::F32,
            CoordinatesChoice::Value => value,
        }
    }
}

/// `bake --inputs`: sampling locations and attention weights, or projections from reference points or boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(
    missing_docs,
    reason = "`--help` would spend a paragraph on each variant"
)]
pub enum BakeInputs {
    Given,
    Points,
    Boxes,
}

/// `--dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(
    missing_docs,
    reason = "`--help` would spend a paragraph on each variant"
)]
pub enum DTypeChoice {
    F32,
    F16,
    Bf16,
    F64,
}

impl From<DTypeChoice> for DType {
    fn from(choice: DTypeChoice) -> DType {
        match choice {
            DTypeChoice::F32 => DType::F32,
            DTypeChoice::F16 => DType::F16,
            DTypeChoice::Bf16 => DType::BF16,
            DTypeChoice::F64 => DType::F64,
        }
    }
}
