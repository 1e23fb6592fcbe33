//! State of a process that a child forked at any moment can use.
//!
//! A lock may be held, when a process forks, by a thread that the child does not have; whoever waits for it there waits
//! forever. So does whoever asks a `OnceLock` that such a thread was about to fill.

use std::convert::Infallible;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A list to which items are added and from which none is removed.
pub struct List<T: 'static> {
    first: AtomicPtr<Node<T>>,
}

struct Node<T: 'static> {
    item: T,
    next: *const Node<T>,
}

// SAFETY: threads share the items, and any of them adds one.
unsafe impl<T: Send + Sync> Sync for List<T> {}

impl<T: Send + Sync> List<T> {
    /// An empty list.
    #[expect(clippy::new_without_default, reason = "lists are static")]
    pub const fn new() -> Self {
        List {
            first: AtomicPtr::new(null_mut()),
        }
    }

    /// The only item, computed by the first to ask. Threads that ask at the same time may each compute it.
    pub fn get_or_init(&'static self, compute: impl FnOnce() -> T) -> &'static T {
        let Ok(item) = self.find_or_add(|_| true, || Ok::<_, Infallible>(compute()));
        item
    }

    /// The item that fits, or a new one. Threads that ask at the same time may each make one.
    pub fn find_or_add<E>(
        &'static self,
        fits: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&'static T, E> {
        let mut next: *const Node<T> = self.first.load(Ordering::Acquire);
        // SAFETY: nodes are never freed or changed once they are in the list.
        while let Some(node) = unsafe { next.as_ref() } {
            if fits(&node.item) {
                return Ok(&node.item);
            }
            next = node.next;
        }
        let mut first = self.first.load(Ordering::Acquire);
        let node = Box::into_raw(Box::new(Node {
            item: make()?,
            next: first,
        }));
        while let Err(now) =
            (self.first).compare_exchange_weak(first, node, Ordering::AcqRel, Ordering::Acquire)
        {
            first = now;
            // SAFETY: nothing else refers to the node before it is in the list.
            unsafe { (*node).next = first };
        }
        // SAFETY: in the list, it is never freed or changed.
        Ok(unsafe { &(*node).item })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn an_item_that_fits_is_found_again() {
        static ITEMS: List<(u32, u32)> = List::new();
        let get = |key: u32, value: u32| {
            let item = ITEMS.find_or_add(|item| item.0 == key, || Ok::<_, ()>((key, value)));
            item.unwrap().1
        };
        assert_eq!((get(1, 10), get(2, 20)), (10, 20));
        assert_eq!((get(1, 11), get(2, 21), get(3, 30)), (10, 20, 30));
        assert_eq!(ITEMS.find_or_add(|_| false, || Err("words")), Err("words"));
    }

    #[test]
    fn threads_that_add_at_once_lose_nothing() {
        static ITEMS: List<usize> = List::new();
        const THREADS: usize = 8;
        let barrier = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    for item in (thread..1000).step_by(THREADS) {
                        ITEMS
                            .find_or_add(|it| *it == item, || Ok::<_, ()>(item))
                            .unwrap();
                    }
                });
            }
        });
        for item in 0..1000 {
            assert_eq!(ITEMS.find_or_add(|it| *it == item, || Err(())), Ok(&item));
        }
    }
}
