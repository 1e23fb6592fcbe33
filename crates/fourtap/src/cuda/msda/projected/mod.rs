//! Calls that say by a model's projections where and how much to sample.

mod arguments;
mod backward;
mod forward;
mod mask;
mod prepare;
