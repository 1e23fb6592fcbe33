//! Deformable attention from projections: reference points, offsets and logits instead of locations and weights.

mod generate;
mod options;
mod tensors;
mod trial;
mod verification;

pub use tensors::{ProjectedTensors, expect_unmixed, has_projections};
