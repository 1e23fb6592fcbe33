//! The tensors of a call from projections, random or of a file.

use fourtap::msda::Levels;
use fourtap::msda::projections::{
    ProjectedBackward, ProjectedProblem, ProjectionGradients, Projections,
};
use fourtap::{Backend, BoolView};

use super::generate;
use super::options::Options;
use super::trial::{ProjectedTrial, slices};
use crate::cli::Direction;
use crate::computation::{Computation, TensorSet};
use crate::error::{Error, Result};
use crate::operators::msda::{Workload, generate::grad_out, generate::value, tensors};
use crate::operators::{DataSpec, Reading};
use crate::tensors::{ANY_RANK, MappedFile, Placement, Reader, Source, TensorSpec};

/// Every tensor of a call from projections.
const TENSORS: [TensorSpec; 8] = [
    ("value", "[N, S, M, D]", 4),
    ("spatial_shapes", "[L, 2]", 2),
    ("level_start_index", "[L]", 1),
    // With axis P or without: checked with the call.
    (
        "reference_points",
        "[N, Q, L, P, 2 or 4], or without axis P",
        ANY_RANK,
    ),
    ("sampling_offsets", "[N, Q, M, K, 2]", 5),
    ("attention_logits", "[N, Q, M, K]", 4),
    ("value_mask", "[N, S]", 2),
    ("grad_out", "[N, Q, M*D]", 3),
];

/// Those that only a call from projections has, and those that only one with given locations has.
const ONLY_PROJECTED: [&str; 4] = [
    "reference_points",
    "sampling_offsets",
    "attention_logits",
    "value_mask",
];
const ONLY_GIVEN: [&str; 2] = ["sampling_locations", "attention_weights"];

/// Whether a file is of a call from projections.
pub fn has_projections(is_there: &dyn Fn(&str) -> bool) -> bool {
    ONLY_PROJECTED.iter().any(|name| is_there(name))
}

/// Refuses a file that says in two ways where to sample.
pub fn expect_unmixed(file: &MappedFile, is_there: &dyn Fn(&str) -> bool) -> Result<()> {
    let found = |names: &[&'static str]| names.iter().copied().find(|name| is_there(name));
    match (found(&ONLY_GIVEN), found(&ONLY_PROJECTED)) {
        (Some(given), Some(projected)) => Err(Error::MixedTensors {
            file: file.path().to_path_buf(),
            given,
            projected,
        }),
        _ => Ok(()),
    }
}

/// The inputs of deformable attention from projections.
#[derive(Debug)]
pub struct ProjectedTensors<'a> {
    /// `[N, S, M, D]`.
    value: Source<'a>,
    /// From `spatial_shapes` and `level_start_index`.
    levels: Levels,
    /// `[N, Q, L, P, 2]` or `[N, Q, L, P, 4]`, with or without axis P.
    reference_points: Source<'a>,
    /// Offsets and logits.
    projected: Projected<'a>,
    /// `[N, S]`.
    value_mask: Option<BoolView<'a>>,
    options: Options,
    /// `[N, Q, M*D]`, if gradients are computed.
    grad_out: Option<Source<'a>>,
    /// Names in the file that mean nothing here.
    ignored: Vec<String>,
}

/// Where offsets and logits are.
#[derive(Debug)]
enum Projected<'a> {
    /// In tensors of their own.
    Apart {
        /// `[N, Q, M, K, 2]`.
        sampling_offsets: Source<'a>,
        /// `[N, Q, M, K]`.
        attention_logits: Source<'a>,
    },
    /// In one, as one linear layer puts them out.
    Layer {
        /// `[N, Q, 3*M*K]`: all offsets of a query, then its logits.
        layer: Source<'a>,
        /// M and K.
        sizes: [usize; 2],
    },
}

impl ProjectedTensors<'static> {
    /// Random numbers for a workload: but for rounding, the points and weights it has with given locations.
    pub fn random(workload: &Workload, filling: &DataSpec) -> Result<Self> {
        let levels = workload.levels()?;
        let sizes = workload.sizes(&levels);
        let numbers = generate::projections(workload, &sizes, &levels, filling)?;
        let grad_out = match filling.backward {
            true => Some(Source::Owned(grad_out(
                &sizes,
                filling.dtype,
                filling.seed,
            )?)),
            false => None,
        };
        Ok(ProjectedTensors {
            value: Source::Owned(value(&sizes, filling.dtype, filling.seed)?),
            levels,
            reference_points: Source::Owned(numbers.reference_points),
            projected: Projected::Layer {
                layer: Source::Owned(numbers.layer),
                sizes: [sizes.heads, sizes.levels * sizes.points],
            },
            value_mask: None,
            options: Options {
                points: vec![sizes.points],
                ..Options::default()
            },
            grad_out,
            ignored: Vec::new(),
        })
    }
}

impl<'a> ProjectedTensors<'a> {
    /// Finds the tensors in a file and checks that they fit each other.
    pub fn read(file: &'a MappedFile, reading: Reading) -> Result<Self> {
        let misfit = |source| file.misfit(source);
        let placement = match reading {
            Reading::Compute { .. } => Placement::AsItLies,
            Reading::Time { .. } => Placement::Aligned,
        };
        let reader = Reader::new(file, placement, &TENSORS)?;
        let levels = tensors::levels(&reader)?;
        let attention_logits = reader.required("attention_logits")?;
        let samples = attention_logits.view().shape().sizes()[3];
        let mut tensors = ProjectedTensors {
            value: reader.required("value")?,
            reference_points: reader.required("reference_points")?,
            projected: Projected::Apart {
                sampling_offsets: reader.required("sampling_offsets")?,
                attention_logits,
            },
            value_mask: reader.mask("value_mask")?,
            options: Options::read(file, samples, levels.len())?,
            grad_out: match reading {
                Reading::Compute { grad: false, .. } => None,
                Reading::Compute { grad: true, .. } => Some(reader.required("grad_out")?),
                Reading::Time { .. } => reader.numbers("grad_out")?,
            },
            ignored: reader.ignored(),
            levels,
        };
        let problem = ProjectedProblem::new(&tensors.inputs()).map_err(misfit)?;
        if let Reading::Time { seed } = reading {
            let (sizes, dtype) = (problem.sizes(), problem.value().dtype());
            if sizes.samples() == 0 || sizes.pixels == 0 {
                let workload = file.path().display().to_string();
                return Err(Error::NothingToTime { workload });
            }
            if tensors.grad_out.is_none() {
                tensors.grad_out = Some(Source::Owned(grad_out(sizes, dtype, seed)?));
            }
        }
        if let Some(grad_out) = &tensors.grad_out {
            let none = ProjectionGradients::default();
            ProjectedBackward::new(tensors.inputs(), grad_out.view(), none).map_err(misfit)?;
        }
        Ok(tensors)
    }

    /// What the operator reads.
    fn inputs(&self) -> Projections<'_> {
        let [sampling_offsets, attention_logits] = match &self.projected {
            Projected::Apart {
                sampling_offsets,
                attention_logits,
            } => [sampling_offsets.view(), attention_logits.view()],
            Projected::Layer { layer, sizes } => slices(&layer.view(), *sizes),
        };
        Projections {
            value: self.value.view(),
            levels: (&self.levels).into(),
            reference_points: self.reference_points.view(),
            sampling_offsets,
            attention_logits,
            points: self.options.points(),
            value_mask: self.value_mask,
            mask_is_applied: false,
            interpolation: self.options.interpolation,
            box_scale: self.options.box_scale(),
        }
    }
}

impl TensorSet for ProjectedTensors<'_> {
    fn trial(&self, backend: Backend, pass: Direction) -> Result<Box<dyn Computation + '_>> {
        let layer = match &self.projected {
            Projected::Apart { .. } => None,
            Projected::Layer { layer, .. } => Some(layer.view()),
        };
        let grad_out = match pass {
            Direction::Forward => None,
            Direction::Backward => self.grad_out.as_ref().map(Source::view),
        };
        let inputs = self.inputs();
        Ok(Box::new(ProjectedTrial::new(
            backend, inputs, layer, grad_out,
        )?))
    }

    fn ignored(&self) -> &[String] {
        &self.ignored
    }
}
