//! What became of a choice that was tried.

use serde::{Deserialize, Serialize};

use crate::record::{Outcome, Timing};
use crate::verification::Verification;

/// The result of an attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AttemptResult {
    /// How it ended.
    pub outcome: Outcome,
    /// Why there is no time.
    pub words: String,
    /// Its error against the oracle.
    pub verification: Option<Verification>,
    /// How long it takes.
    pub hot: Option<Timing>,
}

impl AttemptResult {
    /// Right, and so fast.
    pub fn measured(verification: Verification, hot: Timing) -> Self {
        AttemptResult {
            outcome: Outcome::Measured,
            words: String::new(),
            verification: Some(verification),
            hot: Some(hot),
        }
    }

    /// Wrong.
    pub fn wrong(verification: Verification) -> Self {
        AttemptResult {
            outcome: Outcome::Wrong,
            words: verification.found.clone().unwrap_or_default(),
            verification: Some(verification),
            hot: None,
        }
    }

    /// Ended otherwise.
    pub fn ended((outcome, words): (Outcome, String)) -> Self {
        AttemptResult {
            outcome,
            words,
            verification: None,
            hot: None,
        }
    }
}
