//! Which keys the rows of a block see, and what is added to their logits.

use std::ops::Range;

use super::lanes::Lane;
use super::mask::{self, AddBias, Hide, KeptBiases, MaskRow, MaskTensor, Seen, SeenBits};
use super::rows::HeadRows;
use crate::cpu::Cpu;
use crate::cpu::simd::VectorReal;
use crate::dense::Problem;

/// Which keys the rows of a block see.
pub(super) struct SeenByRows<'a> {
    problem: &'a Problem,
    pub of: HeadRows,
    /// At least one.
    pub rows: Range<usize>,
    /// The keys that some row sees.
    pub some: Range<usize>,
    /// The keys that every row sees, but for those that a tensor hides.
    all: Range<usize>,
    is_boolean: bool,
    /// Of each row, or one that is that of all; none without a mask.
    mask: Vec<MaskRow>,
}

/// Keys of a step that some row sees.
pub(super) struct SeenInStep {
    pub keys: Range<usize>,
    /// Whether every row is known to see all of them.
    pub are_seen_by_all: bool,
    in_every_band: bool,
    by_mask: Seen,
    bits: Option<SeenBits>,
}

impl<'a> SeenByRows<'a> {
    pub fn new(
        problem: &'a Problem,
        mask: Option<&MaskTensor>,
        of: HeadRows,
        rows: Range<usize>,
    ) -> Self {
        let first = problem.visible(of.query(rows.start));
        let last = problem.visible(of.query(rows.end - 1));
        let places = rows.clone().map(|row| of.place(row));
        SeenByRows {
            problem,
            of,
            rows,
            some: first.start..last.end,
            all: last.start..first.end,
            is_boolean: mask.is_some_and(MaskTensor::is_boolean),
            mask: mask.map_or(Vec::new(), |mask| mask::rows_of(mask, places)),
        }
    }

    /// The keys of a step that some row sees; `None` if there are none.
    ///
    /// # Safety
    /// The keys, at most as many as a step has, are the problem's.
    pub unsafe fn in_step(&self, step: &Range<usize>) -> Option<SeenInStep> {
        let keys = self.some.start.max(step.start)..self.some.end.min(step.end);
        if keys.is_empty() {
            return None;
        }
        // SAFETY: as the caller promises.
        let bits = (self.is_boolean).then(|| unsafe { SeenBits::new(&self.mask, &keys) });
        let by_mask = match &bits {
            Some(bits) => bits.seen(self.mask.len(), keys.len()),
            None if self.mask.is_empty() => Seen::Everything,
            None => Seen::Some,
        };
        if by_mask == Seen::Nothing {
            return None;
        }
        let in_every_band = self.all.start <= keys.start && keys.end <= self.all.end;
        Some(SeenInStep {
            keys,
            are_seen_by_all: in_every_band && by_mask == Seen::Everything,
            in_every_band,
            by_mask,
            bits,
        })
    }

    /// Adds biases to the logits of a step, one per key, and sets those of keys that a row does not see to minus infinity. `tile`
    /// is the number of its biases among those kept, if they are.
    pub fn apply<R: VectorReal>(
        &self,
        cpu: &Cpu,
        step: &SeenInStep,
        logits: &mut [Lane<R>],
        biases: &mut KeptBiases<'_, R>,
        tile: Option<usize>,
    ) {
        if !step.in_every_band {
            self.hide(&step.keys, logits);
        }
        if step.by_mask == Seen::Everything {
            return;
        }
        match step.bits {
            Some(seen) => cpu.run(Hide {
                seen,
                is_same_for_rows: self.mask.len() == 1,
                logits,
            }),
            None => cpu.run(AddBias {
                rows: &self.mask,
                keys: step.keys.clone(),
                logits,
                biases,
                tile,
            }),
        }
    }

    /// Sets the logits of keys outside of the band to minus infinity. Visible ranges only move forward from row to row, so a
    /// key is hidden from the first rows, whose range ends before it, and from the last.
    fn hide<R: VectorReal>(&self, keys: &Range<usize>, logits: &mut [Lane<R>]) {
        let row = |lane: usize| self.visible(self.rows.start + lane);
        let count = self.rows.len();
        let (mut past, mut reached) = (0, 0);
        for (key, Lane(logits)) in keys.clone().zip(logits) {
            while past < count && row(past).end <= key {
                past += 1;
            }
            while reached < count && row(reached).start <= key {
                reached += 1;
            }
            logits[..past].fill(R::NEG_INFINITY);
            logits[reached..count].fill(R::NEG_INFINITY);
        }
    }

    /// The keys a row sees, but for those that a tensor hides from it.
    fn visible(&self, row: usize) -> Range<usize> {
        self.problem.visible(self.of.query(row))
    }

    /// Whether the row in a lane sees a key.
    ///
    /// # Safety
    /// The key is one of the problem's.
    pub unsafe fn sees(&self, lane: usize, key: usize) -> bool {
        let mask = self.mask.get(lane).or(self.mask.first());
        // SAFETY: as the caller promises.
        let is_hidden = mask.is_some_and(|mask| unsafe { mask.hides(key) });
        self.visible(self.rows.start + lane).contains(&key) && !is_hidden
    }
}
