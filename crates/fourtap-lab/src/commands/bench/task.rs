//! One benchmark, and what was found.

use std::time::Duration;

use crate::array::Array;
use crate::computation::Computation;
use crate::error::{Error, Result};
use crate::record::{AlternativeResult, Conditions, KernelUsed, Timing};
use crate::verification::Verification;

/// A benchmark about to be measured.
pub struct Task<'a> {
    /// What it is called.
    pub name: &'a str,
    /// What to compute.
    pub trial: &'a dyn Computation,
    /// Of the rows that are compared.
    pub seed: u64,
    /// Most time to spend on repeating one thing.
    pub budget: Duration,
}

impl Task<'_> {
    /// The error of a result against the oracle, or what is wrong with it.
    pub fn verified(&self, outputs: &[Array]) -> Result<Verification> {
        self.trial.verified(outputs, self.seed)
    }

    /// In words, what is wrong with a result of the timed computations, which were right before; none if nothing is.
    pub fn still_right(
        &self,
        reproducible: bool,
        before: &[Array],
        after: &[Array],
    ) -> Result<Option<String>> {
        if !reproducible {
            // Bits that may differ must still be right.
            return Ok(self.verified(after)?.found);
        }
        let same = |(before, after): (&Array, &Array)| before.bytes() == after.bytes();
        let all = before.iter().zip(after).all(same);
        Ok((!all).then(|| "the timed computations are not bitwise equal to the first".to_string()))
    }

    /// That a result is wrong.
    pub fn wrong(&self, found: &str) -> Error {
        Error::Verification {
            benchmark: self.name.to_string(),
            found: found.to_string(),
        }
    }
}

/// The result of a benchmark. Only a verified one has times.
#[derive(Debug)]
pub struct BenchResult {
    /// What computed it.
    pub kernel: KernelUsed,
    /// Its error against the oracle.
    pub verification: Verification,
    /// The same inputs repeatedly.
    pub hot: Option<Timing>,
    /// Rotating copies of them.
    pub cold: Option<Timing>,
    /// While it was timed.
    pub conditions: Option<Conditions>,
    /// Other ways to the same.
    pub beside: Vec<AlternativeResult>,
}

impl BenchResult {
    /// Nothing timed yet.
    pub fn new(kernel: KernelUsed, verification: Verification) -> Self {
        BenchResult {
            kernel,
            verification,
            hot: None,
            cold: None,
            conditions: None,
            beside: Vec::new(),
        }
    }

    /// In words, everything that is wrong.
    pub fn found_wrong(&self) -> Vec<String> {
        let own = self.verification.found.clone();
        let beside = self.beside.iter().filter_map(|beside| {
            let found = beside.verification.found.as_ref()?;
            Some(format!("{}: {found}", beside.role))
        });
        own.into_iter().chain(beside).collect()
    }
}
