//! Gradients of dense attention.

mod agreement;
mod bad_calls;
mod hostile_numbers;
mod oracle;
mod reproducible;
