//! A tile of keys and values.

use std::ops::Range;

use super::plan::Plan;
use super::tile_products::{TensorRows, TileProducts};
use crate::cpu::Cpu;
use crate::cpu::dense::lanes::Lane;
use crate::cpu::dense::plan::packed;
use crate::cpu::dense::rows::Rows;
use crate::cpu::raw::Raw;
use crate::cpu::simd::{VectorReal, Vectorized};

/// A tile of keys and values.
pub(super) struct KeyTile<'a, R> {
    pub keys: Range<usize>,
    pub key_rows: Rows<R>,
    pub value_rows: Rows<R>,
    /// Both as tiles multiply them, and keys to be summed, if they do.
    pub in_tiles: Option<KeysInTiles<'a, R>>,
    /// Whether no key is infinite or NaN.
    pub is_finite: bool,
}

/// Keys and values as tiles multiply them.
#[derive(Clone, Copy)]
pub(super) struct KeysInTiles<'a, R> {
    pub keys: &'a [Lane<R>],
    pub values: &'a [Lane<R>],
    pub transposed_keys: &'a [Lane<R>],
}

impl<'a, R: VectorReal> KeyTile<'a, R> {
    /// Size of its memory.
    pub fn room<E: Vectorized<Accumulator = R>>(plan: &Plan<'_, E>) -> usize {
        let [keys, values] = plan.room_for_tiles();
        packed(plan.sizes.channels) + packed(plan.sizes.value_channels) + 2 * keys + values
    }

    /// At most a step of keys, in memory of that size.
    ///
    /// # Safety
    /// The keys lie in the problem.
    pub unsafe fn load<E: Vectorized<Accumulator = R>>(
        cpu: &Cpu,
        plan: &Plan<'_, E>,
        head: [usize; 2],
        keys: Range<usize>,
        memory: &'a mut [Lane<R>],
    ) -> Self {
        let (channels, values) = (plan.sizes.channels, plan.sizes.value_channels);
        let (room_for_keys, rest) = memory.split_at_mut(packed(channels));
        let (room_for_values, rest) = rest.split_at_mut(packed(values));
        let [of_keys, of_values] = plan.room_for_tiles();
        let (key_tiles, rest) = rest.split_at_mut(of_keys);
        let (value_tiles, transposed_keys) = rest.split_at_mut(of_values);
        let key_rows = Rows::load(cpu, &plan.key, head, &keys, channels, room_for_keys);
        let value_rows = Rows::load(cpu, &plan.value, head, &keys, values, room_for_values);
        let [sequence, head] = head;
        let rows = |tensor: &Raw<E, 4>, channels: usize| {
            let [.., row, channel] = tensor.strides;
            TensorRows {
                first: tensor.at([sequence, head, keys.start]).cast_const(),
                strides: [row, channel],
                count: keys.len(),
                channels,
            }
        };
        let pack = |tiles: &TileProducts<E>| {
            let (of_keys, of_values) = (rows(&plan.key, channels), rows(&plan.value, values));
            // SAFETY: the keys lie in the problem, there is room for a step of them, and where there is such a plan there are
            // tiles.
            unsafe {
                (tiles.pack_left)(of_keys, key_tiles)
                    && (tiles.pack_left)(of_values, value_tiles)
                    && (!plan.sums_in_tiles() || (tiles.pack_transposed)(of_keys, transposed_keys))
            }
        };
        let are_packed = plan.tiles.as_ref().is_some_and(pack);
        KeyTile {
            // SAFETY: as the caller promises.
            is_finite: unsafe { key_rows.are_finite(keys.len(), channels) },
            keys,
            key_rows,
            value_rows,
            in_tiles: match are_packed {
                true => Some(KeysInTiles {
                    keys: key_tiles,
                    values: value_tiles,
                    transposed_keys,
                }),
                false => None,
            },
        }
    }
}
