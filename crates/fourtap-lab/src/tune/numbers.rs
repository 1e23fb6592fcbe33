//! Random numbers to try choices on.

use fourtap::msda::Levels;
use fourtap::{Backend, dense, msda};

use super::Subject;
use crate::array::Array;
use crate::cli::Direction;
use crate::computation::Computation;
use crate::dense::DenseTrial;
use crate::error::Result;
use crate::generate;
use crate::trial::Trial;
use crate::workload::AnyWorkload;

/// The tensors of a problem.
#[derive(Debug)]
pub enum Numbers {
    /// Of deformable attention.
    Msda {
        /// The levels of value.
        levels: Levels,
        /// value, locations and weights.
        inputs: [Array; 3],
        /// What backward starts from.
        grad_out: Option<Array>,
    },
    /// Of dense attention.
    Dense {
        /// Query, key and value.
        inputs: [Array; 3],
        /// What is computed of them.
        options: dense::Options,
    },
}

impl Numbers {
    /// The same on every machine.
    pub fn new(subject: &Subject, seed: u64) -> Result<Self> {
        let dtype = subject.dtype;
        match &subject.workload {
            AnyWorkload::Msda(workload) => {
                let levels = workload.levels()?;
                let sizes = workload.sizes(&levels);
                let locations = generate::locations(
                    &sizes,
                    &levels,
                    workload.reference,
                    subject.distribution,
                    seed,
                )?;
                let grad_out = match subject.direction {
                    Direction::Forward => None,
                    Direction::Backward => Some(generate::grad_out(&sizes, dtype, seed)?),
                };
                Ok(Numbers::Msda {
                    inputs: [
                        generate::value(&sizes, dtype, seed)?,
                        locations,
                        generate::weights(&sizes, seed)?,
                    ],
                    levels,
                    grad_out,
                })
            }
            AnyWorkload::Dense(workload) => Ok(Numbers::Dense {
                inputs: generate::dense(&workload.sizes(), dtype, seed)?,
                options: workload.options(),
            }),
        }
    }

    /// The computation, by a backend.
    pub fn trial(&self, backend: Backend) -> Result<Box<dyn Computation + '_>> {
        match self {
            Numbers::Msda {
                levels,
                inputs: [value, locations, weights],
                grad_out,
            } => {
                let inputs = msda::Inputs {
                    value: value.view(),
                    levels: levels.into(),
                    sampling_locations: locations.view(),
                    attention_weights: weights.view(),
                };
                Ok(Box::new(match grad_out {
                    None => Trial::forward(backend, inputs)?,
                    Some(grad_out) => Trial::backward(backend, inputs, grad_out.view())?,
                }))
            }
            Numbers::Dense {
                inputs: [query, key, value],
                options,
            } => {
                let inputs = dense::Inputs {
                    query: query.view(),
                    key: key.view(),
                    value: value.view(),
                };
                Ok(Box::new(DenseTrial::new(backend, inputs, *options)?))
            }
        }
    }
}
