//! What options can be set to.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use fourtap::cpu::Simd;
use fourtap::cuda::msda;
use fourtap::verify::Distribution;
use serde::{Deserialize, Serialize};

pub use fourtap_admin::choices::{CoordinatesChoice, DTypeChoice};

/// `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best there is.
    Auto,
    /// This processor.
    Cpu,
    /// The GPU of this number.
    Cuda(u32),
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().map(DeviceChoice::Cuda);
        match text {
            "auto" => Some(DeviceChoice::Auto),
            "cpu" => Some(DeviceChoice::Cpu),
            "cuda" => Some(DeviceChoice::Cuda(0)),
            other => other.strip_prefix("cuda:").and_then(number),
        }
        .ok_or_else(|| "expected auto, cpu or cuda:N".to_string())
    }
}

/// `--devices`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DevicesChoice {
    /// Every one that is visible.
    All,
}

/// `--simd`. Variants have no comments, here and below: `--help` would spend a paragraph on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SimdChoice {
    Amx,
    Avx512,
    Avx2,
    Portable,
}

impl From<SimdChoice> for Simd {
    fn from(choice: SimdChoice) -> Simd {
        match choice {
            SimdChoice::Amx => Simd::Amx,
            SimdChoice::Avx512 => Simd::Avx512,
            SimdChoice::Avx2 => Simd::Avx2,
            SimdChoice::Portable => Simd::Portable,
        }
    }
}

/// `--kernel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KernelChoice {
    Best,
    Gather,
    Channel,
}

impl KernelChoice {
    /// As typed and recorded.
    pub fn name(self) -> &'static str {
        match self {
            KernelChoice::Best => "best",
            KernelChoice::Gather => "gather",
            KernelChoice::Channel => "channel",
        }
    }
}

impl From<KernelChoice> for msda::KernelChoice {
    fn from(choice: KernelChoice) -> Self {
        match choice {
            KernelChoice::Best => msda::KernelChoice::Best,
            KernelChoice::Gather => msda::KernelChoice::Gather,
            KernelChoice::Channel => msda::KernelChoice::Channel,
        }
    }
}

impl From<KernelChoice> for msda::Options {
    fn from(choice: KernelChoice) -> Self {
        msda::KernelChoice::from(choice).into()
    }
}

/// Which pass is timed: the output, or all three gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    Forward,
    Backward,
}

impl Direction {
    /// Both, in the order they are timed.
    pub const ALL: [Direction; 2] = [Direction::Forward, Direction::Backward];

    /// As typed and recorded.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        }
    }

    /// As a heading.
    pub fn title(self) -> &'static str {
        match self {
            Direction::Forward => "Forward",
            Direction::Backward => "Backward",
        }
    }
}

/// What deformable attention is computed from: sampling locations and attention weights, or what linear layers put out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputsChoice {
    #[default]
    Given,
    Projections,
}

impl InputsChoice {
    /// Whether it is what records and names do not mention.
    pub fn is_given(&self) -> bool {
        *self == InputsChoice::Given
    }

    /// As typed and recorded, unless it is the usual.
    pub fn variant(self) -> Option<&'static str> {
        match self {
            InputsChoice::Given => None,
            InputsChoice::Projections => Some("projections"),
        }
    }
}

/// For an option that says where the sampling points of a made-up problem lie.
pub fn distributions() -> impl TypedValueParser<Value = Distribution> {
    let names = Distribution::ALL.map(|(_, name)| name);
    PossibleValuesParser::new(names).try_map(|name| {
        let mut all = Distribution::ALL.into_iter();
        let found = all.find(|(_, known)| *known == name);
        found
            .map(|(distribution, _)| distribution)
            .ok_or("no such distribution")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_devices() {
        assert_eq!("cuda:3".parse(), Ok(DeviceChoice::Cuda(3)));
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        assert!("cuda:-1".parse::<DeviceChoice>().is_err());
        assert!("gpu".parse::<DeviceChoice>().is_err());
    }
}
