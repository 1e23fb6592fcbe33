//! Copying memory.

use super::super::wrong;
use super::{Work, allocated};
use crate::error::Result;
use crate::record::Unit;

/// Bytes that a round copies: the next of the memory each time, so that what is read was last touched one whole turn
/// ago.
const SLICE_BYTES: usize = 8 << 20;
const WORD_BYTES: usize = size_of::<u64>();

/// What the target holds where nothing was copied to; the source never does.
const UNTOUCHED: u64 = u64::MAX;

/// What one thread copies.
pub struct Copying {
    source: Vec<u64>,
    target: Vec<u64>,
    /// Words of a slice.
    slice: usize,
    /// Slices copied so far, in turn.
    copied: usize,
}

impl Copying {
    /// Within so many bytes of source and target together.
    pub fn new(bytes: u64) -> Result<Self> {
        let words = (bytes as usize / 2 / WORD_BYTES).max(1);
        let slice = words.min(SLICE_BYTES / WORD_BYTES);
        let words = words / slice * slice;
        let mut source = allocated(0, words)?;
        for (index, word) in source.iter_mut().enumerate() {
            *word = word_at(index);
        }
        Ok(Copying {
            target: allocated(UNTOUCHED, words)?,
            source,
            slice,
            copied: 0,
        })
    }
}

impl Work for Copying {
    const UNIT: Unit = Unit::GigabytesASecond;
    const COMPARED: &str = "every byte of the copy";

    fn run(&mut self, rounds: u64) {
        for _ in 0..rounds {
            let begin = self.copied * self.slice % self.source.len();
            let place = begin..begin + self.slice;
            self.target[place.clone()].copy_from_slice(&self.source[place]);
            self.copied += 1;
        }
    }

    fn verify(&mut self) -> Result<()> {
        let copied = self.copied * self.slice;
        for (index, &found) in self.target.iter().enumerate() {
            let expected = if index < copied {
                word_at(index)
            } else {
                UNTOUCHED
            };
            if found != expected {
                let place = format!("{expected:#x} at word {index}");
                return Err(wrong(place, format!("{found:#x}")));
            }
        }
        Ok(())
    }

    fn amount(&self) -> u64 {
        (2 * self.slice * WORD_BYTES) as u64
    }
}

/// No two words alike, so that one in the wrong place shows.
fn word_at(index: usize) -> u64 {
    // Even, which `UNTOUCHED` is not.
    (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) << 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_was_not_copied_is_found() {
        // Three slices of source and target each.
        let mut copying = Copying::new(6 * SLICE_BYTES as u64).unwrap();
        copying.run(2);
        copying.verify().unwrap();
        copying.target[150] = UNTOUCHED;
        let error = copying.verify().unwrap_err().to_string();
        assert!(
            error.contains("at word 150, found 0xffffffffffffffff"),
            "{error}"
        );
    }
}
