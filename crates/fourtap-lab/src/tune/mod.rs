//! The search for better choices: what a kernel declares, tried on a problem, each attempt verified before it is timed.
//!
//! [`Points`] are the choices there are, [`Search`] says which to try next, [`Numbers`] what to try them on, and
//! [`Finals`] which of the fastest is faster than the defaults beyond doubt. Nothing here starts a process or writes a
//! file; `fourtap tune` does.

mod entry;
mod finals;
mod hints;
mod numbers;
mod points;
mod search;
mod sensitivity;
mod subject;

pub use entry::entry;
pub use finals::Finals;
pub use hints::hints;
pub use numbers::Numbers;
pub use points::Points;
pub use search::{Candidate, How, Plan, Search};
pub use sensitivity::sensitivities;
pub use subject::Subject;
