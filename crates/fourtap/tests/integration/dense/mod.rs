//! Dense attention.

mod agreement;
mod bad_calls;
mod hostile_numbers;
mod masks;
mod oracle;
mod oracle_gradients;
mod reproducible;
