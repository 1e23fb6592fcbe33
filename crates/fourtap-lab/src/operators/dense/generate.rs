//! Random tensors of dense attention, but for masks.

use fourtap::DType;
use fourtap::dense::Sizes;
use rand_distr::{Distribution as _, StandardNormal};

use crate::array::Array;
use crate::error::Result;
use crate::generate::{Purpose, filled};

const QUERY: Purpose = 6;
const KEY: Purpose = 7;
const VALUE: Purpose = 8;

/// `query`, `key` and `value`: standard normal, the same numbers in every type but for rounding.
pub fn inputs(sizes: &Sizes, dtype: DType, seed: u64) -> Result<[Array; 3]> {
    let normal = |tensor, shape: [usize; 4], purpose| {
        filled(tensor, &shape, dtype, seed, purpose, |rng| {
            StandardNormal.sample(rng)
        })
    };
    Ok([
        normal("query", sizes.query(), QUERY)?,
        normal("key", sizes.key(), KEY)?,
        normal("value", sizes.value(), VALUE)?,
    ])
}
