//! Query, key and value as TMA loads them.

use super::arguments::Arguments;
use super::folded::FoldedProblem;
use super::hopper::{GROUP_ROWS, GroupTile};
use crate::cuda::driver::{
    Context, DriverResult, Swizzle, TensorElement, TensorMap, TensorMapDesc,
};
use crate::dense::{Forward, Sizes};
use crate::dtype::DType;
use crate::layout::Layout;

/// The largest stride of a tensor map.
const MOST_STRIDE: isize = (1 << 40) - 1;

/// Whether TMA can load tiles of the inputs, which are aligned to 16 bytes: it knows no steps backwards, and none of 0, which for
/// sequences and heads are steps the kernel does not take.
pub(super) fn is_loadable(call: &Forward<'_>) -> bool {
    let problem = &call.problem;
    // A single query's heads are rows.
    problem.sizes().queries > 1
        && [problem.query(), problem.key(), problem.value()]
            .into_iter()
            .all(has_boxes)
}

/// The same for one tensor.
pub(super) fn has_boxes(layout: &Layout) -> bool {
    let size = layout.dtype().size() as isize;
    let (shape, strides) = (layout.shape(), layout.strides());
    [(0, 0), (1, 0), (2, 1)].into_iter().all(|(axis, least)| {
        shape.sizes()[axis] <= 1 || (least..=MOST_STRIDE / size).contains(&strides[axis])
    })
}

/// Query, key and value as TMA loads them: `Maps` of kernels/dense/forward_wgmma.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps([TensorMap; 3]);

impl Maps {
    /// Of a call's tensors, which [`is_loadable`] holds for.
    pub fn new(
        context: &Context,
        call: &LoadedTensors,
        arguments: &Arguments,
    ) -> DriverResult<Self> {
        let [query, key, value] = arguments.tensors();
        let encode = |tensor: usize, (address, strides): (u64, [i64; 4])| {
            call.0[tensor].encode(context, address, strides)
        };
        Ok(Maps([
            encode(0, query)?,
            encode(1, key)?,
            encode(2, value)?,
        ]))
    }
}

/// Query, key and value of a planned problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadedTensors([LoadedTensor; 3]);

impl LoadedTensors {
    pub fn new(dtype: DType, sizes: &Sizes, folded: &FoldedProblem, tile: &GroupTile) -> Self {
        // The widest that is exchanged as a whole.
        let span = |channels: usize| match channels.next_multiple_of(32) % 64 {
            0 => 64,
            _ => 32,
        };
        let of = |channels: usize, rows: usize, heads: usize, box_rows: u32| LoadedTensor {
            element: element(dtype),
            sizes: [channels, rows, heads, sizes.batch].map(|count| count as u64),
            box_sides: [span(channels), box_rows],
        };
        LoadedTensors([
            of(sizes.channels, folded.rows, folded.heads, GROUP_ROWS),
            of(sizes.channels, folded.keys, sizes.key_heads, tile.keys),
            of(
                sizes.value_channels,
                folded.keys,
                sizes.key_heads,
                tile.keys,
            ),
        ])
    }
}

/// The type as TMA knows it, of 16 bits.
pub(super) fn element(dtype: DType) -> TensorElement {
    match dtype {
        DType::BF16 => TensorElement::BF16,
        _ => TensorElement::F16,
    }
}

/// The sizes of a tensor, and of what is loaded of it at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadedTensor {
    pub element: TensorElement,
    /// Channels, rows, heads, sequences.
    pub sizes: [u64; 4],
    /// Channels, 32 or 64, and rows.
    pub box_sides: [u32; 2],
}

impl LoadedTensor {
    /// For a tensor that [`has_boxes`].
    pub fn encode(
        &self,
        context: &Context,
        address: u64,
        strides: [i64; 4],
    ) -> DriverResult<TensorMap> {
        TensorMap::encode(context, &self.describe(address, strides))
    }

    fn describe(&self, address: u64, strides: [i64; 4]) -> TensorMapDesc {
        let [channels, rows, heads, sequences] = self.sizes;
        let [box_channels, box_rows] = self.box_sides;
        // A dimension without steps has one element, and any stride.
        let outer = |count: u64, stride: i64| match stride {
            0 => (1, 16),
            _ if count <= 1 => (1, 16),
            stride => (count, 2 * stride as u64),
        };
        let [b, h, s, _] = strides;
        let (rows, by_row) = outer(rows, s);
        let (heads, by_head) = outer(heads, h);
        let (sequences, by_sequence) = outer(sequences, b);
        TensorMapDesc {
            element: self.element,
            address,
            dimensions: vec![channels, rows, heads, sequences],
            strides: vec![by_row, by_head, by_sequence],
            box_sides: vec![box_channels, box_rows, 1, 1],
            element_strides: vec![1; 4],
            swizzle: match box_channels {
                64 => Swizzle::Bytes128,
                _ => Swizzle::Bytes64,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dense::Mask;

    #[test]
    fn dimensions_without_steps_have_one_element() {
        let sizes = Sizes {
            batch: 3,
            query_heads: 8,
            key_heads: 2,
            queries: 100,
            keys: 70,
            channels: 72,
            value_channels: 128,
        };
        let folded = FoldedProblem::new(&sizes, &Mask::default());
        let tile = GroupTile::for_tests();
        let tensors = LoadedTensors::new(DType::BF16, &sizes, &folded, &tile);
        let key = tensors.0[1].describe(4096, [0, 8 * 70 * 72, 72, 1]);
        assert_eq!(key.dimensions, [72, 70, 2, 1]);
        assert_eq!(key.strides[..2], [2 * 72, 2 * 8 * 70 * 72]);
        // Of 72 channels, rounded up to 96, 32 at a time are exchanged as a whole.
        assert_eq!(key.box_sides, [32, tile.keys, 1, 1]);
        assert_eq!(key.swizzle, Swizzle::Bytes64);
        let value = tensors.0[2].describe(4096, [2 * 70 * 128, 70 * 128, 128, 1]);
        assert_eq!(value.dimensions, [128, 70, 2, 3]);
        assert_eq!(value.box_sides[0], 64);
        assert_eq!(value.swizzle, Swizzle::Bytes128);
    }
}
