//! Backward on a GPU: the subjects of forward, and those it has alone.

mod big;
mod calls;
mod concurrent;
mod crowded;
mod exact;
mod gradients;
mod hostile;
mod large;
mod loose;
mod optional;
mod oracle;
mod reproducible;
mod sanitizer;
pub mod tensors;
mod workspace;
