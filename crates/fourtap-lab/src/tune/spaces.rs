//! The kernels that can be tuned: the library's and the rungs of the ladder.

use std::sync::OnceLock;

use fourtap::tuning::Space;

use crate::cli::Direction;
use crate::ladder::{Rung, rungs};
use crate::operators::{OPERATORS, Operator};

/// A kernel that can be tuned.
#[derive(Clone, Copy, Debug)]
pub struct Tunable {
    /// What can be chosen about it.
    pub space: &'static Space,
    /// The rung it is, if it is not the library's.
    pub rung: Option<&'static Rung>,
}

/// All of them: the library's, then the rungs that have parameters.
pub fn tunables() -> &'static [Tunable] {
    static ALL: OnceLock<Vec<Tunable>> = OnceLock::new();
    ALL.get_or_init(|| {
        let library = Space::all().map(|space| Tunable { space, rung: None });
        library.chain(of_rungs()).collect()
    })
}

fn of_rungs() -> impl Iterator<Item = Tunable> {
    static RUNGS: OnceLock<Vec<(Space, Rung)>> = OnceLock::new();
    let rungs = RUNGS.get_or_init(|| {
        let all = rungs::all().into_iter();
        let tunable = all.filter(|rung| !rung.parameters.is_empty());
        let with_space = tunable.map(|rung| {
            let space = Space {
                kernel: rung.name,
                what: rung.title,
                parameters: rung.parameters,
            };
            (space, rung)
        });
        with_space.collect()
    });
    rungs.iter().map(|(space, rung)| Tunable {
        space,
        rung: Some(rung),
    })
}

impl Tunable {
    /// The one of this name.
    pub fn named(kernel: &str) -> Option<Self> {
        let mut all = tunables().iter();
        all.find(|it| it.space.kernel == kernel).copied()
    }

    /// Which operator it computes, and which pass.
    pub fn computes(&self) -> (&'static dyn Operator, Direction) {
        if let Some(rung) = self.rung {
            return (rung.operator().operator(), Direction::Forward);
        }
        let kernel = self.space.kernel;
        // As in "cuda-msda-forward".
        let is_named = |it: &&'static dyn Operator| kernel.contains(&format!("-{}-", it.name()));
        let mut all = OPERATORS.into_iter();
        let operator = all.find(is_named).unwrap_or(OPERATORS[0]);
        let direction = match kernel.ends_with("-backward") {
            true => Direction::Backward,
            false => Direction::Forward,
        };
        (operator, direction)
    }

    /// Whether it needs a CUDA device.
    pub fn is_cuda(&self) -> bool {
        self.rung.is_some() || self.space.kernel.starts_with("cuda-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_defaults_are_values() {
        let mut names: Vec<_> = tunables().iter().map(|it| it.space.kernel).collect();
        let count = names.len();
        assert!(count > 6, "{names:?}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for one in tunables() {
            for parameter in one.space.parameters {
                assert!(
                    parameter.values.contains(&parameter.default),
                    "{parameter:?}"
                );
            }
        }
        let named = |name| Tunable::named(name).unwrap();
        assert!(named("cuda-dense-forward").is_cuda());
        assert!(!named("cpu-dense-forward").is_cuda());
        let backward = named("cuda-msda-backward").computes();
        assert_eq!(backward, (OPERATORS[0], Direction::Backward));
    }
}
