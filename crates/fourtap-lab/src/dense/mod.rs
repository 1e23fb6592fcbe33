//! Dense attention: a pass over a problem, and a sample of its result against the oracle.

mod trial;
mod verification;

pub use trial::DenseTrial;
pub use verification::verify_all;
