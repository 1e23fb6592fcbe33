//! `bench --against`: this program and another, timed in turns.
//!
//! Both are started as processes that verify a benchmark and then wait for their turn ([`served`]); this one says whose
//! it is ([`against`]). They talk in lines of JSON, requests to standard input and replies on standard output.

pub mod against;
pub mod served;

use serde::{Deserialize, Serialize};

use crate::record::Origin;
use crate::target::Device;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    /// Repeat the computation for about so long.
    Take { milliseconds: f64 },
    /// Go on to the next benchmark.
    Next,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    /// Who this is, once.
    Hello {
        origin: Box<Origin>,
        device: Box<Device>,
    },
    /// A benchmark awaits its turns; or it has none, because its result is wrong.
    Ready {
        benchmark: String,
        wrong: Option<String>,
    },
    /// The turn is over.
    Taken { samples_ms: Vec<f64> },
    /// The benchmark is over, and its result was right, or not, until the end.
    Done { wrong: Option<String> },
}
