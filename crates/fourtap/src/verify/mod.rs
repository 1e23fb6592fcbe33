//! What backends are held to: random problems from a seed, and the rule that says how near the f64 oracle a result
//! must be. The tests and `fourtap check` use the same code.

mod case;
mod check;
mod rule;
mod tensor;

pub use case::Case;
pub use check::{Failure, backends, check};
pub use rule::{Judgement, Pass, judge};
pub use tensor::{Storage, Tensor};
