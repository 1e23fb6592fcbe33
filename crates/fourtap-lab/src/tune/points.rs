//! The choices there are.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use fourtap::tuning::{Choice, Parameter, Space};

/// More points than this are not counted out: no space declares so many.
const MOST: usize = 1 << 20;

/// What may be chosen of a space: every combination of values that fits.
#[derive(Clone, Debug)]
pub struct Points {
    /// The parameters that may differ from the defaults, with the values they may have.
    pub free: Vec<(Parameter, Vec<u32>)>,
    /// The defaults, with what was fixed.
    pub defaults: Choice,
    /// Those that fit, the defaults first.
    pub all: Vec<Choice>,
    /// Why others do not, and how many each reason keeps out.
    pub refused: BTreeMap<String, usize>,
    fitting: HashSet<Choice>,
}

impl Points {
    /// Of a space, with some parameters fixed; without `allow_rounding_changes` those that change bits are too. `carried` says what a
    /// choice comes to, or why it does not fit: of several that come to the same only the first is there.
    pub fn new(
        space: &Space,
        fixed: &[(String, u32)],
        allow_rounding_changes: bool,
        carried: impl Fn(&Choice) -> Result<String, String>,
    ) -> Result<Self, String> {
        let defaults = space.choice(fixed)?;
        let is_free = |one: &&Parameter| {
            (allow_rounding_changes || !one.changes_bits)
                && !fixed.iter().any(|(name, _)| name == one.name)
        };
        let free: Vec<_> = space
            .parameters
            .iter()
            .filter(is_free)
            .map(|one| (*one, one.values.to_vec()))
            .collect();
        let count = free.iter().map(|(_, values)| values.len());
        let count = count.fold(1, usize::saturating_mul);
        if count > MOST {
            return Err(format!(
                "at most {MOST} points of {}, found more",
                space.kernel
            ));
        }
        let mut points = Points {
            free,
            defaults: defaults.clone(),
            all: Vec::new(),
            refused: BTreeMap::new(),
            fitting: HashSet::new(),
        };
        let mut known = HashSet::from([hashed(&carried(&defaults)?)]);
        points.add(defaults.clone());
        for index in 0..count {
            let choice = points.at(index);
            if choice == defaults {
                continue;
            }
            let is_new = carried(&choice).map(|key| known.insert(hashed(&key)));
            let why = match is_new {
                Ok(true) => {
                    points.add(choice);
                    continue;
                }
                Ok(false) => "another choice comes to the same".to_string(),
                Err(why) => why,
            };
            // What differs from choice to choice stands behind a colon.
            let why = why.split(':').next().unwrap_or_default().to_string();
            *points.refused.entry(why).or_default() += 1;
        }
        Ok(points)
    }

    fn add(&mut self, choice: Choice) {
        self.fitting.insert(choice.clone());
        self.all.push(choice);
    }

    /// The combination of this number, in the order of the parameters, of each the default first: of several that come to the
    /// same, the one nearest to the defaults shall be found.
    fn at(&self, mut index: usize) -> Choice {
        let mut choice = self.defaults.clone();
        for (parameter, values) in &self.free {
            let usual = values.iter().position(|value| *value == parameter.default);
            let place = match (index % values.len(), usual.unwrap_or(0)) {
                (0, usual) => usual,
                (place, usual) if place <= usual => place - 1,
                (place, _) => place,
            };
            choice = choice.with(parameter.name, values[place]);
            index /= values.len();
        }
        choice
    }

    /// Whether such a choice may be made.
    pub fn has(&self, choice: &Choice) -> bool {
        self.fitting.contains(choice)
    }
}

/// There are too many to keep them; two that hash alike by chance are one in some millions of searches.
fn hashed(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apart(choice: &Choice) -> Result<String, String> {
        Ok(choice.to_string())
    }

    fn space() -> &'static Space {
        Space::named("cpu-msda-backward").unwrap()
    }

    #[test]
    fn every_combination_is_there_once() {
        let points = Points::new(space(), &[], false, apart).unwrap();
        let expected: usize = space()
            .parameters
            .iter()
            .filter(|one| !one.changes_bits)
            .map(|one| one.values.len())
            .product();
        assert_eq!(points.all.len(), expected);
        assert_eq!(points.fitting.len(), expected);
        assert_eq!(points.all[0], space().defaults());
        assert!(points.all.iter().all(|choice| space().keeps_bits(choice)));
        let more = Points::new(space(), &[], true, apart).unwrap();
        assert!(more.all.len() > expected);
    }

    #[test]
    fn what_is_fixed_stays_and_what_does_not_fit_is_counted() {
        let fixed = [("most_bands".to_string(), 8)];
        let fits = |choice: &Choice| match choice.get("tasks_each") {
            32 => Err("too many".to_string()),
            _ => apart(choice),
        };
        let points = Points::new(space(), &fixed, false, fits).unwrap();
        assert!(
            points
                .all
                .iter()
                .all(|choice| choice.get("most_bands") == 8)
        );
        assert!(
            points
                .all
                .iter()
                .all(|choice| choice.get("tasks_each") < 32)
        );
        let refused = points.refused["too many"];
        assert_eq!(5 * refused, points.all.len());
        assert!(!points.has(&points.defaults.clone().with("tasks_each", 32)));
    }

    #[test]
    fn what_is_not_declared_is_refused() {
        for fixed in [("rhyme", 1), ("most_bands", 3)] {
            let fixed = [(fixed.0.to_string(), fixed.1)];
            assert!(Points::new(space(), &fixed, false, apart).is_err());
        }
    }

    #[test]
    fn what_comes_to_the_same_is_there_once() {
        let bands = |choice: &Choice| Ok(choice.get("most_bands").to_string());
        let points = Points::new(space(), &[], false, bands).unwrap();
        assert_eq!(points.all.len(), 5);
        assert_eq!(points.all[0], space().defaults());
        let same = points.refused["another choice comes to the same"];
        assert!(same > points.all.len());
    }
}
