//! Search spaces: the tuning parameters of a kernel.

use std::fmt;

/// A tuning parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name on the command line and in tables.
    pub name: &'static str,
    /// A short description.
    pub what: &'static str,
    /// The values worth trying, in ascending order.
    pub values: &'static [u32],
    /// The default; one of `values`.
    pub default: u32,
    /// Whether its values may change the rounding of results in their last bits.
    pub changes_bits: bool,
}

/// All tuning parameters of a kernel. Values that do not go together, or exceed the resources of a device, are refused
/// at launch.
#[derive(Debug, PartialEq, Eq)]
pub struct Space {
    /// The kernel's name on the command line and in tables.
    pub kernel: &'static str,
    /// A short description.
    pub what: &'static str,
    /// The parameters.
    pub parameters: &'static [Parameter],
}

/// A value for each parameter of a space.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Choice(Vec<(&'static str, u32)>);

impl Parameter {
    /// A parameter whose values all give bitwise equal results.
    pub const fn new(
        name: &'static str,
        what: &'static str,
        values: &'static [u32],
        default: u32,
    ) -> Self {
        Parameter {
            name,
            what,
            values,
            default,
            changes_bits: false,
        }
    }

    /// The same, but its values may change the rounding of results.
    pub const fn changing_bits(self) -> Self {
        Parameter {
            changes_bits: true,
            ..self
        }
    }
}

impl Space {
    /// The defaults.
    pub fn defaults(&self) -> Choice {
        Choice::new(self.parameters, &[])
    }

    /// The defaults, overridden by `chosen`; the error says which parameter or value does not exist.
    pub fn choice(&self, chosen: &[(impl AsRef<str>, u32)]) -> Result<Choice, String> {
        let mut choice = self.defaults();
        for (name, value) in chosen {
            let name = name.as_ref();
            let Some(parameter) = self.parameters.iter().find(|it| it.name == name) else {
                let names: Vec<_> = self.parameters.iter().map(|it| it.name).collect();
                return Err(format!(
                    "a parameter of {}, which are {}, found {name}",
                    self.kernel,
                    names.join(", ")
                ));
            };
            if !parameter.values.contains(value) {
                return Err(format!(
                    "{name} to be one of {:?}, found {value}",
                    parameter.values
                ));
            }
            choice = choice.with(parameter.name, *value);
        }
        Ok(choice)
    }

    /// Whether results are bitwise equal to those with the defaults.
    pub fn keeps_bits(&self, choice: &Choice) -> bool {
        let keeps = |one: &Parameter| !one.changes_bits || choice.get(one.name) == one.default;
        self.parameters.iter().all(keeps)
    }
}

impl Choice {
    /// The defaults, overridden by `chosen`; unknown parameters are ignored.
    pub fn new(parameters: &[Parameter], chosen: &[(String, u32)]) -> Self {
        let value = |parameter: &Parameter| {
            let named = chosen.iter().find(|(name, _)| name == parameter.name);
            named.map_or(parameter.default, |(_, value)| *value)
        };
        let parameters = parameters.iter();
        Choice(parameters.map(|one| (one.name, value(one))).collect())
    }

    /// The value of a parameter of its space.
    ///
    /// # Panics
    /// If the space has no such parameter.
    pub fn get(&self, name: &str) -> u32 {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.expect("asked only for what the space declares").1
    }

    /// The same with another value of a parameter; unknown parameters are ignored.
    #[must_use]
    pub fn with(mut self, name: &str, value: u32) -> Self {
        for (known, chosen) in &mut self.0 {
            if *known == name {
                *chosen = value;
            }
        }
        self
    }

    /// All parameters and values.
    pub fn values(&self) -> &[(&'static str, u32)] {
        &self.0
    }
}

/// As in "task_bytes=65536 tasks_each=4".
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let gap = if index == 0 { "" } else { " " };
            write!(f, "{gap}{name}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_space_is_well_formed() {
        let mut kernels: Vec<_> = Space::all().map(|space| space.kernel).collect();
        kernels.sort_unstable();
        let count = kernels.len();
        kernels.dedup();
        assert_eq!(kernels.len(), count, "two spaces of one name");
        for space in Space::all() {
            for parameter in space.parameters {
                let Parameter { name, values, .. } = parameter;
                let whose = format!("{name} of {}", space.kernel);
                assert!(values.contains(&parameter.default), "{whose}");
                assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "{whose}");
                let same = space.parameters.iter().filter(|one| one.name == *name);
                assert_eq!(same.count(), 1, "{whose}");
            }
            assert!(space.keeps_bits(&space.defaults()));
        }
    }

    #[test]
    fn what_no_space_declares_is_refused_in_words() {
        let space = Space::named("cpu-msda-forward").unwrap();
        let refused = space.choice(&[("threads", 1)]).unwrap_err();
        assert!(refused.contains("found threads"), "{refused}");
        let refused = space.choice(&[("serial_work", 1)]).unwrap_err();
        assert!(
            refused.starts_with("serial_work to be one of ["),
            "{refused}"
        );
        assert!(Space::named("cpu-poem").is_none());
    }

    #[test]
    fn a_choice_is_shown_as_it_is_typed() {
        let space = Space::named("cpu-msda-backward").unwrap();
        let choice = space.choice(&[("most_bands", 8)]).unwrap();
        assert!(choice.to_string().contains("most_bands=8"), "{choice}");
        assert!(!space.keeps_bits(&choice.with("vector_bits", 128)));
    }
}
