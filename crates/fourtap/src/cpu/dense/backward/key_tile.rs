//! A tile of keys and values.

use std::ops::Range;

use super::plan::Plan;
use super::tile_products::TensorRows;
use crate::cpu::Cpu;
use crate::cpu::dense::lanes::Lane;
use crate::cpu::dense::plan::packed;
use crate::cpu::dense::rows::Rows;
use crate::cpu::simd::{VectorReal, Vectorized};

/// A tile of keys and values.
pub(super) struct KeyTile<'a, R> {
    pub keys: Range<usize>,
    pub key_rows: Rows<R>,
    pub value_rows: Rows<R>,
    /// Both as tiles multiply them, if they do.
    pub in_tiles: Option<[&'a [Lane<R>]; 2]>,
    /// Whether no key is infinite or NaN.
    pub is_finite: bool,
}

impl<'a, R: VectorReal> KeyTile<'a, R> {
    /// Size of its memory.
    pub fn room<E: Vectorized<Accumulator = R>>(plan: &Plan<'_, E>) -> usize {
        let [keys, values] = plan.room_for_tiles();
        packed(plan.sizes.channels) + packed(plan.sizes.value_channels) + keys + values
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
        let [tiles_of_keys, _] = plan.room_for_tiles();
        let (key_tiles, value_tiles) = rest.split_at_mut(tiles_of_keys);
        let key_rows = Rows::load(cpu, &plan.key, head, &keys, channels, room_for_keys);
        let value_rows = Rows::load(cpu, &plan.value, head, &keys, values, room_for_values);
        let [sequence, head] = head;
        let mut are_packed = plan.tiles.is_some();
        for (tensor, channels, to) in [
            (&plan.key, channels, &mut *key_tiles),
            (&plan.value, values, &mut *value_tiles),
        ] {
            let Some(tiles) = &plan.tiles else { continue };
            let [.., row, channel] = tensor.strides;
            let rows = TensorRows {
                first: tensor.at([sequence, head, keys.start]).cast_const(),
                strides: [row, channel],
                count: keys.len(),
                channels,
            };
            // SAFETY: the keys lie in the problem, there is room for a step of them, and where there is such a plan there are
            // tiles.
            are_packed &= unsafe { (tiles.pack_left)(rows, to) };
        }
        KeyTile {
            // SAFETY: as the caller promises.
            is_finite: unsafe { key_rows.are_finite(keys.len(), channels) },
            keys,
            key_rows,
            value_rows,
            in_tiles: match are_packed {
                true => Some([key_tiles, value_tiles]),
                false => None,
            },
        }
    }
}
