//! The kernels that can be tuned: the library's, and those of other crates.

use std::sync::OnceLock;

use fourtap::tuning::Space;

use crate::cli::Direction;
use crate::extension;
use crate::operators::{OPERATORS, Operator};

use super::ExternalKernel;

/// A kernel that can be tuned.
#[derive(Clone, Copy, Debug)]
pub struct Tunable {
    /// What can be chosen about it.
    pub space: &'static Space,
    /// What it is if it is not the library's.
    pub external: Option<&'static dyn ExternalKernel>,
}

/// All of them: the library's, then what an extension adds.
pub fn tunables() -> &'static [Tunable] {
    static ALL: OnceLock<Vec<Tunable>> = OnceLock::new();
    ALL.get_or_init(|| {
        let library = Space::all().map(|space| Tunable {
            space,
            external: None,
        });
        let added = extension::current().map(|it| it.kernels());
        let added = added.into_iter().flatten().map(|kernel| Tunable {
            space: kernel.space(),
            external: Some(kernel),
        });
        library.chain(added).collect()
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
        if let Some(kernel) = self.external {
            return (kernel.operator(), Direction::Forward);
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
        self.external.is_some() || self.space.kernel.starts_with("cuda-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_defaults_are_values() {
        let mut names: Vec<_> = tunables().iter().map(|it| it.space.kernel).collect();
        let count = names.len();
        assert_eq!(count, Space::all().count(), "{names:?}");
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
