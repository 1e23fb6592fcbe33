//! Which choice to try next.

use std::collections::HashSet;

use fourtap::tuning::Choice;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::Points;
use crate::generate::below;

/// Generations without a better best after which to stop, and what counts as better.
const PATIENCE: u32 = 2;
const BETTER: f64 = 0.995;

/// How often a child is made of two, a value moves to its neighbour rather than anywhere, and a second one moves too.
const CROSSED: f64 = 0.4;
const NEAR: f64 = 0.7;
const AGAIN: f64 = 0.3;

/// How often chance is tried for a child that was not tried yet, before any other point is taken.
const TRIES: usize = 64;

/// How far to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Generations at most, the first included.
    pub generations: u32,
    /// Candidates of each.
    pub population: usize,
    /// How many of the best later ones are made of.
    pub top_k: usize,
    /// Of the random numbers.
    pub seed: u64,
}

/// How a candidate was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CandidateOrigin {
    /// What is used untuned.
    Default,
    /// What the machine's own sizes suggest.
    Hint,
    /// By chance.
    Random,
    /// One of the best, changed.
    Mutation,
    /// Two of the best, mixed.
    Crossing,
    /// In its turn, where every point is tried.
    Every,
    /// What calls go by already, by a table.
    Table,
}

impl CandidateOrigin {
    /// As recorded.
    pub fn name(self) -> &'static str {
        match self {
            CandidateOrigin::Default => "default",
            CandidateOrigin::Hint => "hint",
            CandidateOrigin::Random => "random",
            CandidateOrigin::Mutation => "mutation",
            CandidateOrigin::Crossing => "crossing",
            CandidateOrigin::Every => "every",
            CandidateOrigin::Table => "table",
        }
    }
}

/// A choice to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Counted from 0, which is the defaults.
    pub number: u32,
    /// Counted from 0.
    pub generation: u32,
    /// The choice.
    pub choice: Choice,
    /// How it was found.
    pub how: CandidateOrigin,
    /// Numbers of those it was made of.
    pub parents: Vec<u32>,
}

/// A search under way. The same seed and the same answers give the same candidates, so an interrupted one is gone on
/// with by giving the old answers again.
#[derive(Debug)]
pub struct Search<'a> {
    points: &'a Points,
    plan: Plan,
    hints: Vec<Choice>,
    rng: Xoshiro256PlusPlus,
    generation: u32,
    seen: HashSet<Choice>,
    tried: u32,
    /// With the time of each that was right.
    answered: Vec<(Candidate, Option<f64>)>,
    /// The best time at the end of each generation.
    bests: Vec<Option<f64>>,
}

impl<'a> Search<'a> {
    /// Of these points, by this plan.
    pub fn new(points: &'a Points, plan: Plan, hints: Vec<Choice>) -> Self {
        Search {
            points,
            plan,
            hints,
            rng: Xoshiro256PlusPlus::seed_from_u64(plan.seed),
            generation: 0,
            seen: HashSet::new(),
            tried: 0,
            answered: Vec::new(),
            bests: Vec::new(),
        }
    }

    /// Whether so many points can all be tried.
    pub fn is_exhaustive(&self) -> bool {
        self.points.all.len() <= self.plan.population * self.plan.generations as usize
    }

    /// The next generation; none when the search is over. Every candidate of the last must have been answered.
    pub fn next_generation(&mut self) -> Vec<Candidate> {
        if self.generation > 0 {
            self.bests.push(self.best().map(|(_, time)| time));
        }
        if self.why_over().is_some() {
            return Vec::new();
        }
        let mut candidates = Vec::new();
        let exhaustive = self.is_exhaustive();
        for place in 0..self.plan.population {
            let next = match (place, self.generation) {
                (0, 0) => Some((
                    self.points.defaults.clone(),
                    CandidateOrigin::Default,
                    vec![],
                )),
                _ if exhaustive => self.in_turn(CandidateOrigin::Every),
                (_, 0) => self.hinted().or_else(|| self.by_chance()),
                _ => self.bred().or_else(|| self.by_chance()),
            };
            let Some((choice, how, parents)) = next else {
                break;
            };
            self.seen.insert(choice.clone());
            candidates.push(Candidate {
                number: self.tried,
                generation: self.generation,
                choice,
                how,
                parents,
            });
            self.tried += 1;
        }
        self.generation += 1;
        candidates
    }

    /// A choice from elsewhere, to be answered like the others; none if it was tried or does not fit.
    pub fn besides(&mut self, choice: &Choice, how: CandidateOrigin) -> Option<Candidate> {
        if !self.is_new(choice) {
            return None;
        }
        self.seen.insert(choice.clone());
        let number = self.tried;
        self.tried += 1;
        Some(Candidate {
            number,
            generation: self.generation,
            choice: choice.clone(),
            how,
            parents: Vec::new(),
        })
    }

    /// Says how long a candidate takes; none if it is not right.
    pub fn answer(&mut self, candidate: Candidate, time: Option<f64>) {
        self.answered.push((candidate, time));
    }

    /// Why there is no further generation; none if there is.
    pub fn why_over(&self) -> Option<&'static str> {
        if self.seen.len() == self.points.all.len() {
            return Some("every point was tried");
        }
        if self.generation >= self.plan.generations {
            return Some("the maximum number of generations was reached");
        }
        let exhaustive = self.is_exhaustive();
        let stale = |&best: &Option<f64>, &before: &Option<f64>| match (best, before) {
            (Some(best), Some(before)) => best > BETTER * before,
            _ => false,
        };
        let count = self.bests.len();
        let patience = PATIENCE as usize;
        let is_stale =
            count > patience && stale(&self.bests[count - 1], &self.bests[count - 1 - patience]);
        (is_stale && !exhaustive).then_some("two generations found nothing better")
    }

    /// The fastest that is right.
    pub fn best(&self) -> Option<(&Candidate, f64)> {
        self.ranked().into_iter().next()
    }

    /// All that are right, the fastest first.
    pub fn ranked(&self) -> Vec<(&Candidate, f64)> {
        let right =
            |(candidate, time): &'_ (Candidate, Option<f64>)| Some((candidate.number, (*time)?));
        let mut order: Vec<(u32, f64)> = self.answered.iter().filter_map(right).collect();
        order.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        let find = |number: u32| self.answered.iter().find(|(it, _)| it.number == number);
        order
            .into_iter()
            .filter_map(|(number, time)| find(number).map(|(candidate, _)| (candidate, time)))
            .collect()
    }

    fn is_new(&self, choice: &Choice) -> bool {
        self.points.has(choice) && !self.seen.contains(choice)
    }

    fn hinted(&mut self) -> Option<(Choice, CandidateOrigin, Vec<u32>)> {
        while !self.hints.is_empty() {
            let hint = self.hints.remove(0);
            if self.is_new(&hint) {
                return Some((hint, CandidateOrigin::Hint, vec![]));
            }
        }
        None
    }

    /// The first point not tried yet.
    fn in_turn(&self, how: CandidateOrigin) -> Option<(Choice, CandidateOrigin, Vec<u32>)> {
        let mut points = self.points.all.iter();
        let next = points.find(|choice| !self.seen.contains(choice));
        next.map(|choice| (choice.clone(), how, vec![]))
    }

    fn by_chance(&mut self) -> Option<(Choice, CandidateOrigin, Vec<u32>)> {
        for _ in 0..TRIES {
            let choice = &self.points.all[below(&mut self.rng, self.points.all.len())];
            if !self.seen.contains(choice) {
                return Some((choice.clone(), CandidateOrigin::Random, vec![]));
            }
        }
        self.in_turn(CandidateOrigin::Random)
    }

    /// A child of the best.
    fn bred(&mut self) -> Option<(Choice, CandidateOrigin, Vec<u32>)> {
        let ranked = self.ranked().into_iter().take(self.plan.top_k);
        let parents: Vec<(u32, Choice)> = ranked
            .map(|(candidate, _)| (candidate.number, candidate.choice.clone()))
            .collect();
        if parents.is_empty() {
            return None;
        }
        for _ in 0..TRIES {
            let (first, mut choice) = parents[below(&mut self.rng, parents.len())].clone();
            let mut from = vec![first];
            let mut how = CandidateOrigin::Mutation;
            if parents.len() > 1 && self.rng.random_bool(CROSSED) {
                let (second, other) = parents[below(&mut self.rng, parents.len())].clone();
                for (name, value) in other.values() {
                    if self.rng.random_bool(0.5) {
                        choice = choice.with(name, *value);
                    }
                }
                if second != first {
                    (how, from) = (CandidateOrigin::Crossing, vec![first, second]);
                }
            }
            if how == CandidateOrigin::Mutation || !self.is_new(&choice) {
                choice = self.mutated(choice);
            }
            if self.is_new(&choice) {
                return Some((choice, how, from));
            }
        }
        None
    }

    /// With one value changed, or two.
    fn mutated(&mut self, mut choice: Choice) -> Choice {
        let points = self.points;
        if points.free.is_empty() {
            return choice;
        }
        loop {
            let (parameter, values) = &points.free[below(&mut self.rng, points.free.len())];
            let now = values
                .iter()
                .position(|&value| value == choice.get(parameter.name))
                .unwrap_or(0);
            let next = if self.rng.random_bool(NEAR) {
                let up = self.rng.random_bool(0.5);
                if up { now + 1 } else { now.wrapping_sub(1) }
            } else {
                below(&mut self.rng, values.len())
            };
            if let Some(&value) = values.get(next) {
                choice = choice.with(parameter.name, value);
            }
            if !self.rng.random_bool(AGAIN) {
                return choice;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourtap::tuning::Space;

    fn points(fixed: &[(&str, u32)]) -> Points {
        let space = Space::named("cpu-msda-backward").unwrap();
        let fixed: Vec<_> = fixed
            .iter()
            .map(|(name, value)| (name.to_string(), *value))
            .collect();
        Points::new(space, &fixed, false, |it| Ok(it.to_string())).unwrap()
    }

    const PLAN: Plan = Plan {
        generations: 30,
        population: 12,
        top_k: 4,
        seed: 7,
    };

    /// A valley: the farther from 2 MiB, 16 bands, 64 KiB and 8 tasks, the slower.
    fn time(choice: &Choice) -> f64 {
        let off = |name: &str, best: u32| {
            let value = f64::from(choice.get(name));
            (value / f64::from(best)).log2().abs()
        };
        1.0 + off("band_bytes", 2 << 20)
            + off("most_bands", 16)
            + off("task_bytes", 64 << 10)
            + off("tasks_each", 8)
    }

    fn searched(
        points: &Points,
        plan: Plan,
        time: impl Fn(&Choice) -> Option<f64>,
    ) -> (Vec<Candidate>, Vec<Choice>) {
        let mut search = Search::new(points, plan, vec![]);
        let mut all = vec![];
        loop {
            let generation = search.next_generation();
            if generation.is_empty() {
                break;
            }
            for candidate in generation {
                all.push(candidate.clone());
                let time = time(&candidate.choice);
                search.answer(candidate, time);
            }
        }
        assert!(search.why_over().is_some());
        let ranked = search
            .ranked()
            .iter()
            .map(|(it, _)| it.choice.clone())
            .collect();
        (all, ranked)
    }

    #[test]
    fn a_valley_is_walked_down_with_few_attempts() {
        let points = points(&[]);
        let (all, ranked) = searched(&points, PLAN, |choice| Some(time(choice)));
        let floor = points.all.iter().map(time).fold(f64::INFINITY, f64::min);
        assert!(
            all.len() * 5 < points.all.len(),
            "{} of {}",
            all.len(),
            points.all.len()
        );
        let start = time(&points.defaults);
        let reached = time(&ranked[0]);
        assert!(
            reached - floor < 0.2 * (start - floor),
            "{reached}, not {floor} as from {start}"
        );
    }

    #[test]
    fn nothing_is_tried_twice_and_the_defaults_come_first() {
        let points = points(&[]);
        let (all, _) = searched(&points, PLAN, |choice| Some(time(choice)));
        assert_eq!(
            (&all[0].choice, all[0].how),
            (&points.defaults, CandidateOrigin::Default)
        );
        let choices: HashSet<_> = all.iter().map(|candidate| &candidate.choice).collect();
        assert_eq!(choices.len(), all.len());
        for (place, candidate) in all.iter().enumerate() {
            assert_eq!(candidate.number as usize, place);
            let bred = matches!(
                candidate.how,
                CandidateOrigin::Mutation | CandidateOrigin::Crossing
            );
            assert_eq!(bred, !candidate.parents.is_empty());
            assert!(candidate.parents.iter().all(|&it| it < candidate.number));
        }
    }

    #[test]
    fn the_same_answers_give_the_same_search() {
        let points = points(&[]);
        let first = searched(&points, PLAN, |choice| Some(time(choice)));
        assert_eq!(first, searched(&points, PLAN, |choice| Some(time(choice))));
        let other = Plan { seed: 8, ..PLAN };
        assert_ne!(first, searched(&points, other, |choice| Some(time(choice))));
    }

    #[test]
    fn few_points_are_all_tried() {
        let points = points(&[
            ("task_bytes", 65536),
            ("band_bytes", 1 << 20),
            ("serial_work", 1 << 16),
        ]);
        let (all, ranked) = searched(&points, PLAN, |choice| Some(time(choice)));
        assert_eq!(all.len(), points.all.len());
        assert!(
            all[1..]
                .iter()
                .all(|candidate| candidate.how == CandidateOrigin::Every)
        );
        assert_eq!(ranked[0].get("most_bands"), 16);
        assert_eq!(ranked[0].get("tasks_each"), 8);
    }

    #[test]
    fn what_is_wrong_is_no_parent_and_does_not_win() {
        let points = points(&[]);
        let right = |choice: &Choice| choice.get("most_bands") != 16;
        let (all, ranked) = searched(&points, PLAN, |choice| right(choice).then(|| time(choice)));
        assert!(ranked.iter().all(right));
        let wrong: Vec<u32> = all
            .iter()
            .filter(|it| !right(&it.choice))
            .map(|it| it.number)
            .collect();
        assert!(!wrong.is_empty(), "or there is nothing to see");
        let parents = all.iter().flat_map(|candidate| &candidate.parents);
        assert!(parents.into_iter().all(|number| !wrong.contains(number)));
    }

    #[test]
    fn a_search_in_which_everything_fails_ends() {
        let points = points(&[]);
        let plan = Plan {
            generations: 4,
            ..PLAN
        };
        let (all, ranked) = searched(&points, plan, |_| None);
        assert_eq!((all.len(), ranked.len()), (4 * PLAN.population, 0));
    }

    #[test]
    fn a_plain_without_a_valley_is_left_early() {
        let points = points(&[]);
        let (all, _) = searched(&points, PLAN, |_| Some(1.0));
        assert_eq!(all.len(), 3 * PLAN.population);
    }

    #[test]
    fn hints_come_right_after_the_defaults() {
        let points = points(&[]);
        let hint = points.defaults.clone().with("tasks_each", 16);
        let strange = points.defaults.clone().with("vector_bits", 128);
        let hints = vec![points.defaults.clone(), strange, hint.clone()];
        let mut search = Search::new(&points, PLAN, hints);
        let first = search.next_generation();
        assert_eq!(
            (&first[1].choice, first[1].how),
            (&hint, CandidateOrigin::Hint)
        );
        assert_eq!(first[2].how, CandidateOrigin::Random);
    }
}
