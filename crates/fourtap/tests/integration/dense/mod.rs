//! Dense attention.

mod agreement;
mod bad_calls;
mod gradients;
mod hostile_numbers;
mod masks;
mod oracle;

mod reproducible;
