//! A checked call laid out for the kernels.

use std::f64::consts::LOG2_E;
use std::ops::Range;

use super::lanes::{KEYS, Lane, QUERIES};
use super::mask::{KeptBiases, MaskTensor};
use super::rows::HeadRows;
use crate::cpu::raw::Raw;
use crate::dense::{Forward, Problem, Sizes};
use crate::dtype::Element;

/// A checked call laid out for the kernels.
pub(super) struct Plan<'a, E: Element> {
    pub sizes: Sizes,
    pub query: Raw<E, 4>,
    pub key: Raw<E, 4>,
    pub value: Raw<E, 4>,
    pub out: Raw<E, 4>,
    pub lse: Option<Raw<E::Accumulator, 3>>,
    /// The scale times log2(e): turns the product of query and key into the exponent of 2 of its weight.
    pub factor: E::Accumulator,
    pub mask: Option<MaskTensor>,
    /// Maximum blocks per task.
    pub blocks: usize,
    pub problem: &'a Problem,
}

impl<'a, E: Element> Plan<'a, E> {
    pub fn new(call: &'a Forward<'_>, blocks: usize) -> Self {
        let (inputs, outputs) = (&call.inputs, &call.outputs);
        Plan {
            sizes: *call.problem.sizes(),
            query: Raw::of(&inputs.query),
            key: Raw::of(&inputs.key),
            value: Raw::of(&inputs.value),
            out: Raw::new(outputs.out.as_mut_ptr(), outputs.out.layout()),
            lse: outputs
                .lse
                .as_ref()
                .map(|lse| Raw::new(lse.as_mut_ptr(), lse.layout())),
            factor: Element::from_f64(call.problem.scale() * LOG2_E),
            mask: MaskTensor::of(&call.inputs, &call.problem),
            blocks,
            problem: &call.problem,
        }
    }

    /// Where the rows of a key head lie.
    #[inline(always)]
    pub fn head_rows(&self, sequence: usize, head: usize) -> HeadRows {
        let heads = self.sizes.group();
        HeadRows {
            sequence,
            first_head: head * heads,
            heads,
        }
    }

    /// The keys a row sees, but for those that a mask hides from it.
    pub fn visible(&self, row: usize) -> Range<usize> {
        self.problem.visible(row / self.sizes.group())
    }

    /// Size of a worker's workspace: queries and sums of each block, the weights of a step, and its keys and values
    /// where they need packing. For 64 channels of f32 and four blocks that is 176 KiB.
    pub fn workspace(&self) -> usize {
        let channels = self.sizes.channels + self.sizes.value_channels;
        let packed = packed(self.sizes.channels) + packed(self.sizes.value_channels);
        KEYS + self.room_for_biases() + packed + self.blocks * channels
    }

    /// Room for biases that lie like logits: those of a step, or all there are, where a worker keeps them.
    fn room_for_biases(&self) -> usize {
        match (self.mask, self.kept_biases()) {
            (Some(mask), kept) if !mask.is_boolean() => KeptBiases::<E::Accumulator>::room(kept),
            _ => 0,
        }
    }

    /// Tiles of biases that a worker keeps, because all sequences have the same; 0 if it keeps none.
    fn kept_biases(&self) -> usize {
        let is_shared = self.mask.is_some_and(|mask| mask.is_same_for_sequences());
        let tiles = self.bias_tile(self.sizes.key_heads, 0, 0);
        match is_shared && self.sizes.batch > 1 && tiles <= KeptBiases::<E::Accumulator>::MOST {
            true => tiles,
            false => 0,
        }
    }

    /// The number of a tile of biases, of a head of keys, a block of rows and a step.
    pub fn bias_tile(&self, head: usize, first_row: usize, first_key: usize) -> usize {
        let rows = self.sizes.queries * self.sizes.group();
        let (blocks, steps) = (rows.div_ceil(QUERIES), self.sizes.keys.div_ceil(KEYS));
        (head * blocks + first_row / QUERIES) * steps + first_key / KEYS
    }

    /// A worker's workspace, split into its parts.
    ///
    /// # Panics
    /// If `memory` is not as long as [`Plan::workspace`] says.
    pub fn split<'m>(
        &self,
        memory: &'m mut [Lane<E::Accumulator>],
    ) -> Workspace<'m, E::Accumulator> {
        let (weights, rest) = memory.split_at_mut(KEYS);
        let (biases, rest) = rest.split_at_mut(self.room_for_biases());
        let biases = KeptBiases::new(biases, self.kept_biases());
        let (keys, rest) = rest.split_at_mut(packed(self.sizes.channels));
        let (values, blocks) = rest.split_at_mut(packed(self.sizes.value_channels));
        Workspace {
            weights,
            biases,
            keys,
            values,
            blocks,
        }
    }
}

/// Size of `KEYS` rows of `channels`, in [`Lane`]s.
pub(super) const fn packed(channels: usize) -> usize {
    (KEYS * channels).div_ceil(QUERIES)
}

/// A worker's workspace, split into its parts.
pub(super) struct Workspace<'a, R> {
    /// Weights, one per key.
    pub weights: &'a mut [Lane<R>],
    /// Biases, if there are any.
    pub biases: KeptBiases<'a, R>,
    /// Room for the keys of a step, row by row.
    pub keys: &'a mut [Lane<R>],
    /// Room for its values.
    pub values: &'a mut [Lane<R>],
    /// Room for queries and sums of all blocks, one per channel.
    pub blocks: &'a mut [Lane<R>],
}
