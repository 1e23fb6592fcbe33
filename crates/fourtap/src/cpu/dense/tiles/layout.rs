//! Where things lie in a worker's memory.

use super::split::{NUMBERS, Split};
use crate::cpu::amx::{PRODUCT, SIDE, Step};
use crate::dense::Sizes;

/// Rows of a block.
pub const ROWS: usize = PRODUCT;

/// Keys of a step. The logits of a block, 32 KiB, and what they are made of stay in the near cache; more keys would make
/// the sums over a row's lanes, two of each step, rarer still.
pub const KEYS: usize = 256;

/// Values of fewer channels than this are weighed as accurately in bf16 as in f16. Weights rounded to bf16 are off by about
/// as much as a result may be: that shows where values cancel, unless some other channel is larger. It costs little here,
/// since a product has as many columns.
const FEW_CHANNELS: usize = PRODUCT;

/// A row of a tile, where it is loaded without crossing a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [f32; SIDE]);

impl Line {
    pub const ZERO: Line = Line([0.0; SIDE]);
}

/// The numbers in lines.
pub fn numbers(lines: &mut [Line]) -> &mut [f32] {
    let count = lines.len() * SIDE;
    // SAFETY: a line is 16 numbers and nothing else.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), count) }
}

/// Where things lie, counted in [`Line`]s.
#[derive(Clone, Copy)]
pub struct Layout {
    /// Groups of 32 channels of queries and keys.
    pub channel_steps: usize,
    /// Groups of 16 channels of values, an even number.
    pub value_tiles: usize,
    /// Of one part of a block's queries.
    pub query_part: usize,
    /// Of one part of a step's keys.
    pub key_part: usize,
    /// Of one part of a step's values.
    pub value_part: usize,
    /// How many bf16 a weight is the sum of.
    pub weight_parts: usize,
    parts: usize,
}

impl Layout {
    pub fn new<E: Split>(sizes: &Sizes) -> Self {
        let channel_steps = sizes.channels.div_ceil(NUMBERS);
        let value_tiles = 2 * sizes.value_channels.div_ceil(NUMBERS);
        Layout {
            channel_steps,
            value_tiles,
            query_part: ROWS * channel_steps,
            key_part: KEYS * channel_steps,
            value_part: KEYS / 2 * value_tiles,
            parts: E::PARTS,
            weight_parts: match sizes.value_channels < FEW_CHANNELS {
                true => 2,
                false => E::PARTS,
            },
        }
    }

    /// Of one part of a block's weights.
    pub const WEIGHT_PART: usize = ROWS * KEYS / NUMBERS;

    /// A block's queries, sums, highest logits and totals.
    pub fn block(&self) -> usize {
        self.queries() + self.sums() + 2 * Self::LANES
    }

    /// A number for each row of a block.
    const LANES: usize = ROWS / SIDE;

    fn queries(&self) -> usize {
        self.parts * self.query_part
    }

    fn sums(&self) -> usize {
        ROWS * self.value_tiles
    }

    /// What a task of so many blocks works in. For 512 rows with 64 channels of bf16 that is 0.3 MiB.
    pub fn workspace(&self, blocks: usize) -> usize {
        self.shared() + blocks * self.block()
    }

    fn shared(&self) -> usize {
        let weights = self.weight_parts * Self::WEIGHT_PART;
        self.parts * (self.key_part + self.value_part) + ROWS * KEYS / SIDE + weights
    }

    /// What multiplies each query with each key: all parts of either by all of the other, for products of f16 are exact
    /// in f32 and their sums show in `lse`.
    pub fn logit_steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for step in 0..self.channel_steps {
            for left in 0..self.parts {
                for right in 0..self.parts {
                    steps.push(Step {
                        left: size_of::<Line>() * (left * self.query_part + step * SIDE),
                        right: size_of::<Line>() * (right * self.key_part + step * PRODUCT),
                    });
                }
            }
        }
        steps
    }

    /// Which parts of weights and values are multiplied with each other. What is left out, the product of both second ones,
    /// is far less than rounding a result of f16.
    pub fn weighed(&self) -> impl Iterator<Item = (usize, usize)> {
        let parts = self.parts;
        let with = move |left| (0..parts).map(move |right| (left, right));
        (0..self.weight_parts)
            .flat_map(with)
            .filter(|(left, right)| left + right < 2)
    }

    /// What multiplies each weight with each value, 32 keys after the other.
    pub fn value_steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for step in 0..KEYS / NUMBERS {
            for (left, right) in self.weighed() {
                steps.push(Step {
                    left: size_of::<Line>() * (left * Self::WEIGHT_PART + step),
                    right: size_of::<Line>() * (right * self.value_part + step * PRODUCT),
                });
            }
        }
        steps
    }
}

/// What the blocks of a task use one after another.
pub struct Shared<'a> {
    pub keys: &'a mut [Line],
    pub values: &'a mut [Line],
    /// A row for each query.
    pub logits: &'a mut [Line],
    /// A row of bf16 for each query, and so for each part.
    pub weights: &'a mut [Line],
}

impl<'a> Shared<'a> {
    /// The first part of a workspace, and what is left for blocks.
    ///
    /// # Panics
    /// If `memory` is not as long as [`Layout::workspace`] says.
    pub fn of(memory: &'a mut [Line], layout: &Layout) -> (Self, &'a mut [Line]) {
        let (keys, rest) = memory.split_at_mut(layout.parts * layout.key_part);
        let (values, rest) = rest.split_at_mut(layout.parts * layout.value_part);
        let (logits, rest) = rest.split_at_mut(ROWS * KEYS / SIDE);
        let (weights, rest) = rest.split_at_mut(layout.weight_parts * Layout::WEIGHT_PART);
        let shared = Shared {
            keys,
            values,
            logits,
            weights,
        };
        (shared, rest)
    }
}

/// What a block keeps from step to step.
pub struct Kept<'a> {
    pub queries: &'a mut [Line],
    /// A row for each query.
    pub sums: &'a mut [Line],
    /// The highest logit of each row so far, as a power of two.
    pub highest: &'a mut [Line],
    /// The sum of each row's weights, relative to that of the highest.
    pub totals: &'a mut [Line],
}

impl<'a> Kept<'a> {
    /// # Panics
    /// If `memory` is not as long as [`Layout::block`] says.
    pub fn of(memory: &'a mut [Line], layout: &Layout) -> Self {
        let (queries, rest) = memory.split_at_mut(layout.queries());
        let (sums, rest) = rest.split_at_mut(layout.sums());
        let (highest, totals) = rest.split_at_mut(Layout::LANES);
        Kept {
            queries,
            sums,
            highest,
            totals,
        }
    }
}
