//! Random projections whose points and weights are those of given locations, but for rounding.

use fourtap::DType;
use fourtap::msda::{Levels, Sizes};
use fourtap::verify::QueryBox;
use rand::RngExt;
use rayon::prelude::*;

use crate::array::Array;
use crate::error::Result;
use crate::generate::{CHUNK, Purpose, filled};
use crate::operators::DataSpec;
use crate::operators::msda::{Workload, generate};

const EXTENTS: Purpose = 9;

/// Width and height of boxes, as shares of the image.
const EXTENT_RANGE: std::ops::Range<f32> = 0.05..0.5;

/// What linear layers put out for a workload.
pub struct RandomProjections {
    /// `[N, Q, L, 2]` or, for boxes, `[N, Q, L, 4]`, in f32.
    pub reference_points: Array,
    /// `[N, Q, 3*M*K]` in the type of value: all offsets of a query, then its logits.
    pub layer: Array,
}

/// The projections that give a workload's sampling locations and attention weights.
pub fn projections(
    workload: &Workload,
    sizes: &Sizes,
    levels: &Levels,
    filling: &DataSpec,
) -> Result<RandomProjections> {
    let (distribution, seed) = (filling.distribution, filling.seed);
    let (locations, query_boxes) =
        generate::located(sizes, levels, workload.reference, distribution, seed)?;
    let weights = generate::weights(sizes, seed)?;
    let boxes = workload.has_boxes();
    let extents = match boxes {
        true => Some(extents(sizes, seed)?),
        false => None,
    };
    let reference_points = references(sizes, &query_boxes, extents.as_ref())?;
    let (samples, coordinates) = (sizes.levels * sizes.points, if boxes { 4 } else { 2 });
    let (of_heads, row) = (sizes.heads * samples, 3 * sizes.heads * samples);
    let shape = [sizes.images, sizes.queries, row];
    let mut layer = Array::poisoned("projections", DType::F32, &shape)?;
    let (locations, weights) = (locations.elements::<f32>(), weights.elements::<f32>());
    let references = reference_points.elements::<f32>();
    let rows_a_chunk = (CHUNK / row).max(1);
    layer
        .elements_mut::<f32>()
        .par_chunks_mut(rows_a_chunk * row)
        .enumerate()
        .for_each(|(chunk, rows)| {
            for (index, row) in rows.chunks_mut(row).enumerate() {
                let query = chunk * rows_a_chunk + index;
                let (offsets, logits) = row.split_at_mut(2 * of_heads);
                for (index, offset) in offsets.iter_mut().enumerate() {
                    let (xy, level) = (index % 2, index / 2 / sizes.points % sizes.levels);
                    let reference = &references[(query * sizes.levels + level) * coordinates..];
                    let location = f64::from(locations[2 * query * of_heads + index]);
                    // What an offset of 1 moves by, as a share of the level.
                    let unit = match boxes {
                        true => f64::from(reference[2 + xy]) * 0.5 / sizes.points as f64,
                        false => 1.0 / [levels[level].width, levels[level].height][xy] as f64,
                    };
                    *offset = ((location - f64::from(reference[xy])) / unit) as f32;
                }
                let weights = &weights[query * of_heads..];
                for (logit, weight) in logits.iter_mut().zip(weights) {
                    *logit = weight.ln();
                }
            }
        });
    Ok(RandomProjections {
        reference_points,
        layer: match filling.dtype {
            DType::F32 => layer,
            other => layer.rounded("projections", other)?,
        },
    })
}

/// `[N, Q, 2]`: width and height of the box of each query that has none by its distribution.
fn extents(sizes: &Sizes, seed: u64) -> Result<Array> {
    let shape = [sizes.images, sizes.queries, 2];
    filled(
        "reference_points",
        &shape,
        DType::F32,
        seed,
        EXTENTS,
        |rng| rng.random_range(EXTENT_RANGE) as f64,
    )
}

/// The same point or box for every level of a query.
fn references(sizes: &Sizes, boxes: &[QueryBox], extents: Option<&Array>) -> Result<Array> {
    let coordinates = if extents.is_some() { 4 } else { 2 };
    let shape = [sizes.images, sizes.queries, sizes.levels, coordinates];
    let mut array = Array::poisoned("reference_points", DType::F32, &shape)?;
    let extents = extents.map(Array::elements::<f32>);
    let queries = array.elements_mut::<f32>();
    let queries = queries.chunks_mut(sizes.levels * coordinates).zip(boxes);
    for (query, (levels, found)) in queries.enumerate() {
        for reference in levels.chunks_mut(coordinates) {
            reference[..2].copy_from_slice(&found.centre.map(|it| it as f32));
            if let Some(extents) = extents {
                let drawn = [extents[2 * query], extents[2 * query + 1]];
                let extent = found.extent.map(|extent| extent.map(|it| it as f32));
                reference[2..].copy_from_slice(&extent.unwrap_or(drawn));
            }
        }
    }
    Ok(array)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fourtap::Backend;

    use super::*;
    use crate::cli::{Direction, Distribution};
    use crate::computation::computed;
    use crate::operators::Workload as _;

    #[test]
    fn points_and_weights_are_those_of_given_locations() {
        // Boxes of a decoder; points on a grid.
        for name in ["rtdetr-decoder", "ladder-n2-q256"] {
            for (distribution, _) in Distribution::ALL {
                let given = Workload::named(Path::new(name), Some(1)).unwrap();
                let projected = given.with_projections().unwrap();
                let filling = DataSpec {
                    dtype: DType::F32,
                    coordinates: DType::F32,
                    distribution,
                    backward: false,
                    seed: 3,
                };
                let [given, projected] =
                    [given.filled(&filling), projected.filled(&filling)].map(|tensors| {
                        let tensors = tensors.unwrap();
                        let trial = tensors.trial(Backend::default(), Direction::Forward);
                        let (outputs, _) = computed(&*trial.unwrap()).unwrap();
                        outputs[0].to_f64(0, outputs[0].element_count())
                    });
                let distance = |(a, b): (&f64, &f64)| (a - b).abs();
                let farthest = given.iter().zip(&projected).map(distance);
                let farthest = farthest.fold(0.0, f64::max);
                assert!(farthest < 1e-3, "{name}, {distribution:?}: {farthest}");
            }
        }
    }
}
