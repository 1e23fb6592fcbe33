//! Multiplying and adding in registers.

use std::hint::black_box;

use fourtap::cpu::Simd;

use super::super::wrong;
use super::Work;
use super::vector::{self, Loop, Vector};
use crate::error::Result;
use crate::record::Unit;

/// Vectors worked on side by side: two per cycle, and each takes four or five.
const VECTORS: usize = 12;

/// Times a vector is worked on in a round.
const STEPS: u64 = 256;

/// Sums of ones are exact in f32 up to here.
const MOST_STEPS: u64 = 1 << 24;

/// What one thread does: counts, in every lane of every vector, by multiplying with one and adding one.
pub struct Counting {
    simd: Simd,
    /// Numbers in all vectors.
    numbers: usize,
    /// The first count that did not end where it should: expected and found.
    miscounted: Option<(u64, f32)>,
}

impl Counting {
    /// With these vectors.
    pub fn new(simd: Simd) -> Self {
        Counting {
            simd,
            numbers: vector::run(simd, Steps::counting(0)).len(),
            miscounted: None,
        }
    }

    fn check(&mut self, steps: u64, counted: &[f32]) {
        let other = counted.iter().find(|&&number| number != steps as f32);
        self.miscounted = self.miscounted.or(other.map(|&found| (steps, found)));
    }
}

impl Work for Counting {
    const UNIT: Unit = Unit::GigaflopASecond;
    const COMPARED: &str = "the counts of all steps timed";

    fn run(&mut self, rounds: u64) {
        let mut left = rounds * STEPS;
        while left > 0 {
            let steps = left.min(MOST_STEPS);
            let counted = vector::run(self.simd, Steps::counting(steps));
            self.check(steps, &counted);
            left -= steps;
        }
    }

    fn verify(&mut self) -> Result<()> {
        match self.miscounted {
            Some((steps, found)) => Err(wrong(format!("a count of {steps}"), found)),
            None => Ok(()),
        }
    }

    fn amount(&self) -> u64 {
        2 * STEPS * self.numbers as u64
    }
}

/// Multiplies every number by `factor` and adds `term`, so many times.
struct Steps {
    start: fn(usize) -> f32,
    factor: f32,
    term: f32,
    steps: u64,
}

impl Steps {
    fn counting(steps: u64) -> Self {
        Steps {
            start: |_| 0.0,
            factor: 1.0,
            term: 1.0,
            steps,
        }
    }
}

impl Loop for Steps {
    type Output = Vec<f32>;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> Vec<f32> {
        let mut numbers: Vec<f32> = (0..VECTORS * V::LANES).map(self.start).collect();
        // SAFETY: the caller vouches for the instructions. Loads and stores are within the numbers of a vector.
        unsafe {
            let mut vectors = [V::splat(0.0); VECTORS];
            for index in 0..VECTORS {
                vectors[index] = V::load(numbers[index * V::LANES..].as_ptr());
            }
            // The compiler must not know that they are ones.
            let (factor, term) = (black_box(self.factor), black_box(self.term));
            let (factor, term) = (V::splat(factor), V::splat(term));
            for _ in 0..self.steps {
                for index in 0..VECTORS {
                    vectors[index] = vectors[index].multiply_add(factor, term);
                }
            }
            for index in 0..VECTORS {
                vectors[index].store(numbers[index * V::LANES..].as_mut_ptr());
            }
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_computes_what_one_number_at_a_time_gives() {
        let start = |index: usize| index as f32 / 7.0 - 11.0;
        let (factor, term, steps) = (0.987_654_f32, 0.123_456, 100);
        for simd in Simd::available() {
            let work = Steps {
                start,
                factor,
                term,
                steps,
            };
            for (index, found) in vector::run(simd, work).into_iter().enumerate() {
                let step = |last: f32, _| match simd {
                    Simd::Portable => last * factor + term,
                    _ => last.mul_add(factor, term),
                };
                let expected = (0..steps).fold(start(index), step);
                assert_eq!(found.to_bits(), expected.to_bits(), "{simd}: {index}");
            }
        }
    }

    #[test]
    fn a_lane_that_did_not_count_is_found() {
        for simd in Simd::available() {
            let mut counting = Counting::new(simd);
            counting.run(2);
            counting.verify().unwrap();
            counting.check(5, &[5.0, 4.0]);
            let error = counting.verify().unwrap_err().to_string();
            assert_eq!(error, "expected a count of 5, found 4");
        }
    }
}
