//! What rungs are timed on.

use fourtap::DType;
use fourtap_lab::extension::record::{
    ProblemSizes, RungOperator, RungProblem, RungSizes, TrafficCounts,
};
use fourtap_lab::extension::{Distribution, MsdaWorkload, Result, generate};

use crate::numbers::{AnyShape, Numbers};
use crate::{dense, msda};

/// A problem by name.
#[derive(Clone, Debug)]
pub enum Case {
    /// Of deformable attention.
    Msda(MsdaWorkload, Distribution),
    /// Of dense attention, with a causal mask or without.
    Dense(dense::Workload, bool),
}

impl Case {
    /// What computes it.
    pub fn operator(&self) -> RungOperator {
        match self {
            Case::Msda(..) => RungOperator::Msda,
            Case::Dense(..) => RungOperator::Dense,
        }
    }

    /// The workload's name.
    pub fn workload(&self) -> &str {
        match self {
            Case::Msda(workload, _) => &workload.name,
            Case::Dense(workload, _) => workload.name,
        }
    }

    /// Which of the workload's problems: where the points lie, or which keys are seen.
    pub fn distribution(&self) -> &'static str {
        match self {
            Case::Msda(_, distribution) => distribution.name(),
            Case::Dense(_, true) => "causal",
            Case::Dense(_, false) => "full",
        }
    }

    /// The sizes, as recorded.
    pub fn problem(&self) -> Result<RungProblem> {
        Ok(match self {
            Case::Msda(workload, _) => {
                let levels = workload.levels()?;
                RungProblem::Msda(ProblemSizes::new(&workload.sizes(&levels), &levels))
            }
            Case::Dense(workload, causal) => RungProblem::Dense(RungSizes {
                batch: workload.batch,
                heads: workload.heads,
                queries: workload.queries,
                keys: workload.keys,
                channels: workload.channels,
                dtype: workload.dtype.name().to_string(),
                causal: *causal,
            }),
        })
    }

    /// Bytes and operations, by the model.
    pub fn traffic(&self) -> Result<TrafficCounts> {
        Ok(match self {
            Case::Msda(workload, _) => msda::traffic(&workload.sizes(&workload.levels()?)),
            Case::Dense(workload, causal) => dense::traffic(workload, *causal),
        })
    }

    /// The sizes, if rungs can take them; else in words, why not.
    pub fn shape(&self) -> Result<std::result::Result<AnyShape, String>> {
        Ok(match self {
            Case::Msda(workload, _) => {
                let levels = workload.levels()?;
                msda::shape_of(&workload.sizes(&levels), &levels).map(AnyShape::Msda)
            }
            Case::Dense(workload, causal) => {
                dense::shape_of(&workload.sizes(), workload.dtype, *causal).map(AnyShape::Dense)
            }
        })
    }

    /// Random numbers for it.
    pub fn numbers(&self, seed: u64) -> Result<Numbers> {
        Ok(match self {
            Case::Msda(workload, distribution) => {
                let levels = workload.levels()?;
                let sizes = workload.sizes(&levels);
                let reference = workload.reference;
                Numbers::Msda(msda::Numbers {
                    value: generate::value(&sizes, DType::F16, seed)?,
                    locations: generate::locations(
                        &sizes,
                        &levels,
                        reference,
                        *distribution,
                        seed,
                    )?,
                    weights: generate::weights(&sizes, seed)?,
                    levels,
                })
            }
            Case::Dense(workload, causal) => {
                Numbers::Dense(dense::Numbers::random(workload, *causal, 1.0, seed)?)
            }
        })
    }
}
