//! How fast this processor multiplies and adds.

use std::hint::black_box;
use std::time::Duration;

use fourtap::cpu::Simd;

use super::threads::Parts;
use super::vector::{self, Loop, Vector};
use super::{rounds_of, timed};
use crate::error::{Error, Result};
use crate::record::{Outcome, ProbeRecord, Unit};
use crate::target::Device;

pub const NAME: &str = "fma-f32";
pub const WHAT: &str = "multiply and add f32 in registers; one of each is two operations";

/// Vectors worked on side by side: two per cycle, and each takes four or five.
const VECTORS: usize = 12;

/// Vectors of the widest path have so many f32.
const MOST_LANES: usize = 16;

/// Times a vector is worked on in a round.
const STEPS: u32 = 256;

/// Steps of the case that is compared with one number at a time.
const CHECKED_STEPS: u32 = 100;

/// Sums of ones are exact in f32 up to here.
const MOST_STEPS: u32 = 1 << 24;

/// Multiplies and adds in registers.
pub fn fma_f32(device: &Device, budget: Duration) -> Result<ProbeRecord> {
    let simd = Simd::best();
    check_each_number(simd)?;
    let parts = Parts::new(|| Ok(Part::default()))?;
    let rounds = rounds_of(|rounds| parts.each(|part| part.count(simd, rounds)));
    let timing = timed(budget, || parts.each(|part| part.count(simd, rounds)))?;
    if let Some((expected, found)) = parts.find(|part| part.wrong.clone()) {
        return Err(Error::Probe {
            probe: NAME.to_string(),
            expected,
            found,
        });
    }
    let numbers = (VECTORS * lanes(simd) * parts.count()) as u64;
    let operations = 2 * rounds * u64::from(STEPS) * numbers;
    let record = ProbeRecord::new(NAME, "ceiling", WHAT, device, Outcome::Measured);
    Ok(record
        .measured(Unit::GigaflopASecond, operations, timing)
        .verified("every number of a small case, and the counts of all steps timed")
        .with("threads", parts.count())
        .with("simd", simd.name()))
}

fn lanes(simd: Simd) -> usize {
    vector::run(simd, Lanes)
}

/// How many f32 a vector has.
struct Lanes;

impl Loop for Lanes {
    type Output = usize;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> usize {
        V::LANES
    }
}

/// One number per lane; narrower vectors leave the last ones alone.
type Numbers = [[f32; MOST_LANES]; VECTORS];

/// What one thread does: counts, in every lane of every vector, by multiplying with one and adding one.
#[derive(Default)]
struct Part {
    /// The first count that did not end where it should: expected and found.
    wrong: Option<(String, String)>,
}

impl Part {
    fn count(&mut self, simd: Simd, rounds: u64) {
        let mut left = rounds * u64::from(STEPS);
        while left > 0 {
            let steps = left.min(u64::from(MOST_STEPS)) as u32;
            let work = Steps {
                start: Numbers::default(),
                factor: 1.0,
                term: 1.0,
                steps,
            };
            self.check(simd, steps, &vector::run(simd, work));
            left -= u64::from(steps);
        }
    }

    fn check(&mut self, simd: Simd, steps: u32, counted: &Numbers) {
        let used = counted.iter().flat_map(|vector| &vector[..lanes(simd)]);
        for &number in used {
            if number != steps as f32 && self.wrong.is_none() {
                self.wrong = Some((format!("a count of {steps}"), number.to_string()));
            }
        }
    }
}

/// Holds every number of a small case, all of them different, to the same computed one at a time.
fn check_each_number(simd: Simd) -> Result<()> {
    let mut start = Numbers::default();
    for (index, number) in start.as_flattened_mut().iter_mut().enumerate() {
        *number = index as f32 / 7.0 - 11.0;
    }
    let (factor, term) = (0.987_654, 0.123_456);
    let work = Steps {
        start,
        factor,
        term,
        steps: CHECKED_STEPS,
    };
    let found = vector::run(simd, work);
    for vector in 0..VECTORS {
        for lane in 0..lanes(simd) {
            let mut expected = start[vector][lane];
            for _ in 0..CHECKED_STEPS {
                expected = match simd {
                    Simd::Portable => expected * factor + term,
                    _ => expected.mul_add(factor, term),
                };
            }
            let found = found[vector][lane];
            if found.to_bits() != expected.to_bits() {
                return Err(Error::Probe {
                    probe: NAME.to_string(),
                    expected: format!("{expected:e} in lane {lane} of vector {vector}"),
                    found: format!("{found:e}"),
                });
            }
        }
    }
    Ok(())
}

/// Multiplies every number by `factor` and adds `term`, so many times.
struct Steps {
    start: Numbers,
    factor: f32,
    term: f32,
    steps: u32,
}

impl Loop for Steps {
    type Output = Numbers;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> Numbers {
        let mut numbers = self.start;
        // SAFETY: the caller vouches for the instructions. Loads and stores are within the numbers of a vector.
        unsafe {
            let mut vectors = [V::splat(0.0); VECTORS];
            for index in 0..VECTORS {
                vectors[index] = V::load(numbers[index].as_ptr());
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
                vectors[index].store(numbers[index].as_mut_ptr());
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
        for simd in Simd::available() {
            check_each_number(simd).unwrap();
            let mut part = Part::default();
            part.count(simd, 2);
            assert_eq!(part.wrong, None, "{simd}");
        }
    }

    #[test]
    fn a_lane_that_did_not_count_is_found() {
        let mut part = Part::default();
        let mut counted = [[5.0; MOST_LANES]; VECTORS];
        part.check(Simd::Portable, 5, &counted);
        assert_eq!(part.wrong, None);
        counted[11][3] = 4.0;
        part.check(Simd::Portable, 5, &counted);
        let expected = ("a count of 5".to_string(), "4".to_string());
        assert_eq!(part.wrong, Some(expected));
    }
}
