//! How much each parameter matters.

use std::collections::BTreeMap;

use serde::Serialize;

/// What the attempts say of one parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sensitivity {
    /// Which.
    pub parameter: String,
    /// For each value tried: the value, attempts that were right, and the fastest of them.
    pub values: Vec<(u32, usize, f64)>,
    /// How many times as slow the worst value's fastest attempt is as the best value's: 1 if it does not matter.
    pub factor: f64,
}

/// Of attempts, each its parameters and its time; what matters most first.
pub fn sensitivities<'a>(
    attempts: impl Iterator<Item = (&'a BTreeMap<String, u32>, f64)> + Clone,
) -> Vec<Sensitivity> {
    let mut parameters: BTreeMap<&str, BTreeMap<u32, (usize, f64)>> = BTreeMap::new();
    for (choice, time) in attempts {
        for (name, value) in choice {
            let values = parameters.entry(name).or_default();
            let (count, fastest) = values.entry(*value).or_insert((0, f64::INFINITY));
            *count += 1;
            *fastest = fastest.min(time);
        }
    }
    let mut all: Vec<Sensitivity> = parameters
        .into_iter()
        .map(|(name, values)| {
            let times = values.values().map(|(_, time)| *time);
            let slowest = times.clone().fold(0.0, f64::max);
            let fastest = times.fold(f64::INFINITY, f64::min);
            Sensitivity {
                parameter: name.to_string(),
                factor: slowest / fastest,
                values: values
                    .into_iter()
                    .map(|(value, (count, time))| (value, count, time))
                    .collect(),
            }
        })
        .collect();
    all.retain(|one| one.values.len() > 1);
    all.sort_by(|a, b| b.factor.total_cmp(&a.factor));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_most_comes_first() {
        let attempt = |a, b, c| {
            BTreeMap::from([
                ("a".to_string(), a),
                ("b".to_string(), b),
                ("c".to_string(), c),
            ])
        };
        let attempts = [
            (attempt(1, 1, 5), 1.0),
            (attempt(1, 2, 5), 1.5),
            (attempt(2, 1, 5), 3.0),
            (attempt(2, 2, 5), 4.0),
        ];
        let found = sensitivities(attempts.iter().map(|(choice, time)| (choice, *time)));
        let names: Vec<_> = found.iter().map(|one| one.parameter.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(found[0].values, [(1, 2, 1.0), (2, 2, 3.0)]);
        assert_eq!((found[0].factor, found[1].factor), (3.0, 1.5));
    }
}
