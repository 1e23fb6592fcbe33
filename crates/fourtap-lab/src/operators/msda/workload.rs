//! Problems of deformable attention by name: sizes, and where the queries look.

use std::path::Path;
use std::sync::Arc;

use fourtap::DType;
use fourtap::cuda::DeviceSize;
use fourtap::msda::{Levels, Sizes};
use fourtap::tuning::{Choice, Class};
use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::explain::Case;
use super::projections::ProjectedTensors;
use super::queries::{Queries, Reference};
use super::tensors::Tensors;
use super::{Msda, ProblemSizes, tuning};
use crate::cli::{CaseArgs, Direction, Distribution, InputsChoice};
use crate::computation::TensorSet;
use crate::error::{Error, Result};
use crate::operators::{self, BuiltIn, DataSpec, Numbers, Operator, parsed};
use crate::record::{DTypes, ProblemRecord};
use crate::selection;
use crate::tune::LaunchPlan;

/// A problem to be filled with random numbers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    #[serde(default = "Workload::usual_operator")]
    operator: &'static dyn Operator,
    /// What it is called.
    pub name: String,
    /// What it stands for.
    pub description: String,
    /// Images (N).
    pub images: u32,
    /// Queries per image (Q).
    pub queries: Queries,
    /// Heads (M).
    pub heads: u32,
    /// Channels per head (D).
    pub channels: u32,
    /// (height, width) of each level.
    #[serde(deserialize_with = "pairs")]
    pub levels: Vec<[u32; 2]>,
    /// Points per level (P).
    pub points: u32,
    /// Where each query's reference point is.
    pub reference: Reference,
    /// What it is computed from: no part of a file, but asked for.
    #[serde(skip)]
    pub inputs: InputsChoice,
}

/// Read by hand because an array of two would be read from a longer one without complaint.
fn pairs<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Vec<[u32; 2]>, D::Error> {
    let levels: Vec<Vec<u32>> = Deserialize::deserialize(deserializer)?;
    let pair = |level: Vec<u32>| {
        let wrong = |level: Vec<u32>| {
            de::Error::custom(format!("expected [height, width], found {level:?}"))
        };
        <[u32; 2]>::try_from(level).map_err(wrong)
    };
    levels.into_iter().map(pair).collect()
}

/// Those the operator's name stands for.
pub(super) const BUILT_IN: [BuiltIn; 5] = [
    (
        "seed-full",
        include_str!("../../../workloads/seed-full.toml"),
    ),
    (
        "detr-encoder",
        include_str!("../../../workloads/detr-encoder.toml"),
    ),
    (
        "dino-decoder",
        include_str!("../../../workloads/dino-decoder.toml"),
    ),
    (
        "rtdetr-decoder",
        include_str!("../../../workloads/rtdetr-decoder.toml"),
    ),
    ("bev-d64", include_str!("../../../workloads/bev-d64.toml")),
];

/// Shapes that ideas of the ladder were published with: small, so not timed unless asked for.
pub(super) const LADDER: [BuiltIn; 3] = [
    (
        "ladder-n2-q256",
        include_str!("../../../workloads/ladder-n2-q256.toml"),
    ),
    (
        "ladder-n4-q512",
        include_str!("../../../workloads/ladder-n4-q512.toml"),
    ),
    (
        "ladder-n8-q1024",
        include_str!("../../../workloads/ladder-n8-q1024.toml"),
    ),
];

impl Workload {
    fn usual_operator() -> &'static dyn Operator {
        &Msda
    }

    /// The workload of this name or file, which must be of deformable attention.
    pub fn named(name: &Path, images: Option<u32>) -> Result<Self> {
        let workload = selection::workload(name, images)?;
        match workload.downcast::<Workload>() {
            Some(workload) => Ok(workload.clone()),
            None => Err(selection::of_another(&*workload, &Msda)),
        }
    }

    pub(super) fn parse(origin: &str, text: &str) -> Result<Self> {
        let workload: Workload = parsed(origin, text)?;
        workload.check(origin)?;
        Ok(workload)
    }

    fn check(&self, origin: &str) -> Result<()> {
        let invalid = |found: String| {
            Err(Error::Workload {
                origin: origin.to_string(),
                found,
            })
        };
        let sizes = [
            ("images", self.images),
            ("heads", self.heads),
            ("channels", self.channels),
            ("points", self.points),
        ];
        if let Some((field, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return invalid(format!("{field}: expected at least 1, found 0"));
        }
        if self.queries == Queries::Count(0) {
            return invalid("queries: expected at least 1, found 0".to_string());
        }
        if self.name.trim().is_empty() {
            return invalid("name: expected some letters, found none".to_string());
        }
        if self.levels.is_empty() {
            return invalid(
                "levels: expected at least one [height, width], found none".to_string(),
            );
        }
        if let Some(level) = self.levels.iter().position(|level| level.contains(&0)) {
            let found = self.levels[level];
            return invalid(format!(
                "levels[{level}]: expected height and width of at least 1, found {found:?}"
            ));
        }
        if self.reference == Reference::Pixels && self.queries != Queries::Pixels {
            return invalid(
                "queries: expected \"pixels\", as reference is, found a number".to_string(),
            );
        }
        let levels = match self.levels() {
            Ok(levels) => levels,
            Err(error) => return invalid(error.to_string()),
        };
        let sizes = self.sizes(&levels);
        let elements = [
            &sizes.value()[..],
            &sizes.sampling_locations(),
            &[sizes.images, sizes.queries, sizes.heads, sizes.channels],
        ];
        for shape in elements {
            let bytes = shape
                .iter()
                .try_fold(8usize, |product, &size| product.checked_mul(size));
            if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
                return invalid(format!(
                    "expected sizes whose product can be counted, found {shape:?}"
                ));
            }
        }
        Ok(())
    }

    /// The same with another number of images.
    pub fn with_images(self, images: u32) -> Result<Self> {
        let workload = Workload { images, ..self };
        workload.check(&workload.name)?;
        Ok(workload)
    }

    /// Whether reference points are boxes, which is what decoders have: queries anywhere.
    pub fn has_boxes(&self) -> bool {
        self.reference == Reference::Random
    }

    /// The levels, one right after another.
    pub fn levels(&self) -> fourtap::Result<Levels> {
        let shapes: Vec<_> = self
            .levels
            .iter()
            .map(|&[height, width]| (height as usize, width as usize))
            .collect();
        Levels::packed(&shapes)
    }

    /// All sizes.
    pub fn sizes(&self, levels: &Levels) -> Sizes {
        Sizes {
            images: self.images as usize,
            pixels: levels.pixels(),
            heads: self.heads as usize,
            channels: self.channels as usize,
            queries: match self.queries {
                Queries::Pixels => levels.pixels(),
                Queries::Count(count) => count as usize,
            },
            levels: levels.len(),
            points: self.points as usize,
        }
    }
}

impl operators::Workload for Workload {
    fn operator(&self) -> &'static dyn Operator {
        &Msda
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn with_batch(&self, batch: u32) -> Result<Arc<dyn operators::Workload>> {
        Ok(Arc::new(self.clone().with_images(batch)?))
    }

    fn numbers(&self, points: Distribution) -> Numbers {
        points.into()
    }

    fn with_projections(&self) -> Option<Arc<dyn operators::Workload>> {
        Some(Arc::new(Workload {
            inputs: InputsChoice::Projections,
            ..self.clone()
        }))
    }

    fn variant(&self) -> Option<&'static str> {
        self.inputs.variant()
    }

    fn problem(&self, _: DType) -> Result<ProblemRecord> {
        let levels = self.levels()?;
        let sizes = ProblemSizes {
            inputs: self.inputs,
            ..ProblemSizes::new(&self.sizes(&levels), &levels)
        };
        Ok(sizes.into())
    }

    fn dtypes(&self, filling: &DataSpec) -> DTypes {
        let of_points = match self.inputs {
            InputsChoice::Given => filling.coordinates,
            InputsChoice::Projections => filling.dtype,
        };
        DTypes {
            value: filling.dtype.to_string(),
            locations: Some(of_points.to_string()),
            weights: Some(of_points.to_string()),
        }
    }

    fn class(&self) -> Result<Class> {
        Ok(Class::of_msda(&self.sizes(&self.levels()?)))
    }

    fn bytes(&self, filling: &DataSpec) -> Result<u64> {
        let sizes = self.sizes(&self.levels()?);
        // Inputs, outputs and gradients at once.
        let count = |shape: &[usize]| shape.iter().map(|&size| size as u64).product::<u64>();
        let coordinate = filling.coordinates.size().max(DType::F32.size());
        let coordinate_bytes = 3 * count(&sizes.attention_weights()) * coordinate as u64;
        let values = (count(&sizes.value()) + count(&sizes.out())) * filling.dtype.size() as u64;
        Ok(2 * (coordinate_bytes + values))
    }

    fn filled(&self, filling: &DataSpec) -> Result<Box<dyn TensorSet>> {
        Ok(match self.inputs {
            InputsChoice::Given => Box::new(Tensors::random(self, filling)?),
            InputsChoice::Projections => Box::new(ProjectedTensors::random(self, filling)?),
        })
    }

    fn case(&self, arguments: &CaseArgs) -> Result<Box<dyn crate::explain::Case>> {
        Ok(Box::new(Case::new(self.clone(), arguments)?))
    }

    fn planned(
        &self,
        device: DeviceSize,
        pass: (DType, Direction),
        choice: &Choice,
    ) -> Result<LaunchPlan> {
        tuning::planned(self, device, pass, choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
name = "small"
description = "for a test"
images = 2
queries = "pixels"
heads = 3
channels = 4
levels = [[5, 6], [2, 3]]
points = 1
reference = "pixels"
"#;

    #[test]
    fn built_in_workloads_have_the_published_sizes() {
        // N, Q, M, D, S, P
        let published = [
            ("seed-full", [48, 15422, 1, 32, 19560, 8]),
            ("detr-encoder", [4, 22223, 8, 32, 22223, 4]),
            ("dino-decoder", [4, 900, 8, 32, 22223, 4]),
            ("rtdetr-decoder", [1, 300, 8, 32, 8400, 4]),
            ("bev-d64", [6, 10000, 8, 64, 30825, 8]),
        ];
        assert_eq!(
            BUILT_IN.map(|(name, _)| name),
            published.map(|(name, _)| name)
        );
        for (name, expected) in published {
            let workload = Workload::named(Path::new(name), None).unwrap();
            assert_eq!(workload.name, name);
            let Sizes {
                images,
                pixels,
                heads,
                channels,
                queries,
                points,
                ..
            } = workload.sizes(&workload.levels().unwrap());
            assert_eq!(
                [images, queries, heads, channels, pixels, points],
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn queries_are_pixels_or_a_number() {
        let workload = Workload::parse("small", SMALL).unwrap();
        assert_eq!(workload.sizes(&workload.levels().unwrap()).queries, 36);
        let numbered = SMALL
            .replace("\"pixels\"\nheads", "7\nheads")
            .replace("\"pixels\"", "\"random\"");
        assert_eq!(
            Workload::parse("small", &numbered).unwrap().queries,
            Queries::Count(7)
        );
    }

    #[test]
    fn says_which_field_is_wrong() {
        let wrong = [
            ("images = 2", "images = 0", "images: expected at least 1"),
            (
                "queries = \"pixels\"",
                "queries = \"all\"",
                "expected a number from 1 to",
            ),
            (
                "queries = \"pixels\"",
                "queries = -1",
                "expected a number from 1 to",
            ),
            (
                "queries = \"pixels\"",
                "queries = 5",
                "queries: expected \"pixels\"",
            ),
            (
                "levels = [[5, 6], [2, 3]]",
                "levels = []",
                "levels: expected at least one",
            ),
            (
                "levels = [[5, 6], [2, 3]]",
                "levels = [[5, 0]]",
                "levels[0]: expected height and width",
            ),
            (
                "points = 1",
                "points = 1\nspeed = 9",
                "unknown field `speed`",
            ),
            ("points = 1\n", "", "missing field `points`"),
            ("channels = 4", "channels = 4294967296", "channels"),
            ("heads = 3", "heads = 4294967295\n", "can be counted"),
        ];
        for (from, to, expected) in wrong {
            let mut text = SMALL.replace(from, to);
            if expected == "can be counted" {
                text = text.replace("channels = 4", "channels = 4294967295");
            }
            let error = Workload::parse("small", &text).unwrap_err().to_string();
            assert!(error.contains(expected), "{to}: {error}");
        }
    }
}
