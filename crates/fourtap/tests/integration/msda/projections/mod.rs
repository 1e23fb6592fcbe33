//! From projections on.

mod bad_calls;
mod bad_outputs;
mod example;
mod gradients;
mod hostile_numbers;
mod one_tensor;
mod oracle;
mod reproducible;
mod two_steps;
