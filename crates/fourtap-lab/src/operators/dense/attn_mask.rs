//! Attention masks that are tensors: what those of workloads look like, and their numbers.

use std::ops::Range;

use fourtap::dense::{AttnMask, AttnMaskDesc, Problem, Sizes, Traffic};
use fourtap::{BoolView, DType, Shape};
use rand::RngExt;
use rand_distr::{Distribution as _, StandardNormal};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::error::{Error, Result};
use crate::generate::{CHUNK, Purpose, filled, stream};
use crate::machine;

const ATTN_MASK: Purpose = 10;

/// Positions in groups, and how many each group has: DINO's decoder has about as many for denoising.
const GROUPED: usize = 200;
const GROUP: usize = 20;

/// Of ten keys, so many are seen by a query where any may be.
const SEEN_OF_TEN: u64 = 3;

/// What a tensor that masks is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttnMaskKind {
    /// Booleans `[Sq, Sk]`: the first 200 positions are ten groups, each of which sees itself and all later positions; those see
    /// only each other.
    Groups,
    /// Numbers `[1, Hq, Sq, Sk]`, standard normal, in the type of `query`: as a table of relative positions gives.
    Bias,
    /// Booleans `[B, Hq, Sq, Sk]`, each true with a probability of 0.3.
    Any,
    /// Booleans `[B, 1, 1, Sk]`: of each sequence, the keys below its length. Lengths fall evenly from Sk for the first to 0.6 Sk
    /// for the last.
    Padding,
}

impl AttnMaskKind {
    /// In a few words, after "keys seen:" or beside a causal mask.
    pub fn in_words(self) -> &'static str {
        match self {
            AttnMaskKind::Groups => "mask of groups",
            AttnMaskKind::Bias => "bias",
            AttnMaskKind::Any => "mask of any",
            AttnMaskKind::Padding => "mask of padding",
        }
    }

    /// The shape, which broadcasts to `[B, Hq, Sq, Sk]`.
    pub fn shape(self, sizes: &Sizes) -> Vec<usize> {
        let (batch, heads) = (sizes.batch, sizes.query_heads);
        let (queries, keys) = (sizes.queries, sizes.keys);
        match self {
            AttnMaskKind::Groups => vec![queries, keys],
            AttnMaskKind::Bias => vec![1, heads, queries, keys],
            AttnMaskKind::Any => vec![batch, heads, queries, keys],
            AttnMaskKind::Padding => vec![batch, 1, 1, keys],
        }
    }

    /// Its element type beside a query of this one; none for booleans.
    pub fn bias(self, query: DType) -> Option<DType> {
        (self == AttnMaskKind::Bias).then_some(query)
    }

    /// What the library knows of the row-major tensor.
    pub fn described(self, sizes: &Sizes, query: DType) -> AttnMaskDesc {
        let shape = self.shape(sizes);
        let mut strides = [0; 4];
        let mut step = 1;
        // Aligned to the last axes; what has size 1 is the same for all.
        for (stride, &size) in strides.iter_mut().rev().zip(shape.iter().rev()) {
            if size != 1 {
                *stride = step;
            }
            step *= size as isize;
        }
        AttnMaskDesc {
            bias: self.bias(query),
            strides,
        }
    }

    /// Bytes of it.
    pub fn bytes(self, sizes: &Sizes, query: DType) -> u64 {
        let axes = self.shape(sizes).into_iter().map(|size| size as u64);
        let elements = axes.fold(1, u64::saturating_mul);
        elements.saturating_mul(self.bias(query).map_or(1, DType::size) as u64)
    }

    /// Whether a query sees a key; `None` where that is drawn at random.
    fn is_seen(self, sizes: &Sizes, [sequence, query, key]: [usize; 3]) -> Option<bool> {
        let group = |position: usize| position.min(GROUPED) / GROUP;
        match self {
            AttnMaskKind::Groups => {
                Some(group(query) == group(key) || group(key) == group(GROUPED))
            }
            AttnMaskKind::Bias => Some(true),
            AttnMaskKind::Any => None,
            AttnMaskKind::Padding => Some(key < length(sizes, sequence)),
        }
    }

    /// How many of the keys in `range` a query sees, tenfold, so that the expectation where keys are drawn is a whole number.
    fn seen_tenfold(
        self,
        sizes: &Sizes,
        sequence: usize,
        query: usize,
        range: Range<usize>,
    ) -> u64 {
        let within = |first: usize, end: usize| {
            let (first, end) = (first.max(range.start), end.min(range.end));
            10 * end.saturating_sub(first) as u64
        };
        match self {
            AttnMaskKind::Groups => {
                let later = within(GROUPED, usize::MAX);
                let first = query / GROUP * GROUP;
                match query < GROUPED {
                    true => later + within(first, first + GROUP),
                    false => later,
                }
            }
            AttnMaskKind::Bias => within(0, usize::MAX),
            AttnMaskKind::Any => within(0, usize::MAX) / 10 * SEEN_OF_TEN,
            AttnMaskKind::Padding => within(0, length(sizes, sequence)),
        }
    }
}

/// Keys of a sequence before its padding. No product overflows, as workloads are checked to have operations that can be counted.
fn length(sizes: &Sizes, sequence: usize) -> usize {
    let steps = (sizes.batch - 1).max(1);
    sizes.keys - 4 * sizes.keys * sequence / (10 * steps)
}

/// What moves and is computed at least: what the mask hides is left out, in expectation where that is drawn at random, and the
/// mask is read once.
pub fn traffic(problem: &Problem, kind: Option<AttnMaskKind>) -> Traffic {
    let all = Traffic::of_forward(problem);
    let Some(kind) = kind else {
        return all;
    };
    let sizes = problem.sizes();
    let channels = (sizes.channels + sizes.value_channels) as u64;
    let (mut pairs, mut needless) = (0, 0);
    for sequence in 0..sizes.batch {
        let mut band = Range {
            start: usize::MAX,
            end: 0,
        };
        for query in 0..sizes.queries {
            let visible = problem.visible(query);
            if !visible.is_empty() {
                band = band.start.min(visible.start)..band.end.max(visible.end);
            }
            pairs += kind.seen_tenfold(sizes, sequence, query, visible);
        }
        // Nobody sees padding. Of the other masks, hardly a key is hidden from all.
        if kind == AttnMaskKind::Padding {
            let first = band.start.max(length(sizes, sequence));
            needless += band.end.saturating_sub(first) as u64;
        }
    }
    let pairs = pairs.saturating_mul(sizes.query_heads as u64) / 10;
    let needless_bytes =
        needless * sizes.key_heads as u64 * channels * problem.dtype().size() as u64;
    Traffic {
        pairs,
        compulsory_bytes: all.compulsory_bytes.saturating_sub(needless_bytes)
            + kind.bytes(sizes, problem.dtype()),
        flop: pairs.saturating_mul(channels).saturating_mul(2),
    }
}

/// A tensor that masks, in memory of its own.
#[derive(Debug)]
pub enum MaskTensor {
    /// Added to the logits.
    Bias(Array),
    /// Row-major, true where a query sees a key.
    Seen {
        /// All of them.
        seen: Vec<bool>,
        /// Their shape.
        shape: Vec<usize>,
    },
}

impl MaskTensor {
    /// The one of this kind and seed.
    pub fn random(kind: AttnMaskKind, sizes: &Sizes, query: DType, seed: u64) -> Result<Self> {
        let shape = kind.shape(sizes);
        if let Some(dtype) = kind.bias(query) {
            let bias = filled("attn_mask", &shape, dtype, seed, ATTN_MASK, |rng| {
                StandardNormal.sample(rng)
            })?;
            return Ok(MaskTensor::Bias(bias));
        }
        let mut seen = all_hidden(&shape)?;
        // Axes that the mask lacks are the same for all: index 0.
        let [heads, queries, keys] = match kind {
            AttnMaskKind::Padding => [1, 1, sizes.keys],
            AttnMaskKind::Groups => [1, sizes.queries, sizes.keys],
            _ => [sizes.query_heads, sizes.queries, sizes.keys],
        };
        seen.par_chunks_mut(CHUNK)
            .enumerate()
            .for_each(|(chunk, part)| {
                let mut rng = stream(seed, ATTN_MASK, chunk);
                for (index, seen) in (chunk * CHUNK..).zip(part) {
                    let (row, key) = (index / keys, index % keys);
                    let index = [row / queries / heads, row % queries, key];
                    let drawn = || rng.random_ratio(SEEN_OF_TEN as u32, 10);
                    *seen = kind.is_seen(sizes, index).unwrap_or_else(drawn);
                }
            });
        Ok(MaskTensor::Seen { seen, shape })
    }

    /// To read.
    pub fn view(&self) -> AttnMask<'_> {
        match self {
            MaskTensor::Bias(array) => AttnMask::Bias(array.view()),
            MaskTensor::Seen { seen, shape } => AttnMask::Seen(BoolView::new(seen, shape)),
        }
    }
}

/// A mask of false, or an error if memory is not enough.
fn all_hidden(shape: &[usize]) -> Result<Vec<bool>> {
    let shape = Shape::new(shape);
    let elements = shape.elements();
    let failed = |available| Error::Memory {
        what: format!("attn_mask {shape}"),
        needed: elements.map_or(u64::MAX, |elements| elements as u64),
        available,
    };
    let elements = elements.ok_or_else(|| failed(None))?;
    // Systems that promise more memory than they have end the process when it is used, so ask beforehand.
    let available = machine::memory_available();
    if available.is_some_and(|available| elements as u64 > available) {
        return Err(failed(available));
    }
    let mut seen = Vec::new();
    seen.try_reserve_exact(elements).map_err(|_| failed(None))?;
    seen.resize(elements, false);
    Ok(seen)
}

#[cfg(test)]
mod tests;
