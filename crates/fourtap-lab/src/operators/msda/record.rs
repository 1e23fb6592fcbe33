//! Deformable attention as recorded.

use std::any::Any;

use fourtap::msda::projections::ProjectedProblem;
use fourtap::msda::{Level, Problem, Sizes as LibrarySizes, Traffic};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::Msda;
use crate::cli::InputsChoice;
use crate::operators::Operator;
use crate::record::{DTypes, Sizes, TrafficCounts};

/// The sizes of a problem of deformable attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemSizes {
    /// N.
    pub images: usize,
    /// Q.
    pub queries: usize,
    /// M.
    pub heads: usize,
    /// D.
    pub channels: usize,
    /// P.
    pub points: usize,
    /// S.
    pub pixels: usize,
    /// (height, width) of each level.
    pub levels: Vec<[usize; 2]>,
    /// What it is computed from.
    #[serde(default, skip_serializing_if = "InputsChoice::is_given")]
    pub inputs: InputsChoice,
}

impl From<&Problem> for ProblemSizes {
    fn from(problem: &Problem) -> Self {
        ProblemSizes::new(problem.sizes(), problem.levels())
    }
}

impl ProblemSizes {
    /// Of these sizes and levels.
    pub fn new(sizes: &LibrarySizes, levels: &[Level]) -> Self {
        ProblemSizes {
            images: sizes.images,
            queries: sizes.queries,
            heads: sizes.heads,
            channels: sizes.channels,
            points: sizes.points,
            pixels: sizes.pixels,
            levels: levels
                .iter()
                .map(|level| [level.height, level.width])
                .collect(),
            inputs: InputsChoice::Given,
        }
    }
}

impl Sizes for ProblemSizes {
    fn operator(&self) -> &'static dyn Operator {
        &Msda
    }

    fn in_words(&self) -> Vec<String> {
        let levels = self.levels.iter();
        let levels: Vec<String> = levels.map(|[h, w]| format!("{h}x{w}")).collect();
        let mut words = vec![
            format!("N {}", self.images),
            format!("Q {}", self.queries),
            format!("M {}", self.heads),
            format!("D {}", self.channels),
            format!("P {}", self.points),
            format!("S {}", self.pixels),
            format!("levels {}", levels.join(" ")),
        ];
        words.extend(self.variant().map(|inputs| format!("from {inputs}")));
        words
    }

    fn variant(&self) -> Option<&'static str> {
        self.inputs.variant()
    }

    fn sampled_elements(&self) -> Option<f64> {
        let ProblemSizes {
            images,
            heads,
            channels,
            pixels,
            ..
        } = *self;
        Some(
            [images, heads, channels, pixels]
                .map(|size| size as f64)
                .iter()
                .product(),
        )
    }

    fn is_same(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }

    fn to_json(&self) -> serde_json::Result<Box<RawValue>> {
        to_raw_value(self)
    }
}

impl From<&Problem> for DTypes {
    fn from(problem: &Problem) -> Self {
        DTypes {
            value: problem.value().dtype().to_string(),
            locations: Some(problem.sampling_locations().dtype().to_string()),
            weights: Some(problem.attention_weights().dtype().to_string()),
        }
    }
}

impl From<&ProjectedProblem> for DTypes {
    fn from(problem: &ProjectedProblem) -> Self {
        DTypes {
            value: problem.value().dtype().to_string(),
            locations: Some(problem.sampling_offsets().dtype().to_string()),
            weights: Some(problem.attention_logits().dtype().to_string()),
        }
    }
}

impl From<Traffic> for TrafficCounts {
    fn from(traffic: Traffic) -> Self {
        let Traffic {
            compulsory_bytes,
            gathered_bytes,
            flop,
        } = traffic;
        TrafficCounts {
            compulsory_bytes,
            gathered_bytes,
            flop,
        }
    }
}
