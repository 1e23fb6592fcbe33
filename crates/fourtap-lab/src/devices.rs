//! Several GPUs as workers that take the next item from one queue.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Device, Driver};

use crate::error::{Error, Result};

/// All GPUs that this process sees, of which there must be one at least. Their times stand side by side, so they must be of
/// one model.
pub fn all() -> Result<Vec<Device>> {
    let count = Driver::get().map_or(0, |driver| driver.device_count());
    // Without any, the first one says what is missing.
    let found: std::result::Result<Vec<_>, _> = (0..count.max(1)).map(Cuda::find).collect();
    let found = found.map_err(|source| Error::NoDevices(Box::new(source)))?;
    let names: Vec<_> = found.iter().map(|it| it.facts().name.as_str()).collect();
    of_one_model(&names)?;
    Ok(found)
}

fn of_one_model(names: &[&str]) -> Result<()> {
    let other = names.iter().position(|name| *name != names[0]);
    match other {
        None => Ok(()),
        Some(ordinal) => Err(Error::MixedDevices {
            first: names[0].to_string(),
            ordinal,
            other: names[ordinal].to_string(),
        }),
    }
}

/// Does the work of every item, and returns the results in the order of the items. Each device has a thread, which takes the
/// next item when it has done one; one device alone works in the calling thread. After an error nobody takes another item.
pub fn on_each<D: Sync, I: Send, R: Send>(
    devices: &[D],
    items: Vec<I>,
    work: impl Fn(&D, I) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let queue = Mutex::new(items.into_iter().enumerate());
    let ends = Mutex::new((Vec::new(), None));
    let serve = |device: &D| {
        loop {
            if lock(&ends).1.is_some() {
                return;
            }
            let next = lock(&queue).next();
            let Some((place, item)) = next else { return };
            match work(device, item) {
                Ok(result) => lock(&ends).0.push((place, result)),
                Err(error) => {
                    lock(&ends).1.get_or_insert(error);
                }
            }
        }
    };
    match devices {
        [only] => serve(only),
        _ => thread::scope(|scope| {
            for device in devices {
                scope.spawn(|| serve(device));
            }
        }),
    }
    let (mut results, failed) = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = failed {
        return Err(error);
    }
    results.sort_unstable_by_key(|(place, _)| *place);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// A thread that panicked with the lock held ends the program anyway.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn results_come_in_the_order_of_items_whoever_did_them() {
        let found = on_each(&["a", "b", "c"], (0..100).collect(), |_, item: u32| {
            Ok(item * 2)
        });
        assert_eq!(
            found.unwrap(),
            (0..100).map(|it| it * 2).collect::<Vec<_>>()
        );
        let nothing = on_each(&["a", "b"], Vec::<u32>::new(), |_, item| Ok(item)).unwrap();
        assert!(nothing.is_empty());
    }

    #[test]
    fn devices_work_at_the_same_time() {
        // Each item waits until both devices have one.
        let both = Barrier::new(2);
        let found = on_each(&["a", "b"], vec![(), ()], |device, ()| {
            both.wait();
            Ok(*device)
        });
        let mut found = found.unwrap();
        found.sort_unstable();
        assert_eq!(found, ["a", "b"]);
    }

    #[test]
    fn a_slow_device_leaves_items_to_the_others() {
        let done = AtomicUsize::new(0);
        let found = on_each(&["slow", "fast"], (0..9).collect(), |device, _: u32| {
            // The first item of the slow one lasts until the fast one has done all others.
            while *device == "slow" && done.load(Ordering::SeqCst) < 8 {
                thread::yield_now();
            }
            done.fetch_add(1, Ordering::SeqCst);
            Ok(*device)
        });
        let by_slow = found.unwrap().into_iter().filter(|it| *it == "slow");
        assert!(by_slow.count() <= 1);
    }

    #[test]
    fn one_device_works_in_the_calling_thread_and_stops_at_an_error() {
        let here = thread::current().id();
        let begun = AtomicUsize::new(0);
        let failed = on_each(&["a"], vec![1, 2, 3], |_, item| {
            assert_eq!(thread::current().id(), here);
            begun.fetch_add(1, Ordering::SeqCst);
            match item {
                2 => Err(Error::Start(std::io::Error::other("the second"))),
                _ => Ok(()),
            }
        });
        assert!(failed.unwrap_err().to_string().contains("the second"));
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn gpus_of_two_models_are_refused_by_name() {
        of_one_model(&["NVIDIA H200", "NVIDIA H200"]).unwrap();
        let refused = of_one_model(&["NVIDIA H200", "NVIDIA H200", "NVIDIA L4"]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "--devices all: expected GPUs of one model, found NVIDIA H200 (cuda:0) and NVIDIA L4 (cuda:2)"
        );
    }
}
