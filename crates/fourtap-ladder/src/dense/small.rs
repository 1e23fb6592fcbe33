//! Small problems that every dense rung must get right, to the last element.

use fourtap::DType;
use fourtap_lab::extension::Result;

use super::{Numbers, Workload};

/// A small problem.
#[derive(Clone, Copy, Debug)]
pub struct Small {
    workload: Workload,
    causal: bool,
}

const fn small(
    [batch, heads, queries, keys, channels]: [usize; 5],
    dtype: DType,
    causal: bool,
) -> Small {
    Small {
        workload: Workload {
            name: "small",
            batch,
            heads,
            queries,
            keys,
            channels,
            dtype,
        },
        causal,
    }
}

/// Every number of channels, both types, with and without a mask; one query, one key; lengths that fill no tile, one tile,
/// and a few tiles with a rest; more queries than keys and fewer; more tiles of queries than a device runs at once, for blocks
/// that stay.
pub const SMALL: [Small; 12] = [
    small([2, 3, 130, 203, 64], DType::F16, false),
    small([1, 2, 130, 203, 64], DType::F16, true),
    small([1, 1, 1, 1, 64], DType::F16, false),
    small([1, 2, 257, 31, 32], DType::F16, true),
    small([2, 2, 64, 300, 32], DType::BF16, false),
    small([1, 2, 33, 64, 128], DType::F16, false),
    small([1, 1, 300, 300, 128], DType::BF16, true),
    small([3, 1, 1, 515, 64], DType::BF16, false),
    small([1, 1, 515, 1, 64], DType::F16, true),
    small([1, 4, 128, 128, 64], DType::F16, false),
    small([7, 40, 20, 150, 64], DType::F16, false),
    small([2, 35, 130, 130, 128], DType::F16, true),
];

impl Small {
    /// Sizes, as in an error message.
    pub fn in_words(&self) -> String {
        let Workload {
            batch,
            heads,
            queries,
            keys,
            channels,
            dtype,
            ..
        } = self.workload;
        let causal = if self.causal { ", causal" } else { "" };
        format!("B {batch} H {heads} Sq {queries} Sk {keys} D {channels} {dtype}{causal}")
    }

    /// Fresh numbers for it. Logits are larger than usual, so that maxima grow from tile to tile and weights differ.
    pub fn numbers(&self, seed: u64) -> Result<Numbers> {
        Numbers::random(&self.workload, self.causal, 4.0, seed)
    }
}
