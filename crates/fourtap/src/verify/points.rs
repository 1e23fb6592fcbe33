//! Where the sampling points of random problems lie: spread over the image, as trained models put them, or crowded, as
//! when training starts and where an image has few objects.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, seq::IndexedRandom};
use rand_distr::{Distribution as _, LogNormal, StandardNormal};

use crate::msda::{Level, Levels, Sizes};

/// Where sampling points lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Anywhere in the image.
    Uniform,
    /// Around each query's reference point, as trained models put them.
    Local,
    /// All in the same few pixels of each level.
    Window,
    /// All in one place.
    Spot,
    /// Normal around the middle, with a standard deviation of 5 % of the image.
    Cloud5,
    /// The same with 0.5 %.
    Cloud05,
    /// A quarter of the queries have a box of 0.001 in one corner; the others' points lie anywhere.
    CornerBoxes,
    /// A third of the queries have a box as large as the image around its corner; the others' points lie anywhere.
    ImageBoxes,
    /// In the boxes of 20 objects, which the queries share by Zipf's law.
    Zipf,
    /// In one row of each level.
    Row,
    /// Outside the image.
    Outside,
    /// Those of RT-DETR's decoder before training, in f16: the scores of all anchors are the same, and the first ones win.
    RtDetr,
    /// Those of Deformable DETR before training.
    DeformableDetr,
}

/// What a query's points belong to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryBox {
    /// Its reference point, x first, as shares of the image.
    pub centre: [f64; 2],
    /// Width and height, where the distribution has boxes.
    pub extent: Option<[f64; 2]>,
}

/// How far, in pixels of each level, local points scatter around the reference point.
const LOCAL_SIGMA: f64 = 4.0;

/// Pixels of each level, in x and in y, that window points share.
const WINDOW: f64 = 6.0;

/// Where that window begins, as a share of width and height.
const WINDOW_START: f64 = 0.4;

/// On no pixel's border, as is the row: there rounding would decide which side is meant.
const SPOT: [f64; 2] = [0.3137, 0.6871];
const MIDDLE: [f64; 2] = [0.5; 2];
const ROW: f64 = 0.3137;

const OBJECTS: usize = 20;

/// Where the points of eight heads lie before training: of each head in another direction.
const DIRECTIONS: [[f64; 2]; 8] = [
    [1.0, 0.0],
    [1.0, 1.0],
    [0.0, 1.0],
    [-1.0, 1.0],
    [-1.0, 0.0],
    [-1.0, -1.0],
    [0.0, -1.0],
    [1.0, -1.0],
];

/// The standard deviation of the linear layer that Deformable DETR has its reference points from, before the sigmoid:
/// of 256 standard normal numbers, with weights by Xavier's rule.
const REFERENCE_SIGMA: f64 = 1.41;

/// Queries of RT-DETR, and the pixels of a row and a column of its finest level.
const RTDETR_QUERIES: usize = 300;
const RTDETR_PIXELS: usize = 80;

impl Distribution {
    /// Each, and how it is named.
    pub const ALL: [(Distribution, &'static str); 13] = [
        (Distribution::Uniform, "uniform"),
        (Distribution::Local, "local"),
        (Distribution::Window, "window"),
        (Distribution::Spot, "spot"),
        (Distribution::Cloud5, "cloud-5"),
        (Distribution::Cloud05, "cloud-0.5"),
        (Distribution::CornerBoxes, "corner-boxes"),
        (Distribution::ImageBoxes, "image-boxes"),
        (Distribution::Zipf, "zipf"),
        (Distribution::Row, "row"),
        (Distribution::Outside, "outside"),
        (Distribution::RtDetr, "rtdetr"),
        (Distribution::DeformableDetr, "deformable-detr"),
    ];

    /// As typed and recorded.
    pub fn name(self) -> &'static str {
        let mut all = Distribution::ALL.into_iter();
        let found = all.find(|(distribution, _)| *distribution == self);
        found.expect("all have names").1
    }

    /// Any of them.
    pub(super) fn random(rng: &mut Xoshiro256PlusPlus) -> Self {
        let found = Distribution::ALL.choose(rng);
        found.expect("there are some").0
    }

    /// The points of a query, by head, level and point, x first, as shares of the image; and the box that they belong to.
    /// `query` is its number, and the reference point it has where the distribution says nothing else.
    pub fn draw(
        self,
        rng: &mut Xoshiro256PlusPlus,
        query: (usize, [f64; 2]),
        (sizes, levels): (&Sizes, &Levels),
        locations: &mut [[f32; 2]],
    ) -> QueryBox {
        let found = self.query_box(rng, query);
        for (index, location) in locations.iter_mut().enumerate() {
            let (point, level) = (index % sizes.points, index / sizes.points % sizes.levels);
            let direction = DIRECTIONS[index / sizes.points / sizes.levels % DIRECTIONS.len()];
            let step = direction.map(|coordinate| coordinate * (point + 1) as f64);
            *location = self.point(rng, &found, &levels[level], step, sizes.points);
        }
        found
    }

    /// The box of a query, as for [`Distribution::draw`].
    pub(super) fn query_box(
        self,
        rng: &mut Xoshiro256PlusPlus,
        (query, reference): (usize, [f64; 2]),
    ) -> QueryBox {
        let (centre, extent) = match self {
            Distribution::Spot => (SPOT, None),
            Distribution::Cloud5 | Distribution::Cloud05 => (MIDDLE, None),
            Distribution::CornerBoxes if query % 4 == 0 => ([0.001; 2], Some([0.001; 2])),
            Distribution::ImageBoxes if query % 3 == 0 => ([1.0; 2], Some([1.0; 2])),
            Distribution::Zipf => object(rng),
            Distribution::Row => ([reference[0], ROW], None),
            Distribution::Outside => ([2.0 + reference[0], reference[1]], None),
            Distribution::RtDetr => anchor(query % RTDETR_QUERIES),
            Distribution::DeformableDetr => {
                let odds = LogNormal::new(0.0, REFERENCE_SIGMA).expect("a finite deviation");
                ([0; 2].map(|_| 1.0 / (1.0 + odds.sample(rng))), None)
            }
            _ => (reference, None),
        };
        QueryBox { centre, extent }
    }

    /// `step` is how far the point lies before training: of a box, in halves of a point's share; else in pixels.
    fn point(
        self,
        rng: &mut Xoshiro256PlusPlus,
        of: &QueryBox,
        level: &Level,
        step: [f64; 2],
        points: usize,
    ) -> [f32; 2] {
        // A level without pixels has points, too.
        let size = [level.width.max(1), level.height.max(1)].map(|size| size as f64);
        let around = |rng: &mut Xoshiro256PlusPlus, sigma: [f64; 2]| {
            [0, 1].map(|xy| {
                let normal: f64 = StandardNormal.sample(rng);
                of.centre[xy] + sigma[xy] * normal
            })
        };
        let location = match (self, of.extent) {
            (Distribution::Local, _) => around(rng, size.map(|size| LOCAL_SIGMA / size)),
            (Distribution::Window, _) => in_window(rng, size),
            (Distribution::Spot, _) => of.centre,
            (Distribution::Cloud5, _) => around(rng, [0.05; 2]),
            (Distribution::Cloud05, _) => around(rng, [0.005; 2]),
            (Distribution::Zipf, Some(extent)) => {
                [0, 1].map(|xy| of.centre[xy] + extent[xy] * (rng.random::<f64>() - 0.5))
            }
            (Distribution::Row, _) => [rng.random(), ROW],
            (Distribution::Outside, _) => [2.0 + rng.random::<f64>(), rng.random()],
            (Distribution::DeformableDetr, _) => {
                [0, 1].map(|xy| of.centre[xy] + step[xy] / size[xy])
            }
            (_, Some(extent)) => {
                [0, 1].map(|xy| of.centre[xy] + step[xy] / points as f64 * extent[xy] * 0.5)
            }
            _ => return [0; 2].map(|_| rng.random()),
        };
        location.map(|coordinate| coordinate as f32)
    }
}

/// Centre and extent of an anchor of RT-DETR. Those on the border are not valid, which makes all four numbers 1.
fn anchor(pixel: usize) -> ([f64; 2], Option<[f64; 2]>) {
    let place = [pixel % RTDETR_PIXELS, pixel / RTDETR_PIXELS];
    match place.iter().any(|it| [0, RTDETR_PIXELS - 1].contains(it)) {
        true => ([1.0; 2], Some([1.0; 2])),
        false => {
            let centre = place.map(|it| (it as f64 + 0.5) / RTDETR_PIXELS as f64);
            (centre, Some([0.05; 2]))
        }
    }
}

fn in_window(rng: &mut Xoshiro256PlusPlus, size: [f64; 2]) -> [f64; 2] {
    size.map(|size| {
        let window = WINDOW.min(size);
        let start = (WINDOW_START * size).min(size - window);
        (start + window * rng.random::<f64>()) / size
    })
}

/// Centre and extent of an object: the k-th is k times as rare as the first.
fn object(rng: &mut Xoshiro256PlusPlus) -> ([f64; 2], Option<[f64; 2]>) {
    let shares = (1..=OBJECTS).map(|rank| 1.0 / rank as f64);
    let mut left = rng.random::<f64>() * shares.clone().sum::<f64>();
    let before = shares.take_while(|share| {
        left -= share;
        left > 0.0
    });
    let object = before.count().min(OBJECTS - 1) as f64;
    // Spread evenly: multiples of powers of the plastic ratio.
    let spread = |step: f64| (0.5 + step * object).fract();
    let extent = 0.05 + 0.15 * spread(0.618_034);
    let centre = [spread(0.754_877_7), spread(0.569_840_3)];
    (centre, Some([extent; 2]))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// 300 queries of eight heads on one level.
    fn drawn(distribution: Distribution, seed: u64) -> Vec<[f32; 2]> {
        let levels = Levels::packed(&[(80, 80)]).unwrap();
        let sizes = Sizes {
            images: 1,
            pixels: levels.pixels(),
            heads: 8,
            channels: 1,
            queries: 300,
            levels: 1,
            points: 4,
        };
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut locations = vec![[f32::NAN; 2]; 300 * 8 * 4];
        for (query, row) in locations.chunks_mut(8 * 4).enumerate() {
            let reference = rng.random();
            distribution.draw(rng, (query, reference), (&sizes, &levels), row);
        }
        locations
    }

    /// Of all samples, the share that falls on the busiest 1 % of the pixels.
    fn crowding(locations: &[[f32; 2]]) -> f64 {
        let mut counts = vec![0usize; 80 * 80];
        for location in locations {
            let [x, y] = location.map(|coordinate| (coordinate * 80.0).floor());
            if (0.0..80.0).contains(&x) && (0.0..80.0).contains(&y) {
                counts[y as usize * 80 + x as usize] += 1;
            }
        }
        counts.sort_unstable();
        counts.iter().rev().take(64).sum::<usize>() as f64 / locations.len() as f64
    }

    #[test]
    fn all_but_the_spread_ones_crowd() {
        for (distribution, name) in Distribution::ALL {
            let locations = drawn(distribution, 1);
            assert!(
                locations.iter().flatten().all(|it| it.is_finite()),
                "{name}"
            );
            let found = crowding(&locations);
            let expected = match distribution {
                Distribution::Uniform | Distribution::Local => 0.03..0.05,
                Distribution::Outside => 0.0..f64::MIN_POSITIVE,
                Distribution::DeformableDetr => 0.03..0.1,
                Distribution::CornerBoxes => 0.25..0.35,
                Distribution::ImageBoxes => 0.05..0.2,
                Distribution::RtDetr => 0.1..0.3,
                Distribution::Zipf => 0.2..0.5,
                Distribution::Cloud5 => 0.4..0.6,
                Distribution::Row => 0.75..1.1,
                Distribution::Spot | Distribution::Window | Distribution::Cloud05 => 0.95..1.1,
            };
            assert!(expected.contains(&found), "{name}: {found}");
        }
    }

    #[test]
    fn every_distribution_has_one_name_and_a_place_among_all() {
        for (index, (distribution, name)) in Distribution::ALL.into_iter().enumerate() {
            assert_eq!(distribution.name(), name);
            assert_eq!(distribution as usize, index);
            let before = &Distribution::ALL[..index];
            assert!(before.iter().all(|(_, other)| *other != name));
        }
    }
}
