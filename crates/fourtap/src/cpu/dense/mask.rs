//! Masks and biases that are tensors, applied to the logits of a step.

use std::f64::consts::LOG2_E;
use std::ops::Range;

use super::lanes::{KEYS, Lane, QUERIES};
use crate::cpu::raw;
use crate::cpu::simd::{Access, Isa, Kernel, Lanes, VectorReal, Vectorized, load_some};
use crate::dense::{AttnMask, Inputs, MOST_BIAS, Problem};
use crate::dtype::{DType, Real, bf16, f16};

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
    pub fn of(inputs: &Inputs<'_>, problem: &Problem) -> Option<Self> {
        let (mask, described) = (inputs.attn_mask.as_ref()?, problem.attn_mask()?);
        Some(MaskTensor {
            first: AttnMask::as_ptr(mask),
            bias: described.bias,
            strides: described.strides,
        })
    }

    /// Whether there are booleans, not biases.
    pub fn is_boolean(&self) -> bool {
        self.bias.is_none()
    }

    /// Whether all sequences have the same.
    pub fn is_same_for_sequences(&self) -> bool {
        self.strides[0] == 0
    }

    /// Whether all rows of a sequence have the same.
    fn is_same_for_rows(&self) -> bool {
        self.strides[1..3] == [0, 0]
    }

    /// The numbers of a row, from its key 0 on.
    pub fn row(&self, [sequence, head, query]: [usize; 3]) -> MaskRow {
        let offset = raw::offset(&[sequence, head, query], &self.strides);
        let size = self.bias.map_or(1, DType::size) as isize;
        MaskRow {
            first: self.first.wrapping_offset(offset.wrapping_mul(size)),
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

/// Which keys of a step the rows of a block see, by the booleans of a mask: for each row, or for all, a bit for each key.
#[derive(Clone, Copy)]
pub(super) struct SeenBits([u64; QUERIES]);

impl SeenBits {
    /// # Safety
    /// The rows are booleans, and the keys, at most 64, are the problem's.
    pub unsafe fn new(rows: &[MaskRow], keys: &Range<usize>) -> Self {
        let mut bits = [0; QUERIES];
        for (bits, row) in bits.iter_mut().zip(rows) {
            // SAFETY: as the caller promises.
            *bits = unsafe { row.bits(keys) };
        }
        SeenBits(bits)
    }

    /// What the first `rows` rows see of that many keys.
    pub fn seen(&self, rows: usize, keys: usize) -> Seen {
        let every = u64::MAX >> (64 - keys.clamp(1, 64));
        let (mut any, mut all) = (0, every);
        for bits in &self.0[..rows] {
            any |= bits;
            all &= bits;
        }
        match (any & every, all & every == every) {
            (0, _) => Seen::Nothing,
            (_, true) => Seen::Everything,
            _ => Seen::Some,
        }
    }

    /// Row `i` becomes bit `i` of each key's number.
    fn transpose(&mut self) {
        let mut width = 32;
        let mut kept = u64::MAX >> 32;
        while width > 0 {
            let mut row = 0;
            while row < 64 {
                let moved = (self.0[row] >> width ^ self.0[row + width]) & kept;
                self.0[row] ^= moved << width;
                self.0[row + width] ^= moved;
                row = (row + width + 1) & !width;
            }
            width /= 2;
            kept ^= kept << width;
        }
    }
}

impl MaskRow {
    /// A bit for each key, set where the boolean is true.
    ///
    /// # Safety
    /// They are booleans, of keys of the problem, at most 64.
    unsafe fn bits(&self, keys: &Range<usize>) -> u64 {
        // The lowest bit of each byte of a word, side by side.
        const GATHER: u64 = 0x0102_0408_1020_4080;
        let (mut bits, mut done) = (0, 0);
        // SAFETY: as the caller promises: every byte that is read is that of a key.
        unsafe {
            while self.stride == 1 && done + 8 <= keys.len() {
                let mut word = self
                    .at::<u64>(0)
                    .byte_add(keys.start + done)
                    .read_unaligned();
                // Any bit of a byte sets its lowest.
                word |= word >> 4;
                word |= word >> 2;
                word |= word >> 1;
                word &= 0x0101_0101_0101_0101;
                bits |= (word.wrapping_mul(GATHER) >> 56) << done;
                done += 8;
            }
            for index in done..keys.len() {
                bits |= u64::from(*self.at::<u8>(keys.start + index) != 0) << index;
            }
        }
        bits
    }
}

/// Hides the logits of keys that a row does not see.
pub(super) struct Hide<'a, R> {
    pub seen: SeenBits,
    /// Whether the bits of the first row are those of all.
    pub is_same_for_rows: bool,
    /// One per key, at most 64.
    pub logits: &'a mut [Lane<R>],
}

impl<R: VectorReal> Kernel for Hide<'_, R> {
    #[inline(always)]
    unsafe fn run<I: Isa>(mut self) {
        if self.is_same_for_rows {
            let bits = self.seen.0[0];
            for (key, Lane(logits)) in self.logits.iter_mut().enumerate() {
                if bits >> key & 1 == 0 {
                    logits.fill(R::NEG_INFINITY);
                }
            }
            return;
        }
        self.seen.transpose();
        for (&bits, Lane(logits)) in self.seen.0.iter().zip(self.logits) {
            if bits == u64::MAX {
                continue;
            }
            for (lane, logit) in logits.iter_mut().enumerate() {
                *logit = match bits >> lane & 1 {
                    0 => R::NEG_INFINITY,
                    _ => *logit,
                };
            }
        }
    }
}

/// Tiles of biases that lie like the logits of a step. Where all sequences have the same, a worker makes each but once.
pub(super) struct KeptBiases<'a, R> {
    /// Which are there: a number that is not 0. Then the tiles; a single one where none are kept.
    memory: &'a mut [Lane<R>],
    kept: usize,
}

impl<'a, R: Real> KeptBiases<'a, R> {
    /// Tiles that a worker keeps at most: for f32 that is 1 MiB.
    pub const MOST: usize = QUERIES;

    /// Room for so many tiles, or for the one that is made anew for every step.
    pub fn room(kept: usize) -> usize {
        1 + kept.max(1) * KEYS
    }

    /// In memory that was all 0 before the first call.
    pub fn new(memory: &'a mut [Lane<R>], kept: usize) -> Self {
        KeptBiases { memory, kept }
    }

    /// A tile, and whether its biases are there already. `number` is that of a whole step.
    fn tile(&mut self, number: Option<usize>) -> (&mut [Lane<R>], bool) {
        let Some((Lane(there), tiles)) = self.memory.split_first_mut() else {
            return (&mut [], false);
        };
        match number.filter(|&number| number < self.kept) {
            Some(number) => {
                let was_there = std::mem::replace(&mut there[number], R::from_f64(1.0)) != R::ZERO;
                (&mut tiles[number * KEYS..][..KEYS], was_there)
            }
            None if self.kept == 0 => (tiles, false),
            // Part of a step, in the place of the first tile.
            None => {
                there[0] = R::ZERO;
                (&mut tiles[..KEYS], false)
            }
        }
    }
}

/// Adds biases to the logits of a step; minus infinity hides a key, whatever its logit is.
pub(super) struct AddBias<'a, 'b, R> {
    /// One per lane; a single one is that of all.
    pub rows: &'a [MaskRow],
    pub keys: Range<usize>,
    /// One per key.
    pub logits: &'a mut [Lane<R>],
    pub biases: &'a mut KeptBiases<'b, R>,
    /// The tile's number, if the keys are those of a whole step.
    pub tile: Option<usize>,
}

impl<R: VectorReal> Kernel for AddBias<'_, '_, R> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let count = self.keys.len();
        let mut numbers = [R::ZERO; KEYS];
        let logits = &mut self.logits[..count];
        let add = |logit: &mut R, bias: R| {
            *logit = match bias == R::NEG_INFINITY {
                true => bias,
                false => *logit + bias,
            };
        };
        if let [row] = self.rows {
            // SAFETY: the keys are the problem's, as many as there is room for.
            unsafe { row.read::<R, I>(&self.keys, &mut numbers) };
            for (Lane(logits), &bias) in logits.iter_mut().zip(&numbers) {
                for logit in logits {
                    add(logit, bias);
                }
            }
            return;
        }
        let (tile, is_there) = self.biases.tile(self.tile);
        let tile = &mut tile[..count];
        let missing = if is_there { &[] } else { self.rows };
        for (lane, row) in missing.iter().enumerate() {
            // SAFETY: as above.
            unsafe { row.read::<R, I>(&self.keys, &mut numbers) };
            for (Lane(tile), &bias) in tile.iter_mut().zip(&numbers) {
                tile[lane] = bias;
            }
        }
        for (Lane(logits), Lane(tile)) in logits.iter_mut().zip(tile) {
            for (logit, &bias) in logits.iter_mut().zip(tile.iter()) {
                add(logit, bias);
            }
        }
    }
}

impl MaskRow {
    /// The biases of some keys, times log2(e) like the logits.
    ///
    /// # Safety
    /// They are numbers, of keys of the problem, at most as many as there is room for.
    #[inline(always)]
    unsafe fn read<R: VectorReal, I: Isa>(&self, keys: &Range<usize>, to: &mut [R; KEYS]) {
        let factor = R::from_f64(LOG2_E);
        let mut numbers = [0f32; KEYS];
        // SAFETY: as the caller promises.
        unsafe {
            match self.bias {
                Some(DType::F16) => self.load::<f16, I>(keys, &mut numbers),
                Some(DType::BF16) => self.load::<bf16, I>(keys, &mut numbers),
                Some(DType::F32) => self.load::<f32, I>(keys, &mut numbers),
                Some(DType::F64) => {
                    for (to, key) in to.iter_mut().zip(keys.clone()) {
                        *to = limited(R::from_f64(*self.at::<f64>(key))) * factor;
                    }
                    return;
                }
                None => return,
            }
        }
        for (to, &number) in to.iter_mut().zip(&numbers) {
            *to = limited(R::from_f64(f64::from(number))) * factor;
        }
    }

    /// # Safety
    /// As of `read`; they have this type.
    #[inline(always)]
    unsafe fn load<E: Vectorized<Accumulator = f32>, I: Isa>(
        &self,
        keys: &Range<usize>,
        to: &mut [f32; KEYS],
    ) {
        let lanes = E::Lanes::<I>::COUNT;
        for first in (0..keys.len()).step_by(lanes) {
            let some = lanes.min(keys.len() - first);
            // SAFETY: the keys are the problem's, and there is room for them.
            unsafe {
                let from = self.at::<E>(keys.start);
                let numbers = load_some::<E, I>(from, self.stride, first, some);
                Access::<f32>::store_first(numbers, to.as_mut_ptr().add(first), some);
            }
        }
    }
}

/// A bias within [`MOST_BIAS`]; infinity and NaN stay.
#[inline(always)]
fn limited<R: VectorReal>(bias: R) -> R {
    let most = R::from_f64(MOST_BIAS);
    let least = R::ZERO - most;
    let is_finite = bias * R::ZERO == R::ZERO;
    match (is_finite && bias < least, is_finite && bias > most) {
        (true, _) => least,
        (_, true) => most,
        _ => bias,
    }
}

/// Applies a row of a mask or of biases to logits that follow each other.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) struct ApplyToRow<'a> {
    pub row: MaskRow,
    pub keys: Range<usize>,
    /// One per key.
    pub logits: &'a mut [f32],
    /// What they will be multiplied with to be powers of two.
    pub factor: f32,
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl Kernel for ApplyToRow<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let (row, inverse) = (self.row, 1.0 / self.factor);
        let firsts = self.keys.clone().step_by(KEYS);
        for (first, logits) in firsts.zip(self.logits.chunks_mut(KEYS)) {
            let keys = first..first + logits.len();
            if row.bias.is_none() {
                // SAFETY: the keys are the problem's.
                let bits = unsafe { row.bits(&keys) };
                for (index, logit) in logits.iter_mut().enumerate() {
                    *logit = match bits >> index & 1 {
                        0 => f32::NEG_INFINITY,
                        _ => *logit,
                    };
                }
                continue;
            }
            let mut biases = [0.0; KEYS];
            // SAFETY: as above.
            unsafe { row.read::<f32, I>(&keys, &mut biases) };
            for (logit, &bias) in logits.iter_mut().zip(&biases) {
                *logit = match bias == f32::NEG_INFINITY {
                    true => bias,
                    false => bias.fused(inverse, *logit),
                };
            }
        }
    }
}

/// Whether booleans hide all of these keys from all of these rows.
///
/// # Safety
/// The keys are the problem's.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) unsafe fn hide_everything(rows: &[MaskRow], keys: &Range<usize>) -> bool {
    let parts = || {
        let firsts = keys.clone().step_by(KEYS);
        firsts.map(|first| first..(first + KEYS).min(keys.end))
    };
    // SAFETY: as the caller promises.
    let hides = |row: &MaskRow| parts().all(|keys| unsafe { row.bits(&keys) } == 0);
    !rows.is_empty() && rows.iter().all(|row| row.bias.is_none() && hides(row))
}

/// The rows of a mask for a block: one for each lane, or a single one that is that of all.
pub(super) fn rows_of(mask: &MaskTensor, places: impl Iterator<Item = [usize; 3]>) -> Vec<MaskRow> {
    let mut rows: Vec<MaskRow> = places.map(|place| mask.row(place)).collect();
    if mask.is_same_for_rows() {
        rows.truncate(1);
    }
    rows
}
