//! Small problems that every rung must get right, to the last element.

use fourtap::DType;
use fourtap::msda::{Levels, Sizes};
use fourtap_lab::extension::{Array, Result, generate};
use rand::RngExt;

use super::Numbers;

/// Sizes of a small problem.
#[derive(Clone, Copy, Debug)]
pub struct Small {
    images: usize,
    queries: usize,
    heads: usize,
    channels: usize,
    points: usize,
    /// (height, width).
    levels: &'static [(usize, usize)],
}

const fn small(
    [images, queries, heads, channels, points]: [usize; 5],
    levels: &'static [(usize, usize)],
) -> Small {
    Small {
        images,
        queries,
        heads,
        channels,
        points,
        levels,
    }
}

/// Every number of channels; one and several of everything else; levels of one pixel, one row, one column; as many rows as
/// fill no block evenly; as many pixels as need several copies.
pub const SMALL: [Small; 9] = [
    small([2, 37, 2, 32, 8], &[(12, 20), (6, 10), (3, 5), (2, 3)]),
    small([1, 5, 1, 16, 1], &[(1, 1)]),
    small([3, 64, 8, 32, 4], &[(16, 16), (8, 8), (4, 4), (2, 2)]),
    small([1, 130, 4, 64, 3], &[(9, 7), (5, 4), (3, 2)]),
    small(
        [2, 33, 1, 128, 2],
        &[(7, 13), (1, 9), (4, 1), (1, 1), (2, 2)],
    ),
    small([1, 100, 3, 16, 5], &[(31, 17), (15, 8)]),
    small([2, 700, 1, 32, 8], &[(46, 80), (23, 40), (12, 20), (6, 10)]),
    small([1, 1, 1, 32, 4], &[(25, 42), (13, 21)]),
    small([2, 257, 2, 64, 4], &[(20, 300), (10, 150), (5, 75)]),
];

impl Small {
    /// Sizes, as in an error message.
    pub fn in_words(&self) -> String {
        format!(
            "N {} Q {} M {} D {} P {} levels {:?}",
            self.images, self.queries, self.heads, self.channels, self.points, self.levels
        )
    }

    /// Fresh numbers for it; of the locations some are outside, on borders, on centres or no numbers at all.
    pub fn numbers(&self, seed: u64) -> Result<Numbers> {
        let levels = Levels::packed(self.levels)?;
        let sizes = Sizes {
            images: self.images,
            pixels: levels.pixels(),
            heads: self.heads,
            channels: self.channels,
            queries: self.queries,
            levels: levels.len(),
            points: self.points,
        };
        Ok(Numbers {
            value: generate::value(&sizes, DType::F16, seed)?,
            locations: locations(&sizes, &levels, seed)?,
            weights: generate::weights(&sizes, seed)?,
            levels,
        })
    }
}

fn locations(sizes: &Sizes, levels: &Levels, seed: u64) -> Result<Array> {
    let shape = sizes.sampling_locations();
    let mut array = Array::poisoned("sampling_locations", DType::F32, &shape)?;
    let mut rng = generate::sample_stream(seed);
    let pairs = array.elements_mut::<f32>().as_chunks_mut::<2>().0;
    for (index, pair) in pairs.iter_mut().enumerate() {
        let level = &levels[index / sizes.points % sizes.levels];
        for (place, size) in pair.iter_mut().zip([level.width, level.height]) {
            let pixel = rng.random_range(0..=size as u64) as f32;
            *place = match rng.random_range(0..100u32) {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => -1e30,
                3..10 => (pixel + 0.5) / size as f32,
                10..17 => pixel / size as f32,
                _ => rng.random_range(-0.2f32..1.2),
            };
        }
    }
    Ok(array)
}
