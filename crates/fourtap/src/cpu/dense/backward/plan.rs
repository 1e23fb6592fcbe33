//! A checked backward call laid out for the kernels.

use std::f64::consts::LOG2_E;

use super::tile_products::TileProducts;
use crate::cpu::dense::mask::MaskTensor;
use crate::cpu::dense::rows::HeadRows;
use crate::cpu::raw::Raw;
use crate::dense::{Backward, Problem, Sizes};
use crate::dtype::Element;
use crate::tensor::ViewMut;

/// A checked backward call laid out for the kernels.
pub(super) struct Plan<'a, E: Element> {
    pub problem: &'a Problem,
    pub sizes: Sizes,
    pub query: Raw<E, 4>,
    pub key: Raw<E, 4>,
    pub value: Raw<E, 4>,
    pub mask: Option<MaskTensor>,
    pub out: Raw<E, 4>,
    pub lse: Raw<E::Accumulator, 3>,
    pub grad_out: Raw<E, 4>,
    pub grad_query: Option<Raw<E, 4>>,
    pub grad_key: Option<Raw<E, 4>>,
    pub grad_value: Option<Raw<E, 4>>,
    pub scale: E::Accumulator,
    /// The scale times log2(e): turns the product of query and key into the exponent of 2 of its weight.
    pub factor: E::Accumulator,
    /// What multiplies rows, if not vectors.
    pub tiles: Option<TileProducts<E>>,
}

const LEAST_ROWS_IN_TILES: usize = 32;

/// Scales beyond this would show what tiles round to 0.
const MOST_SCALE_IN_TILES: f64 = 1e9;

impl<'a, E: Element> Plan<'a, E> {
    pub fn new(call: &'a Backward<'_>, tiles: Option<TileProducts<E>>) -> Self {
        let (inputs, gradients) = (&call.inputs, &call.gradients);
        let written = |view: &Option<ViewMut<'_>>| {
            let view = view.as_ref()?;
            Some(Raw::new(view.as_mut_ptr(), view.layout()))
        };
        let scale = call.problem.scale();
        Plan {
            problem: &call.problem,
            sizes: *call.problem.sizes(),
            query: Raw::of(&inputs.query),
            key: Raw::of(&inputs.key),
            value: Raw::of(&inputs.value),
            mask: MaskTensor::of(inputs, &call.problem),
            out: Raw::of(&call.results.out),
            lse: Raw::of(&call.results.lse),
            grad_out: Raw::of(&call.grad_out),
            grad_query: written(&gradients.query),
            grad_key: written(&gradients.key),
            grad_value: written(&gradients.value),
            scale: Element::from_f64(scale),
            factor: Element::from_f64(scale * LOG2_E),
            tiles: tiles.filter(|_| scale.abs() < MOST_SCALE_IN_TILES),
        }
    }

    /// Where the rows of a key head lie.
    pub fn head_rows(&self, sequence: usize, head: usize) -> HeadRows {
        let heads = self.sizes.group();
        HeadRows {
            sequence,
            first_head: head * heads,
            heads,
        }
    }

    /// Whether sums are worth packing for tiles: not for few rows, which vectors sum as fast as they are packed.
    pub fn sums_in_tiles(&self) -> bool {
        self.sizes.queries * self.sizes.group() >= LEAST_ROWS_IN_TILES
    }

    /// Size of what tiles multiply of rows of queries and gradients, or of keys and values.
    pub fn room_for_tiles(&self) -> [usize; 2] {
        let channels = [self.sizes.channels, self.sizes.value_channels];
        match &self.tiles {
            Some(tiles) => channels.map(tiles.room),
            None => [0; 2],
        }
    }

    /// Whether there are biases, which need room.
    pub fn has_biases(&self) -> bool {
        self.mask.is_some_and(|mask| !mask.is_boolean())
    }
}
