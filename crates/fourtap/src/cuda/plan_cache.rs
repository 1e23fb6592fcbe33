//! The plan cache: a plan that was checked and made for one call serves all calls that differ from it only in their
//! addresses. A model makes the same few calls over and over, and on small problems checking and planning each time would
//! cost the host a good part of what the launch does.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::thread::LocalKey;

use super::driver::Context;
use super::handle::{Cuda, Settings};
use crate::error::Result;
use crate::layout::Layout;
use crate::place::Place;
use crate::tensor::View;

/// Plans per thread and pass: enough for a model with several shapes.
const MOST: usize = 16;

/// The most recent plans of a thread for one pass of an operator, newest first. `Detail` is everything about a call
/// besides its tensors.
pub(super) struct PlanCache<const TENSORS: usize, Detail, Plan> {
    recent: RefCell<VecDeque<Entry<TENSORS, Detail, Plan>>>,
}

struct Entry<const TENSORS: usize, Detail, Plan> {
    context: &'static Context,
    settings: Settings,
    tensors: [Option<TensorKey>; TENSORS],
    detail: Detail,
    plan: Arc<Plan>,
}

/// The tensors of a call: inputs, then outputs.
pub(super) struct Tensors<'a, const TENSORS: usize> {
    /// `None` for one that the call does not have.
    pub views: [Option<&'a View<'a>>; TENSORS],
    /// Index of the first output.
    pub first_written: usize,
}

impl<const TENSORS: usize, Detail, Plan> PlanCache<TENSORS, Detail, Plan> {
    pub const fn new() -> Self {
        PlanCache {
            recent: RefCell::new(VecDeque::new()),
        }
    }

    /// The cached plan of a call like this one, or the one that `make` makes by checking the call; a call that it refuses
    /// is not cached. `is_same` tells whether a detail is this call's.
    pub fn plan(
        cache: &'static LocalKey<Self>,
        cuda: &Cuda,
        tensors: &Tensors<'_, TENSORS>,
        is_same: impl Fn(&Detail) -> bool,
        make: impl FnOnce() -> Result<(Plan, Detail)>,
    ) -> Result<Arc<Plan>> {
        // While a thread ends, its thread-local variables may be gone already.
        let found = cache.try_with(|cache| {
            let recent = cache.recent.borrow();
            let like = recent.iter().find(|entry| {
                ptr::eq(entry.context, cuda.context())
                    && entry.settings == *cuda.settings()
                    && tensors.are_like(&entry.tensors)
                    && is_same(&entry.detail)
            });
            like.map(|entry| entry.plan.clone())
        });
        if let Ok(Some(plan)) = found {
            return Ok(plan);
        }
        let (plan, detail) = make()?;
        let plan = Arc::new(plan);
        if let Some(known) = tensors.known() {
            let entry = Entry {
                context: cuda.context(),
                settings: *cuda.settings(),
                tensors: known,
                detail,
                plan: plan.clone(),
            };
            let _ = cache.try_with(|cache| {
                let mut recent = cache.recent.borrow_mut();
                recent.truncate(MOST - 1);
                recent.push_front(entry);
            });
        }
        Ok(plan)
    }
}

/// Everything that checks and plans depend on of a tensor, except its address.
struct TensorKey {
    place: Place,
    layout: Layout,
    /// Its address modulo [`ALIGNMENT`]: some kernels need more alignment than the elements do.
    remainder: usize,
    /// The bytes it occupies, relative to its first element.
    reach: Range<isize>,
}

/// More than any kernel needs.
const ALIGNMENT: usize = 256;

impl TensorKey {
    /// `None` for a tensor without elements.
    fn new(view: &View<'_>) -> Option<Self> {
        let (lowest, highest) = view.layout().offsets("").ok()??;
        let size = view.dtype().size() as isize;
        Some(TensorKey {
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

impl<const TENSORS: usize> Tensors<'_, TENSORS> {
    /// The keys of checked tensors; `None` if one of them has no elements.
    fn known(&self) -> Option<[Option<TensorKey>; TENSORS]> {
        let mut known = [const { None }; TENSORS];
        for (known, view) in known.iter_mut().zip(self.views) {
            if let Some(view) = view {
                *known = Some(TensorKey::new(view)?);
            }
        }
        Some(known)
    }

    /// Whether checks and plans would come out the same for these.
    fn are_like(&self, known: &[Option<TensorKey>; TENSORS]) -> bool {
        let mut occupied = [const { 0..0 }; TENSORS];
        for (index, pair) in known.iter().zip(self.views).enumerate() {
            match pair {
                (Some(known), Some(view)) if known.is_like(view) => {
                    occupied[index] = known.occupied(view);
                }
                (None, None) => {}
                _ => return false,
            }
        }
        let meet = |one: &Range<usize>, other: &Range<usize>| {
            one.start < other.end && other.start < one.end
        };
        (self.first_written..TENSORS).all(|written| {
            let mut others = occupied[..written].iter();
            !others.any(|other| meet(other, &occupied[written]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    const READ: usize = 2;

    /// Two inputs and two outputs, the last of them optional, at these addresses.
    fn views(at: [u64; 4]) -> [View<'static>; 4] {
        let shapes: [&[usize]; 4] = [&[6, 8], &[5, 2], &[5, 8], &[5]];
        std::array::from_fn(|index| {
            let layout = Layout::contiguous(DType::F32, shapes[index]);
            // SAFETY: never read.
            unsafe { View::on_cuda(0, at[index], layout) }
        })
    }

    fn tensors<'a>(views: &'a [View<'a>; 4], with_last: bool) -> Tensors<'a, 4> {
        let mut views = views.each_ref().map(Some);
        if !with_last {
            views[3] = None;
        }
        Tensors {
            views,
            first_written: READ,
        }
    }

    #[test]
    fn only_memory_may_differ() {
        let at = [0x1000, 0x2000, 0x3000, 0x4000];
        let first = views(at);
        let known = tensors(&first, true).known().unwrap();
        let is_like = |at| tensors(&views(at), true).are_like(&known);
        assert!(is_like(at));
        assert!(is_like([0x5000, 0x2100, 0x3300, 0x8000]));
        assert!(!is_like([0x1010, 0x2000, 0x3000, 0x4000]), "alignment");
        assert!(!is_like([0, 0x2000, 0x3000, 0x4000]), "no memory");
        assert!(!tensors(&first, false).are_like(&known), "one is missing");
        let without = tensors(&first, false).known().unwrap();
        assert!(!tensors(&first, true).are_like(&without), "one too many");
        assert!(tensors(&first, false).are_like(&without));
    }

    #[test]
    fn what_is_written_meets_nothing_else() {
        let known = tensors(&views([0x1000, 0x2000, 0x3000, 0x4000]), true).known();
        let known = known.unwrap();
        let is_like = |at| tensors(&views(at), true).are_like(&known);
        // The first occupies 192 bytes, the third 160.
        assert!(is_like([0x3100, 0x2000, 0x3000, 0x4000]));
        assert!(!is_like([0x3000, 0x2000, 0x3000, 0x4000]), "an input");
        assert!(!is_like([0x1000, 0x2000, 0x3000, 0x3000]), "an output");
        assert!(is_like([0x1000, 0x1000, 0x3000, 0x4000]), "two inputs");
    }

    #[test]
    fn another_layout_or_place_is_another_call() {
        let first = views([0x1000, 0x2000, 0x3000, 0x4000]);
        let known = tensors(&first, true).known().unwrap();
        let mut other = first;
        // SAFETY: never read.
        other[1] = unsafe { View::on_cuda(1, 0x2000, *first[1].layout()) };
        assert!(!tensors(&other, true).are_like(&known), "another device");
        // SAFETY: never read.
        other[1] = unsafe { View::on_cuda(0, 0x2000, Layout::contiguous(DType::F32, &[2, 5])) };
        assert!(!tensors(&other, true).are_like(&known), "another shape");
        let nothing = Layout::contiguous(DType::F32, &[0, 2]);
        // SAFETY: never read.
        other[1] = unsafe { View::on_cuda(0, 0x2000, nothing) };
        assert!(tensors(&other, true).known().is_none(), "no elements");
    }
}
