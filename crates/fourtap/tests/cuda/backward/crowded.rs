//! Points that crowd, so that lists of samples are cut and warps share them: every element against the oracle, with gradients that
//! are finite and with some, or all, that are not.

use fourtap::DType;
use fourtap::msda::Levels;
use fourtap::verify::{Case, Storage, Tensor};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rayon::prelude::*;

use super::hostile;
use super::oracle::{BackwardSetting, EACH_KERNEL, check};
use crate::gpu::{self, Tally};

/// How points lie.
#[derive(Clone, Copy, Debug)]
enum Crowd {
    /// All at the same place.
    Spot,
    /// In a square of this share of the image.
    Square(f64),
    /// In one row of it.
    Row,
    /// Half of them in a corner, and beyond.
    Corner,
}

impl Crowd {
    const ALL: [Crowd; 5] = [
        Crowd::Spot,
        Crowd::Square(0.02),
        Crowd::Square(0.2),
        Crowd::Row,
        Crowd::Corner,
    ];

    fn place(self, rng: &mut Xoshiro256PlusPlus) -> [f64; 2] {
        let mut anywhere = || rng.random_range(0.0..1.0);
        match self {
            Crowd::Spot => [0.4321, 0.5678],
            Crowd::Square(share) => [anywhere(), anywhere()].map(|x| 0.5 + share * (x - 0.5)),
            Crowd::Row => [anywhere(), 0.37],
            Crowd::Corner if anywhere() < 0.5 => [anywhere(), anywhere()].map(|x| 0.01 * x - 0.005),
            Crowd::Corner => [anywhere(), anywhere()],
        }
    }
}

/// Levels, queries and heads.
type Sizes = (&'static [(usize, usize)], usize, usize);

/// So many as are listed by bands, and as are sorted.
const SIZES: [Sizes; 2] = [
    (&[(40, 60), (17, 19)], 500, 2),
    // Many pixels, so that there is memory for parts of lists.
    (&[(190, 300), (33, 47)], 6000, 1),
];

/// As few as are cut into parts all the same.
const FEW: Sizes = (&[(70, 90)], 400, 1);

/// Of the gradients, how many are not finite: none, one in a thousand queries, all.
const UNSOUND: [f64; 3] = [0.0, 0.001, 1.0];

fn case(seed: u64, unsound: f64) -> Case {
    let number = seed as usize;
    let (crowd, sizes) = (Crowd::ALL[number % 5], SIZES[number / 5 % 2]);
    problem(seed, crowd, sizes, DType::ALL[number / 10 % 4], unsound)
}

/// Small enough for tools that are slow: all at one place.
pub fn small(seed: u64) -> Case {
    let dtype = DType::ALL[seed as usize % 4];
    problem(seed, Crowd::Spot, FEW, dtype, UNSOUND[0])
}

fn problem(seed: u64, crowd: Crowd, (shapes, q, m): Sizes, dtype: DType, unsound: f64) -> Case {
    let rng = &mut Xoshiro256PlusPlus::seed_from_u64(seed);
    let levels = Levels::packed(shapes).unwrap();
    let (l, p, d) = (levels.len(), 4, 32);
    let dense = |dtype, shape: &[usize], next: &mut dyn FnMut() -> f64| {
        Tensor::from_fn(dtype, shape, &Storage::dense(shape.len()), next)
    };
    let value = dense(dtype, &[1, levels.pixels(), m, d], &mut || {
        rng.random_range(-1.0..1.0)
    });
    let mut places = Vec::new();
    let sampling_locations = dense(DType::F32, &[1, q, m, l, p, 2], &mut || {
        if places.is_empty() {
            let [x, y] = crowd.place(rng);
            places = vec![y, x];
        }
        places.pop().unwrap()
    });
    let attention_weights = dense(DType::F32, &[1, q, m, l, p], &mut || {
        rng.random_range(0.0..0.25)
    });
    let mut element = 0;
    let mut row_is_unsound = false;
    let grad_out = dense(dtype, &[1, q, m * d], &mut || {
        if element % (m * d) == 0 {
            row_is_unsound = unsound > 0.0 && rng.random_bool(unsound);
        }
        element += 1;
        match row_is_unsound {
            true => [f64::NAN, f64::INFINITY, f64::NAN][element % 3],
            false => rng.random_range(-1.0..1.0),
        }
    });
    Case {
        seed,
        value,
        sampling_locations,
        attention_weights,
        grad_out,
        outputs: [3, 4, 6, 5].map(Storage::dense),
        levels,
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn crowded_points_match_the_oracle() {
    let cuda = gpu::device();
    let tally = Tally::default();
    let settings = BackwardSetting::all(&EACH_KERNEL);
    let sound = |seed| case(seed, UNSOUND[0]);
    check(&cuda, 0..40, sound, &settings, &tally);
    (0..80u64).into_par_iter().for_each(|number| {
        let unsound = UNSOUND[1 + number as usize / 40];
        hostile::compare(&cuda, &case(number % 40, unsound), &tally);
    });
    let kernels = [
        "msda_backward_sort",
        "msda_backward_value_bands",
        "msda_backward_value_channel",
        "msda_backward_value_matrix",
        "msda_backward_samples_gather",
        "msda_backward_samples_matrix",
    ];
    let details = "results where points crowd, gradients finite or not, every element";
    tally.evidence(&cuda, "crowded", &kernels, details);
}
