//! Every idea for a fast forward kernel as a rung of one ladder: correct first, then timed, then ranked.
//!
//! A rung is a kernel file of kernels/ladder and, in [`rungs`], what to know of it: the idea, its parameters, how it is
//! launched. Rungs take value in f16 with locations and weights in f32.

mod arguments;
mod climb;
pub mod plan;
pub mod rungs;
mod small;
#[cfg(test)]
mod tests;
mod trial;

use plan::{Choice, Hardware, LEVEL_CAPACITY, Parameter, Planned, Shape};

use fourtap::msda::Sizes;

use crate::record::TrafficCounts;
use crate::verification::Rule;

pub use climb::{Climb, Climbed};

/// What the library's own forward is called among the rungs.
pub const SHIPPED: &str = "shipped";

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

/// What takes part: a rung, or what the library ships.
#[derive(Clone, Copy, Debug)]
pub enum Contender {
    /// An idea.
    Rung(Rung),
    /// The library's forward, as a user calls it.
    Shipped,
}

impl Contender {
    /// As typed.
    pub fn name(&self) -> &'static str {
        match self {
            Contender::Rung(rung) => rung.name,
            Contender::Shipped => SHIPPED,
        }
    }

    /// In a few words.
    pub fn title(&self) -> &'static str {
        match self {
            Contender::Rung(rung) => rung.title,
            Contender::Shipped => "the library's forward",
        }
    }

    /// What it does, in a sentence.
    pub fn idea(&self) -> &'static str {
        match self {
            Contender::Rung(rung) => rung.idea,
            Contender::Shipped => "the kernel the library chooses, as a user calls it",
        }
    }

    /// What can be chosen.
    pub fn parameters(&self) -> &'static [Parameter] {
        match self {
            Contender::Rung(rung) => rung.parameters,
            Contender::Shipped => &[],
        }
    }

    /// What its results are held to.
    pub fn rule(&self) -> Rule {
        match self {
            Contender::Rung(Rung {
                approximate: Some(share),
                ..
            }) => Rule::Stated(*share),
            _ => Rule::Operator,
        }
    }

    /// The rung it is one single change to, if it is of a suite of such.
    pub fn single_change_to(&self) -> Option<Rung> {
        let Contender::Rung(rung) = self else {
            return None;
        };
        let base = rung.builds_on.filter(|_| rung.name.starts_with('s'))?;
        rungs::all().into_iter().find(|other| other.name == base)
    }
}

/// Why what a tool of the sanitizer reports of a rung is no fault of it: how that is known, in words. Every other report
/// keeps a rung from having a time.
pub fn blind_spot(rung: &str, tool: &str) -> Option<&'static str> {
    match (rung, tool) {
        ("a08" | "a08-channels" | "a09", "racecheck") => Some(
            "the tool does not count a barrier of the cluster as the end of asynchronous copies; each thread waits for \
             its own before it arrives there",
        ),
        ("a13", "racecheck") => Some(
            "the tool does not see that the arrival of one lane speaks for all that met it at the warp's barrier",
        ),
        _ => None,
    }
}

/// Everything that takes part: what the library ships, which all others are held against, then the rungs.
pub fn contenders() -> Vec<Contender> {
    let rungs = rungs::all().into_iter().map(Contender::Rung);
    [Contender::Shipped].into_iter().chain(rungs).collect()
}

/// Bytes and operations of a problem of the types that rungs take: f16, with f32 locations and weights.
pub fn traffic(sizes: &Sizes) -> TrafficCounts {
    let (value, location) = (2, 4);
    let rows = (sizes.images * sizes.queries * sizes.heads) as u64;
    let samples = rows * (sizes.levels * sizes.points) as u64;
    let channels = sizes.channels as u64;
    let pixels = (sizes.images * sizes.pixels * sizes.heads) as u64;
    TrafficCounts {
        compulsory_bytes: (pixels + rows) * channels * value + 3 * samples * location,
        gathered_bytes: 4 * samples * channels * value,
        flop: 10 * samples * channels,
    }
}
