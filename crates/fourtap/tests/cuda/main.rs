//! The CUDA backend on a GPU. Without one the tests say so and pass, unless FOURTAP_REQUIRE_CUDA is set.

mod backward;
mod big;
mod calls;
mod concurrent;
mod dense;
mod gpu;
mod hostile;
mod large;
mod oracle;
mod plan_cache;
mod reproducible;
mod sanitizer;
mod tensors;
mod tuning;
