//! The tensors of deformable attention, random or of a file.

use fourtap::msda::{Backward, Gradients, Inputs, Levels, Problem};
use fourtap::{Backend, DType};

use super::{Trial, Workload, generate};
use crate::cli::Direction;
use crate::computation::{Computation, TensorSet};
use crate::error::{Error, Result};
use crate::operators::{DataSpec, Reading};
use crate::tensors::{MappedFile, Placement, Reader, Source, TensorSpec};

/// Every tensor deformable attention knows.
const TENSORS: [TensorSpec; 6] = [
    ("value", "[N, S, M, D]", 4),
    ("spatial_shapes", "[L, 2]", 2),
    ("level_start_index", "[L]", 1),
    ("sampling_locations", "[N, Q, M, L, P, 2]", 6),
    ("attention_weights", "[N, Q, M, L, P]", 5),
    ("grad_out", "[N, Q, M*D]", 3),
];

/// The inputs of deformable attention.
#[derive(Debug)]
pub struct Tensors<'a> {
    /// `[N, S, M, D]`.
    value: Source<'a>,
    /// From `spatial_shapes` and `level_start_index`.
    levels: Levels,
    /// `[N, Q, M, L, P, 2]`.
    sampling_locations: Source<'a>,
    /// `[N, Q, M, L, P]`.
    attention_weights: Source<'a>,
    /// `[N, Q, M*D]`, if gradients are computed.
    grad_out: Option<Source<'a>>,
    /// Names in the file that mean nothing here.
    ignored: Vec<String>,
}

impl Tensors<'static> {
    /// Random numbers for a workload.
    pub fn random(workload: &Workload, filling: &DataSpec) -> Result<Self> {
        let DataSpec {
            dtype,
            coordinates,
            distribution,
            backward,
            seed,
        } = *filling;
        let levels = workload.levels()?;
        let sizes = workload.sizes(&levels);
        let mut locations =
            generate::locations(&sizes, &levels, workload.reference, distribution, seed)?;
        let mut weights = generate::weights(&sizes, seed)?;
        if coordinates != DType::F32 {
            locations = locations.rounded("sampling_locations", coordinates)?;
            weights = weights.rounded("attention_weights", coordinates)?;
        }
        let grad_out = match backward {
            true => Some(Source::Owned(generate::grad_out(&sizes, dtype, seed)?)),
            false => None,
        };
        Ok(Tensors {
            value: Source::Owned(generate::value(&sizes, dtype, seed)?),
            levels,
            sampling_locations: Source::Owned(locations),
            attention_weights: Source::Owned(weights),
            grad_out,
            ignored: Vec::new(),
        })
    }
}

impl<'a> Tensors<'a> {
    /// Finds the tensors in a file and checks that they fit each other.
    pub fn read(file: &'a MappedFile, reading: Reading) -> Result<Self> {
        let misfit = |source| file.misfit(source);
        let placement = match reading {
            Reading::Compute { .. } => Placement::AsItLies,
            Reading::Time { .. } => Placement::Aligned,
        };
        let reader = Reader::new(file, placement, &TENSORS)?;
        let mut tensors = Tensors {
            levels: levels(&reader)?,
            value: reader.required("value")?,
            sampling_locations: reader.required("sampling_locations")?,
            attention_weights: reader.required("attention_weights")?,
            grad_out: match reading {
                Reading::Compute { grad: false, .. } => None,
                Reading::Compute { grad: true, .. } => Some(reader.required("grad_out")?),
                Reading::Time { .. } => reader.numbers("grad_out")?,
            },
            ignored: reader.ignored(),
        };
        let problem = Problem::new(&tensors.inputs()).map_err(misfit)?;
        if let Reading::Time { seed } = reading {
            let (sizes, dtype) = (problem.sizes(), problem.value().dtype());
            if sizes.samples() == 0 || sizes.pixels == 0 {
                let workload = file.path().display().to_string();
                return Err(Error::NothingToTime { workload });
            }
            if tensors.grad_out.is_none() {
                let random = generate::grad_out(sizes, dtype, seed)?;
                tensors.grad_out = Some(Source::Owned(random));
            }
        }
        if let Some(grad_out) = &tensors.grad_out {
            Backward::new(tensors.inputs(), grad_out.view(), Gradients::default())
                .map_err(misfit)?;
        }
        Ok(tensors)
    }

    /// What the operator reads.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            value: self.value.view(),
            levels: (&self.levels).into(),
            sampling_locations: self.sampling_locations.view(),
            attention_weights: self.attention_weights.view(),
        }
    }
}

impl TensorSet for Tensors<'_> {
    fn trial(&self, backend: Backend, pass: Direction) -> Result<Box<dyn Computation + '_>> {
        let inputs = self.inputs();
        Ok(Box::new(match (pass, &self.grad_out) {
            (Direction::Backward, Some(grad_out)) => {
                Trial::backward(backend, inputs, grad_out.view())?
            }
            _ => Trial::forward(backend, inputs)?,
        }))
    }

    fn ignored(&self) -> &[String] {
        &self.ignored
    }
}

/// From `spatial_shapes` and `level_start_index`.
pub(super) fn levels(reader: &Reader<'_>) -> Result<Levels> {
    let shapes = reader
        .integers("spatial_shapes")?
        .ok_or_else(|| reader.missing("spatial_shapes"))?;
    if let Some(view) = reader
        .find("spatial_shapes")?
        .filter(|view| view.shape()[1] != 2)
    {
        let found = fourtap::Shape::new(view.shape());
        let (tensor, expected) = ("spatial_shapes", "[L, 2]".to_string());
        return Err(reader.misfit(fourtap::Error::Shape {
            tensor,
            expected,
            found,
        }));
    }
    let starts = reader.integers("level_start_index")?;
    Levels::from_i64(&shapes, starts.as_deref()).map_err(|source| reader.misfit(source))
}
