//! The contenders: every idea for a fast forward kernel as a rung, what the library ships, and other libraries.
//!
//! A rung is a kernel file of kernels/ and, in [`rungs`], what to know of it: the idea, its parameters, how it is launched. It
//! computes one operator: deformable attention with value in f16 and locations and weights in f32, or dense attention in
//! f16 or bf16. What differs between the two is in [`msda`] and [`dense`], and nowhere else.

use fourtap_lab::extension::record::RungOperator;
use fourtap_lab::extension::{Hardware, Rule};

use crate::library::{self, Library};
use crate::numbers::AnyShape;
use crate::plan::{Choice, Parameter, PlanResult, Shape};
use crate::{dense, msda, rungs};

/// How a rung of either operator is launched.
#[derive(Clone, Copy, Debug)]
pub enum Planner {
    /// Deformable attention.
    Msda(fn(&Shape, &Hardware, &Choice) -> PlanResult),
    /// Dense attention.
    Dense(fn(&dense::Shape, &Hardware, &Choice) -> PlanResult),
}

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
    /// How to launch it, and so which operator it computes.
    pub plan: Planner,
}

impl Rung {
    /// What it computes.
    pub fn operator(&self) -> RungOperator {
        match self.plan {
            Planner::Msda(_) => RungOperator::Msda,
            Planner::Dense(_) => RungOperator::Dense,
        }
    }

    /// How this rung computes a problem, or why it cannot.
    pub fn planned(&self, shape: &AnyShape, hardware: &Hardware, choice: &Choice) -> PlanResult {
        match (self.plan, shape) {
            (Planner::Msda(plan), AnyShape::Msda(shape)) => {
                msda::expect_takeable(shape)?;
                plan(shape, hardware, choice)
            }
            (Planner::Dense(plan), AnyShape::Dense(shape)) => {
                dense::expect_takeable(shape)?;
                plan(shape, hardware, choice)
            }
            _ => Err(format!("a rung of {}", self.operator().in_words())),
        }
    }
}

/// What takes part: a rung, what this library ships, or what others do.
#[derive(Clone, Copy, Debug)]
pub enum Contender {
    /// An idea.
    Rung(Rung),
    /// The library's forward of an operator, as a user calls it.
    Shipped(RungOperator),
    /// Not ours: PyTorch, in a process of its own.
    Library(Library),
}

impl Contender {
    /// As typed.
    pub fn name(&self) -> &'static str {
        match self {
            Contender::Rung(rung) => rung.name,
            Contender::Shipped(operator) => operator.shipped(),
            Contender::Library(library) => library.name,
        }
    }

    /// In a few words.
    pub fn title(&self) -> &'static str {
        match self {
            Contender::Rung(rung) => rung.title,
            Contender::Shipped(_) => "the library's forward",
            Contender::Library(library) => library.title,
        }
    }

    /// What it does, in a sentence.
    pub fn idea(&self) -> &'static str {
        match self {
            Contender::Rung(rung) => rung.idea,
            Contender::Shipped(_) => "the kernel the library chooses, as a user calls it",
            Contender::Library(library) => library.idea,
        }
    }

    /// What it computes.
    pub fn operator(&self) -> RungOperator {
        match self {
            Contender::Rung(rung) => rung.operator(),
            Contender::Shipped(operator) => *operator,
            Contender::Library(_) => RungOperator::Dense,
        }
    }

    /// What others published of it.
    pub fn claim(&self) -> Option<Claim> {
        match self {
            Contender::Rung(rung) => rung.claim,
            Contender::Shipped(_) => None,
            Contender::Library(library) => library.claim,
        }
    }

    /// What can be chosen.
    pub fn parameters(&self) -> &'static [Parameter] {
        match self {
            Contender::Rung(rung) => rung.parameters,
            Contender::Shipped(_) | Contender::Library(_) => &[],
        }
    }

    /// The error tolerance of its results.
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

/// Everything that takes part: of each operator what the library ships, which all others are compared with, then the
/// rungs; then other libraries.
pub fn contenders() -> Vec<Contender> {
    let rungs = rungs::all();
    let of = |operator: RungOperator| {
        let rungs = rungs.iter().filter(move |rung| rung.operator() == operator);
        [Contender::Shipped(operator)]
            .into_iter()
            .chain(rungs.copied().map(Contender::Rung))
    };
    let libraries = library::ALL.iter().copied().map(Contender::Library);
    of(RungOperator::Msda)
        .chain(of(RungOperator::Dense))
        .chain(libraries)
        .collect()
}
