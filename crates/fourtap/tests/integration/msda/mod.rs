//! Multi-scale deformable attention.

mod bad_calls;
mod big;
mod gradients;
mod hostile_numbers;
mod oracle;
mod projections;
mod reproducible;
