//! Samples whose locations and weights are given.

use super::coordinates::Coordinates;
use super::geometry::{BLOCK, Block, Cells, Grid, locate, pixels};
use super::plan::{self, Pass, Plan, Slots};
use super::sampling::Sampling;
use super::scatter::LevelWalk;
use crate::dtype::Element;
use crate::msda::{Inputs, Problem};

/// `sampling_locations` and `attention_weights`.
pub(super) struct Given<E> {
    locations: Coordinates<E, 6>,
    weights: Coordinates<E, 5>,
    points: usize,
}

/// Where a block of samples lies in both, from the row of the first query and head.
pub(super) struct GivenPlaces {
    /// The x of each sample.
    locations: Block<isize>,
    /// The weight of each sample.
    weights: Block<isize>,
    /// Length of the runs of samples whose locations and weights are contiguous; 0 if not even x and y are.
    run: usize,
}

impl<E: Element> Given<E> {
    pub fn new(inputs: &Inputs<'_>) -> Self {
        let locations = &inputs.sampling_locations;
        let weights = &inputs.attention_weights;
        Given {
            locations: Coordinates::new(locations.as_ptr().cast_mut(), locations.layout()),
            weights: Coordinates::new(weights.as_ptr().cast_mut(), weights.layout()),
            points: locations.shape().sizes()[4],
        }
    }

    /// The problem, laid out for the kernels.
    pub fn plan(problem: &Problem, inputs: &Inputs<'_>) -> Plan<E> {
        let sizes = problem.sizes();
        // Without queries there may be more points than memory has room for.
        let points = if sizes.queries == 0 { 0 } else { sizes.points };
        let first_samples = (0..=sizes.levels).map(|level| level * points);
        Plan::new(
            sizes,
            problem.levels(),
            first_samples.collect(),
            &inputs.value,
        )
    }

    /// The samples of one query, split into passes.
    pub fn passes(
        &self,
        plan: &Plan<E>,
        near_bytes: usize,
    ) -> Vec<Pass<E::Accumulator, GivenPlaces>> {
        let levels = plan.pass_levels(near_bytes);
        let pass = |levels: &Vec<usize>| plan.pass(levels, |_, samples| self.places(samples));
        levels.iter().map(pass).collect()
    }

    /// The levels, laid out for walking their samples.
    pub fn walks(&self, plan: &Plan<E>) -> Vec<LevelWalk<E::Accumulator, GivenPlaces>> {
        (0..plan.sizes.levels)
            .map(|level| LevelWalk::new(plan, level, |_, samples| self.places(samples)))
            .collect()
    }

    fn places(&self, samples: &[[usize; 4]]) -> GivenPlaces {
        let mut all = [[0; 4]; BLOCK];
        all[..samples.len()].copy_from_slice(samples);
        let locations = plan::places(&all, &self.locations.strides());
        let weights = plan::places(&all, &self.weights.strides());
        let pairs = self.locations.strides()[5] == 1;
        let follow = |run: usize, places: &Block<isize>, width: isize| {
            let runs = places[..samples.len()].chunks(run);
            runs.flat_map(|run| run.windows(2))
                .all(|pair| pair[1] == pair[0].wrapping_add(width))
        };
        // Only whole queries of a block are read, so a run that divides the points is never split.
        let longest = [samples.len(), 8, 4, 2].into_iter().find(|&run| {
            (run == samples.len() || self.points.is_multiple_of(run))
                && follow(run, &locations, 2)
                && follow(run, &weights, 1)
        });
        GivenPlaces {
            locations,
            weights,
            run: longest.filter(|_| pairs).unwrap_or(0),
        }
    }

    /// x, y and attention weight of the first `count` samples.
    ///
    /// # Safety
    /// `row` is inside the problem, and so are the queries of those samples.
    #[inline(always)]
    unsafe fn read(
        &self,
        row: [usize; 3],
        places: &GivenPlaces,
        count: usize,
    ) -> [Block<E::Accumulator>; 3] {
        if places.run == 0 {
            // SAFETY: as the caller promises.
            return unsafe { self.read_scattered(row, places, count) };
        }
        let (locations, weights) = (self.locations.row(row), self.weights.row(row));
        // Part of a single run is one run; anything else is split between runs.
        // SAFETY: as the caller promises.
        unsafe {
            let [x, y] = self
                .locations
                .read_runs(locations, &places.locations, places.run, count);
            let [weight] = self
                .weights
                .read_runs(weights, &places.weights, places.run, count);
            [x, y, weight]
        }
    }

    /// # Safety
    /// As for `read`.
    unsafe fn read_scattered(
        &self,
        row: [usize; 3],
        places: &GivenPlaces,
        count: usize,
    ) -> [Block<E::Accumulator>; 3] {
        let (locations, weights) = (self.locations.row(row), self.weights.row(row));
        let to_y = self.locations.strides()[5];
        // SAFETY: as the caller promises.
        unsafe {
            [
                self.locations
                    .read_scattered(locations, &places.locations, count),
                self.locations
                    .read_scattered(locations + to_y, &places.locations, count),
                self.weights.read_scattered(weights, &places.weights, count),
            ]
        }
    }
}

impl<E: Element> Sampling<E> for Given<E> {
    type Places = GivenPlaces;

    #[inline(always)]
    unsafe fn find(
        &self,
        row: [usize; 3],
        slots: &Slots<E::Accumulator, GivenPlaces>,
        count: usize,
    ) -> (Cells<E::Accumulator>, Block<E::Accumulator>) {
        // SAFETY: as the caller promises.
        let [x, y, weight] = unsafe { self.read(row, &slots.places, count) };
        let [x, y] = pixels(&slots.grid, &x, &y);
        (locate(&slots.grid, &x, &y), weight)
    }

    #[inline(always)]
    fn scale(grid: &Grid<E::Accumulator>) -> [Block<E::Accumulator>; 2] {
        grid.scale
    }

    #[inline(always)]
    fn prefetch(&self, row: [usize; 3], slots: &Slots<E::Accumulator, GivenPlaces>, count: usize) {
        self.locations
            .prefetch(row, slots.places.locations[0], 2 * count);
        self.weights.prefetch(row, slots.places.weights[0], count);
    }
}
