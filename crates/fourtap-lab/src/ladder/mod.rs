//! Every idea for a fast forward kernel as a rung of one ladder: correct first, then timed, then ranked.
//!
//! A rung is a kernel file of kernels/ladder and, in [`rungs`], what to know of it: the idea, its parameters, how it is
//! launched. Rungs take value in f16 with locations and weights in f32.

mod arguments;
pub mod plan;
pub mod rungs;

use plan::{Choice, Hardware, LEVEL_CAPACITY, Parameter, Planned, Shape};

/// What others published for the same idea, and why ours differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// As published.
    pub words: &'static str,
    /// In a sentence, why our measurement is another.
    pub why: &'static str,
}

/// One idea.
#[derive(Clone, Copy, Debug)]
pub struct Rung {
    /// As typed: "a08".
    pub name: &'static str,
    /// In a few words: "distributed shared memory".
    pub title: &'static str,
    /// What it does, in a sentence.
    pub idea: &'static str,
    /// What it should gain and why, in a sentence, written before it was measured.
    pub expected: &'static str,
    /// What others published.
    pub claim: Option<Claim>,
    /// The rung it changes; its gain is counted against that.
    pub builds_on: Option<&'static str>,
    /// The kernels.
    pub source: &'static str,
    /// Uses clusters, barriers that count bytes or boxes: kernels/common/hopper.cuh stands before it.
    pub hopper: bool,
    /// Relative error in the 2-norm that an approximate rung states; the others keep the operator's rule.
    pub approximate: Option<f64>,
    /// What can be chosen.
    pub parameters: &'static [Parameter],
    /// How to launch it.
    pub plan: fn(&Shape, &Hardware, &Choice) -> Planned,
}

/// Channels that rungs are written for.
const CHANNELS: [u32; 4] = [16, 32, 64, 128];

impl Rung {
    /// How this rung computes a problem, or why it cannot.
    pub fn planned(&self, shape: &Shape, hardware: &Hardware, choice: &Choice) -> Planned {
        if !CHANNELS.contains(&shape.channels) {
            return Err(format!(
                "{} channels: rungs are written for 16, 32, 64 and 128",
                shape.channels
            ));
        }
        if shape.levels.len() > LEVEL_CAPACITY {
            return Err(format!(
                "{} levels: rungs take at most {LEVEL_CAPACITY}",
                shape.levels.len()
            ));
        }
        (self.plan)(shape, hardware, choice)
    }
}
