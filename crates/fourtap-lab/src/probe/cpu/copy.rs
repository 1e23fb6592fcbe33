//! How fast memory is copied.

use std::time::Duration;

use super::threads::Parts;
use super::{allocated, beyond_the_caches, timed};
use crate::error::{Error, Result};
use crate::record::ProbeRecord;
use crate::target::Device;

pub const NAME: &str = "copy";
pub const WHAT: &str =
    "copy memory beyond the last-level cache; bytes read and bytes written both count";

/// Bytes that a thread copies in one repetition: the next of its memory each time, so that what it reads was last
/// touched one whole turn ago.
const SLICE_BYTES: usize = 8 << 20;
const WORD_BYTES: usize = size_of::<u64>();

/// What the target holds where nothing was copied to; the source never does.
const UNTOUCHED: u64 = u64::MAX;

/// Copies memory beyond the last-level cache.
pub fn copy(device: &Device, budget: Duration) -> Result<ProbeRecord> {
    copy_of(beyond_the_caches(), device, budget)
}

/// Copies within so many bytes of source and target together.
fn copy_of(bytes: u64, device: &Device, budget: Duration) -> Result<ProbeRecord> {
    let threads = rayon::current_num_threads();
    let words = (bytes as usize / 2 / threads / WORD_BYTES).max(1);
    let slice = words.min(SLICE_BYTES / WORD_BYTES);
    let parts = Parts::new(|| Part::new(words / slice, slice))?;
    let timing = timed(budget, || parts.each(Part::copy_next))?;
    if let Some((expected, found)) = parts.find(Part::wrong) {
        return Err(Error::Probe {
            probe: NAME.to_string(),
            expected,
            found,
        });
    }
    let moved = 2 * parts.count() * slice * WORD_BYTES;
    let buffers = 2 * parts.count() * (words / slice) * slice * WORD_BYTES;
    Ok(
        ProbeRecord::ceiling(NAME, WHAT, device, moved as u64, timing)
            .verified("every byte of the copy")
            .with("buffer_bytes", buffers)
            .with("threads", parts.count()),
    )
}

/// What one thread copies.
struct Part {
    source: Vec<u64>,
    target: Vec<u64>,
    /// Words of a slice.
    slice: usize,
    /// Slices copied so far, in turn.
    copied: usize,
}

impl Part {
    fn new(slices: usize, slice: usize) -> Result<Self> {
        let mut source = allocated(NAME, 0, slices * slice)?;
        for (index, word) in source.iter_mut().enumerate() {
            *word = word_at(index);
        }
        Ok(Part {
            target: allocated(NAME, UNTOUCHED, slices * slice)?,
            source,
            slice,
            copied: 0,
        })
    }

    fn slices(&self) -> usize {
        self.source.len() / self.slice
    }

    fn copy_next(&mut self) {
        let begin = self.copied % self.slices() * self.slice;
        let place = begin..begin + self.slice;
        self.target[place.clone()].copy_from_slice(&self.source[place]);
        self.copied += 1;
    }

    /// The first word of the target that is not what it must be.
    fn wrong(&self) -> Option<(String, String)> {
        let copied = self.copied.min(self.slices()) * self.slice;
        let expected = |index| {
            if index < copied {
                word_at(index)
            } else {
                UNTOUCHED
            }
        };
        let mut words = self.target.iter().enumerate();
        let (index, word) = words.find(|&(index, &word)| word != expected(index))?;
        let expected = expected(index);
        Some((
            format!("{expected:#x} at word {index}"),
            format!("{word:#x}"),
        ))
    }
}

/// No two words alike, so that one in the wrong place shows.
fn word_at(index: usize) -> u64 {
    // Even, which `UNTOUCHED` is not.
    (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) << 1
}

#[cfg(test)]
mod tests {
    use super::super::tests::device;
    use super::*;

    #[test]
    fn both_directions_count() {
        let record = copy_of(40 << 20, &device(), Duration::ZERO).unwrap();
        let threads = rayon::current_num_threads() as u64;
        let slice = ((20 << 20) / threads / 8 * 8).min(8 << 20);
        assert_eq!(record.amount, Some(2 * threads * slice));
        assert!(record.is_measured());
    }

    #[test]
    fn a_word_that_was_not_copied_is_found() {
        let mut part = Part::new(3, 100).unwrap();
        part.copy_next();
        part.copy_next();
        assert_eq!(part.wrong(), None);
        part.target[150] = UNTOUCHED;
        let (expected, found) = part.wrong().unwrap();
        assert!(expected.ends_with("at word 150"), "{expected}");
        assert_eq!(found, "0xffffffffffffffff");
    }
}
