//! Calls that come again: what was checked and planned for one serves all that differ from it only in the memory they
//! name. A model makes the same few calls over and over, and on small problems checking and planning anew would cost the
//! host a good part of what the launch does.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;

use super::arguments::Addresses;
use super::forward::Ready;
use crate::cuda::Cuda;
use crate::error::Result;
use crate::layout::Layout;
use crate::msda::{Forward, Inputs, LevelTable, Levels};
use crate::tensor::{Place, View, ViewMut};

/// How many calls a thread remembers: those of a model with several shapes.
const MOST: usize = 16;

thread_local! {
    /// The newest first.
    static RECENT: RefCell<VecDeque<Repeated>> = const { RefCell::new(VecDeque::new()) };
}

struct Repeated {
    cuda: Cuda,
    tensors: Tensors,
    ready: Ready,
}

/// Remembers a call that was checked, and was launched so.
pub(super) fn remember(cuda: &Cuda, call: &Forward<'_>, ready: Ready) {
    let Some(tensors) = Tensors::new(&call.inputs, &call.out) else {
        return;
    };
    // While a thread ends its own variables may be gone already.
    let _ = RECENT.try_with(|recent| {
        let mut recent = recent.borrow_mut();
        recent.truncate(MOST - 1);
        recent.push_front(Repeated {
            cuda: *cuda,
            tensors,
            ready,
        });
    });
}

impl Cuda {
    /// Computes a call like one before on this thread; none if it must be checked and planned.
    pub(crate) fn msda_forward_again(
        &self,
        inputs: &Inputs<'_>,
        out: &ViewMut<'_>,
    ) -> Option<Result<()>> {
        let done = RECENT.try_with(|recent| {
            let mut recent = recent.borrow_mut();
            let Repeated { ready, .. } = recent.iter_mut().find(|before| {
                before.cuda.plans_like(self) && before.tensors.are_like(inputs, out)
            })?;
            ready.point_at(Addresses::new(inputs, Some(out)));
            // SAFETY: a call like it was checked, and whoever made the views answers for the memory behind them.
            Some(unsafe { ready.launch(self) })
        });
        done.ok().flatten()
    }
}

/// All that a check or a plan looks at of a call's tensors.
struct Tensors {
    value: Tensor,
    levels: KnownLevels,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    out: Tensor,
}

impl Tensors {
    /// Those of a call that was checked; none if one of them has no elements.
    fn new(inputs: &Inputs<'_>, out: &ViewMut<'_>) -> Option<Self> {
        Some(Tensors {
            value: Tensor::new(&inputs.value)?,
            levels: match inputs.levels {
                LevelTable::Host(levels) => KnownLevels::Host(levels.clone()),
                LevelTable::Cuda(levels) => KnownLevels::Cuda {
                    ordinal: levels.ordinal,
                    count: levels.count,
                    has_starts: levels.starts.is_some(),
                },
            },
            sampling_locations: Tensor::new(&inputs.sampling_locations)?,
            attention_weights: Tensor::new(&inputs.attention_weights)?,
            out: Tensor::new(out.as_view())?,
        })
    }

    /// Whether checks and plans would say the same of these.
    fn are_like(&self, inputs: &Inputs<'_>, out: &ViewMut<'_>) -> bool {
        let pairs = [
            // The first, since it differs between most calls that differ.
            (&self.sampling_locations, &inputs.sampling_locations),
            (&self.value, &inputs.value),
            (&self.attention_weights, &inputs.attention_weights),
            (&self.out, out.as_view()),
        ];
        if !pairs.iter().all(|(known, view)| known.is_like(view))
            || !self.levels.are(&inputs.levels)
        {
            return false;
        }
        let [locations, value, weights, out] = pairs.map(|(known, view)| known.occupied(view));
        let meets = |other: Range<usize>| other.start < out.end && out.start < other.end;
        ![locations, value, weights].into_iter().any(meets)
    }
}

enum KnownLevels {
    Host(Levels),
    Cuda {
        ordinal: usize,
        count: usize,
        has_starts: bool,
    },
}

impl KnownLevels {
    fn are(&self, levels: &LevelTable<'_>) -> bool {
        match (self, levels) {
            (KnownLevels::Host(known), LevelTable::Host(levels)) => known == *levels,
            (
                KnownLevels::Cuda {
                    ordinal,
                    count,
                    has_starts,
                },
                LevelTable::Cuda(levels),
            ) => {
                *ordinal == levels.ordinal
                    && *count == levels.count
                    && *has_starts == levels.starts.is_some()
            }
            _ => false,
        }
    }
}

/// One tensor, wherever it begins.
struct Tensor {
    place: Place,
    layout: Layout,
    /// Of its address, divided by [`ALIGNMENT`]: some kernels want more alignment than the elements do.
    remainder: usize,
    /// The bytes it occupies, counted from its first element.
    reach: Range<isize>,
}

/// More than any kernel asks for.
const ALIGNMENT: usize = 256;

impl Tensor {
    fn new(view: &View<'_>) -> Option<Self> {
        let (lowest, highest) = view.layout().offsets("").ok()??;
        let size = view.dtype().size() as isize;
        Some(Tensor {
            place: view.place(),
            layout: *view.layout(),
            remainder: view.as_ptr() as usize % ALIGNMENT,
            reach: lowest * size..(highest + 1) * size,
        })
    }

    fn is_like(&self, view: &View<'_>) -> bool {
        let address = view.as_ptr() as usize;
        address != 0
            && address % ALIGNMENT == self.remainder
            && self.layout == *view.layout()
            && self.place == view.place()
    }

    fn occupied(&self, view: &View<'_>) -> Range<usize> {
        let address = view.as_ptr() as usize;
        address.wrapping_add_signed(self.reach.start)..address.wrapping_add_signed(self.reach.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::msda::CudaLevels;

    /// Value, locations, weights and out of one small problem, at these addresses.
    fn call(at: [u64; 4], levels: LevelTable<'_>) -> (Inputs<'_>, ViewMut<'_>) {
        let layout = |shape: &[usize]| Layout::contiguous(DType::F32, shape);
        let view = |at, shape: &[usize]| {
            // SAFETY: never read.
            unsafe { View::on_cuda(0, at, layout(shape)) }
        };
        let inputs = Inputs {
            value: view(at[0], &[1, 6, 1, 8]),
            levels,
            sampling_locations: view(at[1], &[1, 5, 1, 1, 2, 2]),
            attention_weights: view(at[2], &[1, 5, 1, 1, 2]),
        };
        // SAFETY: never written.
        let out = unsafe { ViewMut::on_cuda(0, at[3], layout(&[1, 5, 8])) };
        (inputs, out)
    }

    #[test]
    fn only_memory_may_differ() {
        let levels = Levels::packed(&[(2, 3)]).unwrap();
        let at = [0x1000, 0x2000, 0x3000, 0x4000];
        let (inputs, out) = call(at, (&levels).into());
        let known = Tensors::new(&inputs, &out).unwrap();
        let is_like = |at: [u64; 4], levels: LevelTable<'_>| {
            let (inputs, out) = call(at, levels);
            known.are_like(&inputs, &out)
        };
        assert!(is_like(at, (&levels).into()));
        assert!(is_like([0x5000, 0x2100, 0x3300, 0x8000], (&levels).into()));
        assert!(
            !is_like([0x1010, 0x2000, 0x3000, 0x4000], (&levels).into()),
            "alignment"
        );
        assert!(
            !is_like([0, 0x2000, 0x3000, 0x4000], (&levels).into()),
            "no memory"
        );
        // Value occupies 192 bytes, out 160.
        assert!(is_like([0x4100, 0x2000, 0x3000, 0x4000], (&levels).into()));
        assert!(
            !is_like([0x4000, 0x2000, 0x3000, 0x4000], (&levels).into()),
            "overlap"
        );
        let others = Levels::packed(&[(3, 2)]).unwrap();
        assert!(!is_like(at, (&others).into()), "levels");
        // SAFETY: never read.
        let on_device = |starts| LevelTable::Cuda(unsafe { CudaLevels::new(0, 1, 0x9000, starts) });
        assert!(!is_like(at, on_device(None)), "levels on the device");

        let (inputs, out) = call(at, on_device(None));
        let known = Tensors::new(&inputs, &out).unwrap();
        let is_like = |levels: LevelTable<'_>| {
            let (inputs, out) = call(at, levels);
            known.are_like(&inputs, &out)
        };
        assert!(is_like(on_device(None)));
        assert!(!is_like(on_device(Some(0xa000))), "starts");
        assert!(!is_like((&levels).into()));
    }
}
