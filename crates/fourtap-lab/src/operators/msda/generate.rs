//! Random tensors of deformable attention.

use std::array;

use fourtap::DType;
use fourtap::msda::{Levels, Sizes};
use fourtap::verify::QueryBox;
use rand::RngExt;
use rand_distr::{Distribution as _, LogNormal};
use rayon::prelude::*;

use super::Reference;
use crate::array::Array;
use crate::cli::Distribution;
use crate::error::Result;
use crate::generate::{CHUNK, Purpose, filled, stream};

const VALUE: Purpose = 1;
const GRAD_OUT: Purpose = 2;
const LOCATIONS: Purpose = 3;
const WEIGHTS: Purpose = 4;

/// `value`: uniform from -1 to 1, the same numbers in every type but for rounding.
pub fn value(sizes: &Sizes, dtype: DType, seed: u64) -> Result<Array> {
    uniform("value", &sizes.value(), dtype, seed, VALUE)
}

/// `grad_out`: as `value`.
pub fn grad_out(sizes: &Sizes, dtype: DType, seed: u64) -> Result<Array> {
    uniform("grad_out", &sizes.out(), dtype, seed, GRAD_OUT)
}

fn uniform(
    tensor: &str,
    shape: &[usize],
    dtype: DType,
    seed: u64,
    purpose: Purpose,
) -> Result<Array> {
    filled(tensor, shape, dtype, seed, purpose, |rng| {
        rng.random_range(-1.0f32..1.0) as f64
    })
}

/// `attention_weights` in f32: the softmax of normal logits, so positive and of sum 1 for each (image, query, head).
pub fn weights(sizes: &Sizes, seed: u64) -> Result<Array> {
    let mut array = Array::poisoned("attention_weights", DType::F32, &sizes.attention_weights())?;
    let row = sizes.levels * sizes.points;
    let exponentials = LogNormal::new(0.0, 1.0).expect("a finite, positive deviation");
    let rows_a_chunk = (CHUNK / row).max(1);
    array
        .elements_mut::<f32>()
        .par_chunks_mut(rows_a_chunk * row)
        .enumerate()
        .for_each(|(chunk, rows)| {
            let mut rng = stream(seed, WEIGHTS, chunk);
            for row in rows.chunks_mut(row) {
                row.fill_with(|| exponentials.sample(&mut rng) as f32);
                let sum: f32 = row.iter().sum();
                row.iter_mut().for_each(|weight| *weight /= sum);
            }
        });
    Ok(array)
}

/// `sampling_locations` in f32.
pub fn locations(
    sizes: &Sizes,
    levels: &Levels,
    reference: Reference,
    distribution: Distribution,
    seed: u64,
) -> Result<Array> {
    let (locations, _) = located(sizes, levels, reference, distribution, seed)?;
    Ok(locations)
}

/// `sampling_locations` in f32, and the box of each query.
pub fn located(
    sizes: &Sizes,
    levels: &Levels,
    reference: Reference,
    distribution: Distribution,
    seed: u64,
) -> Result<(Array, Vec<QueryBox>)> {
    let mut array = Array::poisoned(
        "sampling_locations",
        DType::F32,
        &sizes.sampling_locations(),
    )?;
    let unknown = QueryBox {
        centre: [f64::NAN; 2],
        extent: None,
    };
    let mut boxes = vec![unknown; sizes.images * sizes.queries];
    let row = sizes.heads * sizes.levels * sizes.points * 2;
    let rows_a_chunk = (CHUNK / row).max(1);
    array
        .elements_mut::<f32>()
        .par_chunks_mut(rows_a_chunk * row)
        .zip(boxes.par_chunks_mut(rows_a_chunk))
        .enumerate()
        .for_each(|(chunk, (rows, boxes))| {
            let mut rng = stream(seed, LOCATIONS, chunk);
            let rows = rows.chunks_mut(row).zip(boxes);
            for (index, (row, recorded)) in rows.enumerate() {
                let query = (chunk * rows_a_chunk + index) % sizes.queries;
                let centre = match reference {
                    Reference::Pixels => pixel_centre(levels, query),
                    Reference::Raster => raster_point(levels, sizes.queries, query),
                    Reference::Random => array::from_fn(|_| rng.random()),
                };
                let row = row.as_chunks_mut().0;
                *recorded = distribution.draw(&mut rng, (query, centre), (sizes, levels), row);
            }
        });
    Ok((array, boxes))
}

/// Centre (x, y) of a pixel, counted over all levels.
fn pixel_centre(levels: &Levels, pixel: usize) -> [f64; 2] {
    let level = levels
        .iter()
        .find(|level| (level.start..level.start + level.pixels()).contains(&pixel));
    let level = level.expect("levels cover every pixel");
    let (row, column) = (
        (pixel - level.start) / level.width,
        (pixel - level.start) % level.width,
    );
    [
        (column as f64 + 0.5) / level.width as f64,
        (row as f64 + 0.5) / level.height as f64,
    ]
}

/// The centre of a cell of the grid, shaped like the first level, that has just room for all queries.
fn raster_point(levels: &Levels, queries: usize, query: usize) -> [f64; 2] {
    let aspect = levels[0].width as f64 / levels[0].height as f64;
    let columns = ((queries as f64 * aspect).sqrt().ceil() as usize).clamp(1, queries);
    let rows = queries.div_ceil(columns);
    [
        ((query % columns) as f64 + 0.5) / columns as f64,
        ((query / columns) as f64 + 0.5) / rows as f64,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::msda::Workload;
    use std::path::Path;

    fn sizes() -> (Sizes, Levels) {
        let workload = Workload::named(Path::new("detr-encoder"), Some(1)).unwrap();
        let levels = workload.levels().unwrap();
        (workload.sizes(&levels), levels)
    }

    #[test]
    fn a_seed_gives_the_same_numbers_for_any_number_of_threads() {
        let (sizes, levels) = sizes();
        let make = |threads, seed| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| {
                let reference = Reference::Random;
                let locations =
                    locations(&sizes, &levels, reference, Distribution::Local, seed).unwrap();
                [
                    locations.bytes().to_vec(),
                    weights(&sizes, seed).unwrap().bytes().to_vec(),
                    value(&sizes, DType::BF16, seed).unwrap().bytes().to_vec(),
                ]
            })
        };
        let (one, three, other) = (make(1, 5), make(3, 5), make(1, 6));
        assert!(one == three);
        assert!(one.iter().zip(&other).all(|(one, other)| one != other));
    }

    #[test]
    fn these_are_the_numbers_of_seed_zero() {
        let (sizes, levels) = sizes();
        let local = locations(&sizes, &levels, Reference::Pixels, Distribution::Local, 0).unwrap();
        let bits = |array: &Array| {
            array.elements::<f32>()[..3]
                .iter()
                .map(|x| x.to_bits())
                .collect::<Vec<_>>()
        };
        let found = [
            bits(&value(&sizes, DType::F32, 0).unwrap()),
            bits(&local),
            bits(&weights(&sizes, 0).unwrap()),
        ];
        assert_eq!(
            found.concat(),
            SEED_ZERO,
            "published results would no longer be comparable"
        );
    }

    const SEED_ZERO: [u32; 9] = [
        1054450832, 3143832576, 1063879544, 1025187142, 3163867861, 1017084367, 1015906801,
        1038231327, 1042978532,
    ];

    #[test]
    fn weights_are_positive_and_sum_to_one() {
        let (sizes, _) = sizes();
        let array = weights(&sizes, 1).unwrap();
        for row in array.elements::<f32>().chunks(sizes.levels * sizes.points) {
            assert!(row.iter().all(|&weight| weight > 0.0));
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        }
    }

    #[test]
    fn local_points_scatter_four_pixels_around_their_reference() {
        let (sizes, levels) = sizes();
        for reference in [Reference::Pixels, Reference::Raster] {
            let array = locations(&sizes, &levels, reference, Distribution::Local, 2).unwrap();
            let mut squares = vec![[0f64; 2]; sizes.levels];
            for (index, location) in array
                .elements::<f32>()
                .as_chunks::<2>()
                .0
                .iter()
                .enumerate()
            {
                let query = index / (sizes.heads * sizes.levels * sizes.points);
                let centre = match reference {
                    Reference::Pixels => pixel_centre(&levels, query),
                    _ => raster_point(&levels, sizes.queries, query),
                };
                let level = index / sizes.points % sizes.levels;
                let size = [levels[level].width, levels[level].height];
                for xy in 0..2 {
                    squares[level][xy] +=
                        ((location[xy] as f64 - centre[xy]) * size[xy] as f64).powi(2);
                }
            }
            let count = (array.element_count() / 2 / sizes.levels) as f64;
            for sigma in squares
                .into_iter()
                .flatten()
                .map(|square| (square / count).sqrt())
            {
                assert!((sigma - 4.0).abs() < 0.05, "{reference:?}: sigma {sigma}");
            }
        }
    }

    #[test]
    fn window_points_share_six_pixels_of_each_level() {
        let (mut sizes, _) = sizes();
        let shapes = [(100, 167), (13, 21), (7, 8), (3, 1)];
        let levels = Levels::packed(&shapes).unwrap();
        sizes.queries = 1000;
        let array = locations(&sizes, &levels, Reference::Random, Distribution::Window, 3).unwrap();
        let mut range = [[(f64::MAX, f64::MIN); 2]; 4];
        let locations = array.elements::<f32>().as_chunks::<2>().0;
        for (index, location) in locations.iter().enumerate() {
            let level = index / sizes.points % sizes.levels;
            let size = [shapes[level].1, shapes[level].0];
            for xy in 0..2 {
                let pixel = location[xy] as f64 * size[xy] as f64;
                let (low, high) = &mut range[level][xy];
                (*low, *high) = (low.min(pixel), high.max(pixel));
            }
        }
        let expected = [
            [(66.8, 72.8), (40.0, 46.0)],
            [(8.4, 14.4), (5.2, 11.2)],
            [(2.0, 8.0), (1.0, 7.0)],
            [(0.0, 1.0), (0.0, 3.0)],
        ];
        for (found, expected) in range.iter().flatten().zip(expected.iter().flatten()) {
            assert!((found.0 - expected.0).abs() < 0.01, "{range:?}");
            assert!((found.1 - expected.1).abs() < 0.01, "{range:?}");
        }
    }

    #[test]
    fn references_cover_the_image_in_order() {
        let levels = Levels::packed(&[(2, 4), (1, 2)]).unwrap();
        assert_eq!(pixel_centre(&levels, 0), [0.125, 0.25]);
        assert_eq!(pixel_centre(&levels, 7), [0.875, 0.75]);
        assert_eq!(pixel_centre(&levels, 9), [0.75, 0.5]);
        assert_eq!(raster_point(&levels, 8, 0), [0.125, 0.25]);
        assert_eq!(raster_point(&levels, 8, 7), [0.875, 0.75]);
        assert_eq!(raster_point(&levels, 1, 0), [0.5, 0.5]);
    }
}
