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
use crate::bool_view::BoolView;
use crate::error::Result;
use crate::layout::Layout;
use crate::place::Place;
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::{View, ViewMut};

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

/// The tensors of a call: inputs, masks among them, then outputs. Each belongs here and nowhere else in a key, so that
/// none is compared without its place.
pub(super) struct Tensors<'a, const TENSORS: usize> {
    /// `None` for one that the call does not have.
    pub views: [Option<Tensor<'a>>; TENSORS],
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

/// A tensor of a call.
#[derive(Clone, Copy)]
pub(super) enum Tensor<'a> {
    Numbers(&'a View<'a>),
    Booleans(&'a BoolView<'a>),
}

impl<'a> From<&'a View<'a>> for Tensor<'a> {
    fn from(view: &'a View<'a>) -> Self {
        Tensor::Numbers(view)
    }
}

impl<'a> From<&'a ViewMut<'a>> for Tensor<'a> {
    fn from(view: &'a ViewMut<'a>) -> Self {
        Tensor::Numbers(view.as_view())
    }
}

impl<'a> From<&'a BoolView<'a>> for Tensor<'a> {
    fn from(view: &'a BoolView<'a>) -> Self {
        Tensor::Booleans(view)
    }
}

/// A tensor that a call may lack.
pub(super) fn optional<'a, View>(view: &'a Option<View>) -> Option<Tensor<'a>>
where
    &'a View: Into<Tensor<'a>>,
{
    view.as_ref().map(Into::into)
}

impl Tensor<'_> {
    fn address(&self) -> usize {
        match self {
            Tensor::Numbers(view) => view.as_ptr() as usize,
            Tensor::Booleans(view) => view.as_ptr() as usize,
        }
    }

    fn place(&self) -> Place {
        match self {
            Tensor::Numbers(view) => view.place(),
            Tensor::Booleans(view) => view.place(),
        }
    }

    fn layout(&self) -> LayoutKey {
        match self {
            Tensor::Numbers(view) => LayoutKey::Numbers(*view.layout()),
            Tensor::Booleans(view) => {
                let mut strides = [0; MAX_RANK];
                for (kept, &stride) in strides.iter_mut().zip(view.strides()) {
                    *kept = stride;
                }
                LayoutKey::Booleans(view.shape(), strides)
            }
        }
    }

    /// The addresses it occupies; `None` without elements, or for one that no check accepts.
    fn occupied(&self) -> Option<Range<usize>> {
        let occupied = match self {
            Tensor::Numbers(view) => view.check(""),
            Tensor::Booleans(view) => view.check(""),
        };
        occupied.ok().filter(|occupied| !occupied.is_empty())
    }
}

#[derive(PartialEq, Eq)]
enum LayoutKey {
    Numbers(Layout),
    Booleans(Shape, [isize; MAX_RANK]),
}

/// Everything that checks and plans depend on of a tensor, except its address.
struct TensorKey {
    place: Place,
    layout: LayoutKey,
    /// Its address modulo [`ALIGNMENT`]: some kernels need more alignment than the elements do.
    remainder: usize,
    /// The bytes it occupies, relative to its first element.
    reach: Range<isize>,
}

/// More than any kernel needs.
const ALIGNMENT: usize = 256;

impl TensorKey {
    /// `None` for a tensor without elements.
    fn new(tensor: Tensor<'_>) -> Option<Self> {
        let (address, occupied) = (tensor.address(), tensor.occupied()?);
        let from_first = |at: usize| at.wrapping_sub(address) as isize;
        Some(TensorKey {
            place: tensor.place(),
            layout: tensor.layout(),
            remainder: address % ALIGNMENT,
            reach: from_first(occupied.start)..from_first(occupied.end),
        })
    }

    fn is_like(&self, tensor: Tensor<'_>) -> bool {
        let address = tensor.address();
        address != 0
            && address % ALIGNMENT == self.remainder
            && self.place == tensor.place()
            && self.layout == tensor.layout()
    }

    fn occupied(&self, tensor: Tensor<'_>) -> Range<usize> {
        let address = tensor.address();
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

/// Calls of any operator on memory that does not exist, to show what its key holds of each tensor.
#[cfg(test)]
pub(super) mod forged {
    use super::*;
    use crate::dtype::DType;

    /// A tensor, described.
    #[derive(Clone, Copy, Debug)]
    pub struct Forged {
        name: &'static str,
        place: Place,
        address: u64,
        dtype: DType,
        shape: &'static [usize],
        /// Elements between rows of the first axis, besides those of a row.
        gap: isize,
        is_there: bool,
    }

    impl Forged {
        /// Row-major, on device 0, its memory apart from that of others with other numbers.
        pub fn new(name: &'static str, number: u64, dtype: DType, shape: &'static [usize]) -> Self {
            Forged {
                name,
                place: Place::Cuda { ordinal: 0 },
                address: (number + 1) << 20,
                dtype,
                shape,
                gap: 0,
                is_there: true,
            }
        }

        fn strides(&self) -> Vec<isize> {
            let layout = Layout::contiguous(self.dtype, self.shape);
            let mut strides = layout.strides().to_vec();
            strides[0] += self.gap;
            strides
        }

        pub fn view(&self) -> View<'static> {
            let layout = Layout::strided(self.dtype, self.shape, &self.strides());
            match self.place {
                // SAFETY: never read.
                Place::Host => unsafe {
                    View::from_raw(ptr::without_provenance(self.address as usize), layout)
                },
                // SAFETY: never read.
                Place::Cuda { ordinal } => unsafe { View::on_cuda(ordinal, self.address, layout) },
            }
        }

        pub fn output(&self) -> ViewMut<'static> {
            let layout = *self.view().layout();
            match self.place {
                // SAFETY: never written.
                Place::Host => unsafe {
                    ViewMut::from_raw(ptr::without_provenance_mut(self.address as usize), layout)
                },
                // SAFETY: never written.
                Place::Cuda { ordinal } => unsafe {
                    ViewMut::on_cuda(ordinal, self.address, layout)
                },
            }
        }

        pub fn booleans(&self) -> BoolView<'static> {
            let strides = self.strides();
            match self.place {
                // SAFETY: never read.
                Place::Host => unsafe {
                    let first = ptr::without_provenance(self.address as usize);
                    BoolView::from_raw(first, self.shape, &strides)
                },
                // SAFETY: never read.
                Place::Cuda { ordinal } => unsafe {
                    BoolView::on_cuda(ordinal, self.address, self.shape, &strides)
                },
            }
        }

        /// `None` for one that was left out.
        pub fn if_there<View>(&self, view: impl Fn(&Self) -> View) -> Option<View> {
            self.is_there.then(|| view(self))
        }
    }

    type Change = fn(&mut Forged);

    const CHANGES: [(&str, Change); 6] = [
        ("in host memory", |it| it.place = Place::Host),
        ("on another device", |it| {
            it.place = Place::Cuda { ordinal: 1 }
        }),
        ("without memory", |it| it.address = 0),
        ("aligned less", |it| it.address += 16),
        ("with gaps", |it| it.gap = 8),
        ("absent", |it| it.is_there = false),
    ];

    /// Checks that a call does not use the plan of `known` if any tensor of it is elsewhere, or lies otherwise, or if an
    /// output, of which the first is number `first_written`, lies where another tensor does. `is_like` tells whether the
    /// second call uses the plan of the first.
    pub fn expect_each_decides<const TENSORS: usize>(
        known: [Forged; TENSORS],
        optional: &[&str],
        first_written: usize,
        is_like: impl Fn(&[Forged; TENSORS], &[Forged; TENSORS]) -> bool,
    ) {
        assert!(is_like(&known, &known));
        let moved = known.map(|mut tensor| {
            tensor.address += ALIGNMENT as u64;
            tensor
        });
        assert!(is_like(&known, &moved), "only addresses differ");
        for (index, Forged { name, .. }) in known.iter().enumerate() {
            for (change, apply) in CHANGES {
                if change == "absent" && !optional.contains(name) {
                    continue;
                }
                let mut changed = known;
                apply(&mut changed[index]);
                assert!(!is_like(&known, &changed), "{name} {change}");
            }
            for other in (0..TENSORS).filter(|&other| other != index) {
                let mut changed = known;
                changed[other].address = known[index].address;
                let is_written = index.max(other) >= first_written;
                let where_it_is = (known[other].name, name);
                assert_eq!(!is_like(&known, &changed), is_written, "{where_it_is:?}");
            }
        }
    }

    impl<const TENSORS: usize> Tensors<'_, TENSORS> {
        /// Whether a call with these tensors would use the plan of one with those.
        pub fn are_like_those(&self, other: &Tensors<'_, TENSORS>) -> bool {
            self.are_like(&other.known().expect("tensors with elements"))
        }
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
        let mut views = views.each_ref().map(|view| Some(view.into()));
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
