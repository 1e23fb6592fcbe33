//! Random problems from a seed: primes, ones, zeros and tails; every element type and layout; points outside the
//! image, on pixel centres, on borders, and at NaN; crowds of points on few pixels.

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

use super::points::Distribution;
use super::tensor::{Storage, Tensor};
use crate::dtype::DType;
use crate::msda::{Inputs, Levels, Sizes};
use crate::tensor::View;

/// A problem with its data.
#[derive(Clone, Debug)]
pub struct Case {
    /// The seed it was made from.
    pub seed: u64,
    /// The levels.
    pub levels: Levels,
    /// `[N, S, M, D]`.
    pub value: Tensor,
    /// `[N, Q, M, L, P, 2]`.
    pub sampling_locations: Tensor,
    /// `[N, Q, M, L, P]`.
    pub attention_weights: Tensor,
    /// `[N, Q, M*D]`.
    pub grad_out: Tensor,
    /// Layout of the outputs: `out`, then the gradients of value, locations and weights.
    pub outputs: [Storage; 4],
}

/// Approximate samples times channels of one case: small enough that the oracle takes milliseconds.
const WORK: usize = 60_000;

/// Numbers that break careless code when they occur in locations, weights or values.
pub const HOSTILE: [f64; 9] = [
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    1e38,
    -1e38,
    3e9,
    -3e9,
    1e-40,
    -0.0,
];

/// Which kind of problem is drawn from a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaseKind {
    /// Any.
    Any,
    /// Channels and rows fill multiples of 16 bytes, as kernels with wide loads need.
    Aligned,
    /// As `Aligned`, with small levels that kernels may keep in shared memory: an odd number of heads, points in fours.
    Keepable,
}

impl Case {
    /// The problem of this seed, the same on every machine.
    pub fn random(seed: u64) -> Self {
        Case::new(seed, CaseKind::Any)
    }

    /// The problem of this seed among those whose channels and rows fill multiples of 16 bytes.
    pub fn aligned(seed: u64) -> Self {
        Case::new(seed, CaseKind::Aligned)
    }

    /// The problem of this seed among those whose small levels kernels may keep in shared memory.
    pub fn keepable(seed: u64) -> Self {
        Case::new(seed, CaseKind::Keepable)
    }

    fn new(seed: u64, kind: CaseKind) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
        let (sizes, levels) = random_sizes(rng, kind);
        let dtype = pick(rng, &DType::ALL);
        let coordinates = [0, 1].map(|_| {
            if rng.random_bool(0.5) {
                DType::F32
            } else {
                dtype
            }
        });
        let hostile = rng.random_bool(0.125);
        let seeds: [u64; 4] = rng.random();
        let mut numbers = seeds.map(Xoshiro256PlusPlus::seed_from_u64);
        let [of_value, of_locations, of_weights, of_grad] = &mut numbers;

        let storage = random_storage(rng, 4, true, kind);
        let value = Tensor::from_fn(dtype, &sizes.value(), &storage, || {
            of_value.random_range(-1.0..1.0)
        });
        let storage = random_storage(rng, 6, true, kind);
        let crowd = crowd(seed);
        let crowded = crowd.map(|it| crowded_locations(of_locations, it, &sizes, &levels));
        let mut index = 0;
        let sampling_locations = Tensor::from_fn(
            coordinates[0],
            &sizes.sampling_locations(),
            &storage,
            || {
                let level = &levels[index / 2 / sizes.points % sizes.levels];
                let size = if index % 2 == 0 {
                    level.width
                } else {
                    level.height
                };
                index += 1;
                match &crowded {
                    Some(_) if hostile && of_locations.random_bool(0.05) => {
                        pick(of_locations, &HOSTILE)
                    }
                    Some(locations) => locations[index - 1].into(),
                    None => random_location(of_locations, size, hostile),
                }
            },
        );
        let storage = random_storage(rng, 5, true, kind);
        let scale = 1.0 / (sizes.levels * sizes.points).max(1) as f64;
        let attention_weights =
            Tensor::from_fn(coordinates[1], &sizes.attention_weights(), &storage, || {
                if of_weights.random_bool(0.05) {
                    0.0
                } else {
                    of_weights.random_range(-1.0..3.0) * scale
                }
            });
        let storage = random_storage(rng, 3, true, kind);
        let grad_out = Tensor::from_fn(dtype, &sizes.out(), &storage, || {
            of_grad.random_range(-1.0..1.0)
        });
        let outputs = [3, 4, 6, 5].map(|rank| random_storage(rng, rank, false, kind));
        Case {
            seed,
            levels,
            value,
            sampling_locations,
            attention_weights,
            grad_out,
            outputs,
        }
    }

    /// The inputs of the operator.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            value: self.value.view(),
            levels: (&self.levels).into(),
            sampling_locations: self.sampling_locations.view(),
            attention_weights: self.attention_weights.view(),
        }
    }

    /// The gradient of the output.
    pub fn grad_out(&self) -> View<'_> {
        self.grad_out.view()
    }
}

pub(super) fn pick<T: Copy>(rng: &mut Xoshiro256PlusPlus, from: &[T]) -> T {
    *from.choose(rng).expect("something to choose from")
}

pub(super) fn random_sizes(rng: &mut Xoshiro256PlusPlus, kind: CaseKind) -> (Sizes, Levels) {
    loop {
        let channels = match rng.random_range(0..20) {
            _ if kind == CaseKind::Keepable => 32,
            _ if kind == CaseKind::Aligned => pick(rng, &[8, 16, 24, 32, 32, 48, 64, 96, 128]),
            0 => pick(rng, &[257, 511, 1025]),
            1..8 => pick(rng, &[8, 16, 32, 64, 128]),
            _ => pick(
                rng,
                &[
                    1, 2, 3, 5, 7, 12, 15, 17, 24, 30, 31, 33, 47, 48, 63, 65, 71, 80, 96, 100,
                    129, 130,
                ],
            ),
        };
        let shapes: Vec<(usize, usize)> = (0..pick(rng, &[0, 1, 1, 1, 2, 2, 3, 4, 4, 5]))
            .map(|_| {
                let mut size = || pick(rng, &[1, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 20, 23, 37]);
                let shape = (size(), size());
                if rng.random_bool(0.02) {
                    (0, shape.1)
                } else {
                    shape
                }
            })
            .collect();
        let levels = random_levels(rng, &shapes);
        let sizes = Sizes {
            images: pick(rng, &[0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 5]),
            pixels: levels.pixels(),
            heads: match kind {
                CaseKind::Keepable => pick(rng, &[1, 1, 3]),
                _ => pick(rng, &[1, 1, 1, 2, 2, 3, 4, 8]),
            },
            channels,
            queries: pick(rng, &[0, 1, 1, 2, 3, 5, 7, 13, 17, 32, 64, 101, 300]),
            levels: levels.len(),
            points: match kind {
                CaseKind::Keepable => pick(rng, &[4, 8, 8, 16]),
                _ => pick(rng, &[0, 1, 1, 2, 3, 4, 4, 4, 5, 8, 8, 9, 16, 17, 21]),
            },
        };
        // An empty problem is worth a test now and then, not every time a size may be 0.
        let empty = sizes.samples() == 0;
        let work = (sizes.samples() + sizes.images * sizes.pixels * sizes.heads) * sizes.channels;
        if work <= WORK && (!empty || rng.random_bool(0.2)) {
            return (sizes, levels);
        }
    }
}

fn random_levels(rng: &mut Xoshiro256PlusPlus, shapes: &[(usize, usize)]) -> Levels {
    let mut order: Vec<usize> = (0..shapes.len()).collect();
    if rng.random_bool(0.25) {
        order.shuffle(rng);
    }
    let mut starts = vec![0; shapes.len()];
    let mut next = 0;
    for level in order {
        starts[level] = next;
        next += shapes[level].0 * shapes[level].1;
    }
    Levels::with_starts(shapes, &starts).expect("levels laid one after another")
}

/// Where the points of a seed's problem lie, if not anywhere and on the borders of pixels. Of a stream of its own, so that
/// all else about the problem stays as it is.
pub(super) fn crowd(seed: u64) -> Option<Distribution> {
    const STREAM: u64 = 0x706f_696e_7473;
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed ^ STREAM);
    rng.random_bool(0.5).then(|| Distribution::random(rng))
}

/// `sampling_locations`.
fn crowded_locations(
    rng: &mut Xoshiro256PlusPlus,
    distribution: Distribution,
    sizes: &Sizes,
    levels: &Levels,
) -> Vec<f32> {
    let of_query = sizes.heads * sizes.levels * sizes.points;
    let mut locations = vec![[0.0; 2]; sizes.samples()];
    for (index, row) in locations.chunks_mut(of_query.max(1)).enumerate() {
        let query = (index % sizes.queries, rng.random());
        distribution.draw(rng, query, (sizes, levels), row);
    }
    locations.into_flattened()
}

fn random_location(rng: &mut Xoshiro256PlusPlus, size: usize, hostile: bool) -> f64 {
    let size = size.max(1) as f64;
    match rng.random_range(0..20) {
        // On a pixel centre, on the border between two pixels, and at the last positions that still take part.
        0 | 1 => (rng.random_range(0.0..size).floor() + 0.5) / size,
        2 => rng.random_range(0.0..size).floor() / size,
        3 => pick(rng, &[-0.5, 0.0, size, size + 0.5]) / size,
        4 if hostile => pick(rng, &HOSTILE),
        _ => rng.random_range(-0.2..1.2),
    }
}

pub(super) fn random_storage(
    rng: &mut Xoshiro256PlusPlus,
    rank: usize,
    input: bool,
    kind: CaseKind,
) -> Storage {
    let mut storage = Storage::dense(rank);
    if rng.random_bool(0.6) {
        return storage;
    }
    if kind != CaseKind::Any {
        // Gaps between rows only: after the channels of value and out, and after the samples of a row.
        storage.guard = 16;
        let inner = if rank < 5 { 1 } else { rank - 3 };
        for gap in &mut storage.gaps[..rank - inner] {
            *gap = pick(rng, &[0, 8, 16, 32]);
        }
        return storage;
    }
    storage.guard = 19;
    let axis = rng.random_range(0..rank);
    match rng.random_range(0..if input { 5 } else { 4 }) {
        0 => storage.order.shuffle(rng),
        1 => storage.gaps = (0..rank).map(|_| rng.random_range(0..4)).collect(),
        2 => storage.reversed[axis] = true,
        3 => {}
        _ => storage.broadcast[axis] = true,
    }
    storage
}
