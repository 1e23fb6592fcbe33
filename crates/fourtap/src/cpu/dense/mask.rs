//! Masks and biases that are tensors, applied to the logits of a step.

use std::f64::consts::LOG2_E;
use std::ops::Range;

use super::lanes::{KEYS, Lane};
use crate::cpu::simd::{Isa, Kernel, VectorReal};
use crate::dense::{AttnMask, Forward};
use crate::dtype::{DType, bf16, f16};

/// A mask or bias, read by strides.
#[derive(Clone, Copy)]
pub(super) struct MaskTensor {
    first: *const u8,
    /// The element type of a bias; `None` for booleans.
    bias: Option<DType>,
    strides: [isize; 4],
}

// SAFETY: it is only read.
unsafe impl Send for MaskTensor {}
// SAFETY: as above.
unsafe impl Sync for MaskTensor {}

/// What the booleans of a step say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Nothing,
    Some,
    Everything,
}

impl MaskTensor {
    pub fn of(call: &Forward<'_>) -> Option<Self> {
        let (mask, described) = (call.inputs.attn_mask.as_ref()?, call.problem.attn_mask()?);
        Some(MaskTensor {
            first: AttnMask::as_ptr(mask),
            bias: described.bias,
            strides: described.strides,
        })
    }

    /// Whether all rows of a sequence have the same.
    fn is_same_for_rows(&self) -> bool {
        self.strides[1..3] == [0, 0]
    }

    /// The numbers of a row, from its key 0 on.
    pub fn row(&self, [sequence, head, query]: [usize; 3]) -> MaskRow {
        let index = [sequence, head, query];
        let steps = index.iter().zip(&self.strides);
        let offset: isize = steps.map(|(&index, &stride)| index as isize * stride).sum();
        let size = self.bias.map_or(1, DType::size) as isize;
        MaskRow {
            first: self.first.wrapping_offset(offset * size),
            bias: self.bias,
            stride: self.strides[3],
        }
    }
}

/// The numbers of one row.
#[derive(Clone, Copy)]
pub(super) struct MaskRow {
    first: *const u8,
    bias: Option<DType>,
    stride: isize,
}

impl MaskRow {
    /// Whether it hides this key.
    ///
    /// # Safety
    /// The key is one of the problem's.
    pub unsafe fn hides(&self, key: usize) -> bool {
        let is_hidden = |bias: f64| bias == f64::NEG_INFINITY;
        // SAFETY: as the caller promises.
        unsafe {
            match self.bias {
                None => *self.at::<u8>(key) == 0,
                Some(DType::F16) => is_hidden((*self.at::<f16>(key)).to_f64()),
                Some(DType::BF16) => is_hidden((*self.at::<bf16>(key)).to_f64()),
                Some(DType::F32) => is_hidden(f64::from(*self.at::<f32>(key))),
                Some(DType::F64) => is_hidden(*self.at::<f64>(key)),
            }
        }
    }

    fn at<T>(&self, key: usize) -> *const T {
        self.first
            .cast::<T>()
            .wrapping_offset(key as isize * self.stride)
    }
}

/// What the rows of a block see of the keys of a step, by the booleans of a mask; a bias says `Some`.
///
/// # Safety
/// The keys are those of the problem.
pub(super) unsafe fn seen(rows: &[MaskRow], keys: &Range<usize>) -> Seen {
    let (mut any, mut all) = (0u8, true);
    for row in rows {
        if row.bias.is_some() {
            return Seen::Some;
        }
        let mut row_all = true;
        for key in keys.clone() {
            // SAFETY: as the caller promises.
            let byte = unsafe { *row.at::<u8>(key) };
            any |= byte;
            row_all &= byte != 0;
        }
        all &= row_all;
    }
    match (any, all) {
        (0, _) => Seen::Nothing,
        (_, true) => Seen::Everything,
        _ => Seen::Some,
    }
}

/// Adds biases to the logits of a step, and hides what is to be hidden.
pub(super) struct ApplyMask<'a, R> {
    /// One per lane; a single one is that of all.
    pub rows: &'a [MaskRow],
    pub keys: Range<usize>,
    /// One per key.
    pub logits: &'a mut [Lane<R>],
    /// How many lanes are in use.
    pub lanes: usize,
}

impl<R: VectorReal> Kernel for ApplyMask<'_, R> {
    #[inline(always)]
    unsafe fn run<I: Isa>(mut self) {
        let Some(row) = self.rows.first() else { return };
        // SAFETY: the rows are those of one tensor, which has this element type; the keys are the problem's.
        unsafe {
            match row.bias {
                None => self.apply::<u8>(|byte| match byte {
                    0 => R::NEG_INFINITY,
                    _ => R::ZERO,
                }),
                Some(DType::F16) => self.apply::<f16>(|bias| R::from_f64(bias.to_f64())),
                Some(DType::BF16) => self.apply::<bf16>(|bias| R::from_f64(bias.to_f64())),
                Some(DType::F32) => self.apply::<f32>(|bias| R::from_f64(f64::from(bias))),
                Some(DType::F64) => self.apply::<f64>(R::from_f64),
            }
        }
    }
}

impl<R: VectorReal> ApplyMask<'_, R> {
    /// Adds what `read` makes of each number, times log2(e) like the logits; minus infinity hides.
    ///
    /// # Safety
    /// The elements have this type.
    #[inline(always)]
    unsafe fn apply<T: Copy>(&mut self, read: impl Fn(T) -> R) {
        let factor = R::from_f64(LOG2_E);
        let add = |logit: &mut R, bias: R| {
            *logit = match bias == R::NEG_INFINITY {
                // Whatever the logit is.
                true => bias,
                false => bias.fused(factor, *logit),
            };
        };
        let (first, count) = (self.keys.start, self.keys.len());
        debug_assert!(count <= KEYS);
        if let [row] = *self.rows {
            for (index, Lane(logits)) in self.logits[..count].iter_mut().enumerate() {
                // SAFETY: the key is one of the problem's.
                let bias = read(unsafe { *row.at::<T>(first + index) });
                for logit in &mut logits[..self.lanes] {
                    add(logit, bias);
                }
            }
            return;
        }
        for (lane, row) in self.rows.iter().enumerate() {
            for (index, Lane(logits)) in self.logits[..count].iter_mut().enumerate() {
                // SAFETY: as above.
                let bias = read(unsafe { *row.at::<T>(first + index) });
                add(&mut logits[lane], bias);
            }
        }
    }
}

/// The rows of a mask for a block: one for each lane, or a single one that is that of all.
pub(super) fn rows_of(
    mask: &MaskTensor,
    sequence: usize,
    places: impl Iterator<Item = [usize; 2]>,
) -> Vec<MaskRow> {
    let mut rows: Vec<MaskRow> = places
        .map(|[head, query]| mask.row([sequence, head, query]))
        .collect();
    if mask.is_same_for_rows() {
        rows.truncate(1);
    }
    rows
}
