//! The cost model: bytes and FLOP of a problem, independent of the implementation.

use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Layout;
use crate::msda::oracle::{Reader, Sample};
use crate::msda::projections::{Interpolation, ProjectedProblem};
use crate::msda::{Inputs, Problem};

/// Bytes and FLOP of a problem, as all reports count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that must move at least once: every input read once, every output written once.
    pub compulsory_bytes: u64,
    /// Bytes of `value` that the samples gather: four corners per sample, whether inside the level or not.
    pub gathered_bytes: u64,
    /// Floating-point operations, counted as 10 per channel and sample.
    pub flop: u64,
}

impl Traffic {
    const FLOP_PER_CHANNEL_AND_SAMPLE: u64 = 10;

    /// Traffic of the forward pass.
    ///
    /// ```
    /// # use fourtap::{View, msda::{Inputs, Levels, Problem, Traffic}};
    /// let levels = Levels::packed(&[(4, 4)])?;
    /// let (value, locations, weights) = ([0f32; 16 * 8], [0f32; 6], [0f32; 3]);
    /// let problem = Problem::new(&Inputs {
    ///     value: View::new(&value, &[1, 16, 1, 8]),
    ///     levels: (&levels).into(),
    ///     sampling_locations: View::new(&locations, &[1, 1, 1, 1, 3, 2]),
    ///     attention_weights: View::new(&weights, &[1, 1, 1, 1, 3]),
    /// })?;
    /// let traffic = Traffic::of_forward(&problem);
    /// assert_eq!(traffic.flop, 10 * 8 * 3);
    /// assert_eq!(traffic.gathered_bytes, 3 * 4 * 8 * 4);
    /// assert_eq!(traffic.compulsory_bytes, 4 * (16 * 8 + 6 + 3 + 8));
    /// # Ok::<(), fourtap::Error>(())
    /// ```
    pub fn of_forward(problem: &Problem) -> Self {
        let sizes = problem.sizes();
        let (value, out) = (
            bytes(&sizes.value(), problem.value().dtype()),
            problem.value().dtype(),
        );
        let per_sample = sizes.channels as u64 * sizes.samples() as u64;
        Traffic {
            compulsory_bytes: value + Self::coordinates(problem) + bytes(&sizes.out(), out),
            gathered_bytes: 4 * per_sample * problem.value().dtype().size() as u64,
            flop: Self::FLOP_PER_CHANNEL_AND_SAMPLE * per_sample,
        }
    }

    /// Traffic of the backward pass with all three gradients: the inputs of forward and `grad_out` are read, three
    /// gradients written; each corner is read once and added to once.
    pub fn of_backward(problem: &Problem) -> Self {
        let forward = Self::of_forward(problem);
        let value = bytes(&problem.sizes().value(), problem.value().dtype());
        Traffic {
            compulsory_bytes: forward.compulsory_bytes + value + Self::coordinates(problem),
            gathered_bytes: 2 * forward.gathered_bytes,
            flop: 2 * forward.flop,
        }
    }

    /// Traffic of the forward pass [from projections](crate::msda::projections), without a mask. Reference points that stand
    /// for several are read once; the nearest pixel is one corner instead of four.
    pub fn of_projected_forward(problem: &ProjectedProblem) -> Self {
        let (sizes, value) = (problem.sizes(), problem.value().dtype());
        let rows = [sizes.images, sizes.queries, sizes.heads];
        let rows = rows.map(|size| size as u64).iter().product::<u64>();
        let per_sample = rows * problem.samples() as u64 * sizes.channels as u64;
        let corners = match problem.interpolation() {
            Interpolation::Bilinear => 4,
            Interpolation::Nearest => 1,
        };
        Traffic {
            compulsory_bytes: bytes(&sizes.value(), value)
                + Self::projections(problem)
                + bytes(&sizes.out(), value),
            gathered_bytes: corners * per_sample * value.size() as u64,
            flop: Self::FLOP_PER_CHANNEL_AND_SAMPLE * per_sample,
        }
    }

    /// Traffic of the backward pass from projections with all four gradients, counted as [`Traffic::of_backward`] does.
    pub fn of_projected_backward(problem: &ProjectedProblem) -> Self {
        let forward = Self::of_projected_forward(problem);
        let value = bytes(&problem.sizes().value(), problem.value().dtype());
        Traffic {
            compulsory_bytes: forward.compulsory_bytes + value + Self::projections(problem),
            gathered_bytes: 2 * forward.gathered_bytes,
            flop: 2 * forward.flop,
        }
    }

    /// Bytes of reference points, offsets and logits.
    fn projections(problem: &ProjectedProblem) -> u64 {
        let (sizes, references) = (problem.sizes(), problem.references());
        let mut shape = [
            sizes.images,
            sizes.queries,
            sizes.levels,
            references.turns,
            references.coordinates(),
        ];
        for (size, stride) in shape.iter_mut().zip(references.strides) {
            // One stands for every index.
            *size = if stride == 0 { 1 } else { *size };
        }
        let of = |layout: &Layout| bytes(layout.shape().sizes(), layout.dtype());
        bytes(&shape, references.dtype)
            + of(problem.sampling_offsets())
            + of(problem.attention_logits())
    }

    /// Bytes of locations and weights.
    fn coordinates(problem: &Problem) -> u64 {
        let sizes = problem.sizes();
        bytes(
            &sizes.sampling_locations(),
            problem.sampling_locations().dtype(),
        ) + bytes(
            &sizes.attention_weights(),
            problem.attention_weights().dtype(),
        )
    }
}

/// Fraction of the four corners of all samples that lie inside their level; 1 if there are no samples.
pub fn in_bounds_fraction(inputs: &Inputs<'_>) -> Result<f64> {
    let reader = Reader::new(inputs)?;
    let sizes = *reader.problem().sizes();
    let (mut inside, mut all) = (0u64, 0u64);
    for image in 0..sizes.images {
        for query in 0..sizes.queries {
            for head in 0..sizes.heads {
                reader.each_sample([image, query, head], |sample: Sample<f64>| {
                    inside += sample.corners.iter().flatten().count() as u64;
                    all += 4;
                });
            }
        }
    }
    Ok(if all == 0 {
        1.0
    } else {
        inside as f64 / all as f64
    })
}

fn bytes(shape: &[usize], dtype: DType) -> u64 {
    shape.iter().map(|&size| size as u64).product::<u64>() * dtype.size() as u64
}
