//! Random numbers: the same on every machine and for any number of threads, because each chunk of a tensor has a stream
//! of its own, and the functions behind the normal distribution are compiled in.

use fourtap::{DType, Element, bf16, f16};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rayon::prelude::*;

use crate::array::Array;
use crate::error::Result;

/// Elements of a tensor that share a stream.
pub const CHUNK: usize = 1 << 15;

/// What a stream is for, by a number of its own, so that no two tensors hold the same numbers. Deformable attention has 1
/// to 4 and 9, dense attention 6 to 8 and 10; another operator's tensors begin at 11.
pub type Purpose = u64;

/// What is verified.
const SAMPLE: Purpose = 5;

/// The stream of a chunk of a tensor.
pub fn stream(seed: u64, purpose: Purpose, chunk: usize) -> Xoshiro256PlusPlus {
    let base: u64 = Xoshiro256PlusPlus::seed_from_u64(seed).random();
    Xoshiro256PlusPlus::seed_from_u64(base ^ purpose << 56 ^ chunk as u64)
}

/// A stream to choose with what is verified.
pub fn sample_stream(seed: u64) -> Xoshiro256PlusPlus {
    stream(seed, SAMPLE, 0)
}

/// A number below `size`, the same on every machine.
pub fn below(rng: &mut Xoshiro256PlusPlus, size: usize) -> usize {
    rng.random_range(0..size as u64) as usize
}

/// A tensor of what `number` draws.
pub fn filled(
    tensor: &str,
    shape: &[usize],
    dtype: DType,
    seed: u64,
    purpose: Purpose,
    number: impl Fn(&mut Xoshiro256PlusPlus) -> f64 + Sync,
) -> Result<Array> {
    fn fill<T: Element>(
        array: &mut Array,
        (seed, purpose): (u64, Purpose),
        number: impl Fn(&mut Xoshiro256PlusPlus) -> f64 + Sync,
    ) {
        let chunks = array.elements_mut::<T>().par_chunks_mut(CHUNK);
        chunks.enumerate().for_each(|(chunk, elements)| {
            let mut rng = stream(seed, purpose, chunk);
            elements.fill_with(|| T::from_f64(number(&mut rng)));
        });
    }
    let mut array = Array::poisoned(tensor, dtype, shape)?;
    let of = (seed, purpose);
    match dtype {
        DType::F16 => fill::<f16>(&mut array, of, number),
        DType::BF16 => fill::<bf16>(&mut array, of, number),
        DType::F32 => fill::<f32>(&mut array, of, number),
        DType::F64 => fill::<f64>(&mut array, of, number),
    }
    Ok(array)
}
