//! A checked call laid out for the kernels.

use std::f64::consts::LOG2_E;
use std::ops::Range;

use super::{KEYS, Lane, QUERIES};
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
    /// The factor that makes of a product of query and key the power of two its weight is.
    pub factor: E::Accumulator,
    problem: &'a Problem,
}

impl<'a, E: Element> Plan<'a, E> {
    pub fn new(call: &'a Forward<'_>) -> Self {
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
            problem: &call.problem,
        }
    }

    /// Index on the axes Hq and Sq of a row of a head of keys. The heads of a group follow each other, so that those of
    /// one query, which see the same keys, are neighbours.
    #[inline(always)]
    pub fn place(&self, head: usize, row: usize) -> [usize; 2] {
        let group = self.sizes.group();
        [head * group + row % group, row / group]
    }

    /// The keys a row sees.
    pub fn visible(&self, row: usize) -> Range<usize> {
        self.problem.visible(row / self.sizes.group())
    }

    /// How long a worker's workspace is: queries and sums of a block, the weights of a step, and its keys and values
    /// where they cannot be used as they lie. For 64 channels of f32 that is 80 KiB.
    pub fn workspace(&self) -> usize {
        let channels = self.sizes.channels + self.sizes.value_channels;
        channels + KEYS + packed(self.sizes.channels) + packed(self.sizes.value_channels)
    }
}

/// What `KEYS` rows of `channels` take, counted in [`Lane`]s.
pub(super) const fn packed(channels: usize) -> usize {
    (KEYS * channels).div_ceil(QUERIES)
}

/// A worker's workspace, dealt out.
pub(super) struct Workspace<R> {
    /// A channel of all queries each.
    pub queries: *mut Lane<R>,
    /// A channel of all sums each.
    pub sums: *mut Lane<R>,
    /// The weights of a key each.
    pub weights: *mut Lane<R>,
    /// Room for the keys of a step, row by row.
    pub keys: *mut R,
    /// Room for its values.
    pub values: *mut R,
}

impl<R> Workspace<R> {
    /// # Panics
    /// If `memory` is not as long as [`Plan::workspace`] says.
    pub fn new(memory: &mut [Lane<R>], sizes: &Sizes) -> Self {
        let (queries, rest) = memory.split_at_mut(sizes.channels);
        let (sums, rest) = rest.split_at_mut(sizes.value_channels);
        let (weights, rest) = rest.split_at_mut(KEYS);
        let (keys, rest) = rest.split_at_mut(packed(sizes.channels));
        let (values, _) = rest.split_at_mut(packed(sizes.value_channels));
        Workspace {
            queries: queries.as_mut_ptr(),
            sums: sums.as_mut_ptr(),
            weights: weights.as_mut_ptr(),
            keys: keys.as_mut_ptr().cast(),
            values: values.as_mut_ptr().cast(),
        }
    }
}
