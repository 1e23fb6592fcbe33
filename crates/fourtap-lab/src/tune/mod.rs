//! The search for faster kernel parameters: what a kernel declares, tried on a problem, each attempt verified before it is timed.
//!
//! A [`Subject`] is a kernel on a problem, and its [`Engine`] what computes it: the processor, a CUDA device, or there a
//! kernel of another crate. [`Points`] are the choices there are, [`Search`] says which to try next, [`BuildResult`] compiles what one
//! needs, [`ChoiceTester`] tries it on random numbers, and [`Finals`] tell which of the fastest is faster than the defaults beyond
//! doubt. Nothing here starts a process or writes a file; `fourtap tune` does.

mod attempt;
mod bench;
mod build;
mod engine;
mod entry;
mod external;
#[cfg(feature = "fault-injection")]
mod faults;
mod finals;
mod hints;
mod points;
mod search;
mod sensitivity;
mod spaces;
mod subject;

pub use attempt::AttemptResult;
pub use bench::{Bench, ChoiceTester};
pub use build::BuildResult;
pub use engine::{Engine, Gpu, LaunchPlan};
pub use entry::{entry, known};
pub use external::ExternalKernel;
pub use finals::Finals;
pub use hints::{hints, threads};
pub use points::Points;
pub use search::{Candidate, CandidateOrigin, Plan, Search};
pub use sensitivity::sensitivities;
pub use spaces::{Tunable, tunables};
pub use subject::Subject;
