//! What a pass needs, whatever computes it: operations, and bytes at each level of memory.

use serde::Serialize;

use super::Case;
use crate::cli::Direction;
use crate::operators::msda::coverage::PixelCoverage;

/// Multiply-adds that forward cannot do without, a channel and sample: one for each neighbour.
const LEAST_MULTIPLY_ADDS: u64 = 4;

/// Counts of one pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Amounts {
    /// Samples of the whole problem.
    pub samples: u64,
    /// Operations, counted as 10 per channel and sample, backward twice.
    pub flop: u64,
    /// Operations with the least arithmetic: 4 multiply-adds a channel and sample, backward 8.
    pub least_flop: u64,
    /// Bytes of neighbours that the samples ask for: what goes from L1 or shared memory to registers.
    pub gathered_bytes: u64,
    /// Bytes if every input was read and every output written once.
    pub compulsory_bytes: u64,
    /// The same without the pixels that no sample reads.
    pub touched_bytes: u64,
    /// Bytes that lie side by side for one neighbour.
    pub segment_bytes: u64,
}

impl Amounts {
    /// Of a case whose points touch so much.
    pub fn of(case: &Case, touched: &PixelCoverage) -> Self {
        let traffic = case.traffic();
        let untouched = (1.0 - touched.value) * case.value_bytes() as f64;
        let samples = case.sizes.samples() as u64;
        let passes = match case.direction {
            Direction::Forward => 1,
            Direction::Backward => 2,
        };
        Amounts {
            samples,
            flop: traffic.flop,
            least_flop: 2 * LEAST_MULTIPLY_ADDS * passes * samples * case.sizes.channels as u64,
            gathered_bytes: traffic.gathered_bytes,
            compulsory_bytes: traffic.compulsory_bytes,
            // Backward writes zeros to pixels nobody reads: only reading them is spared.
            touched_bytes: traffic.compulsory_bytes - untouched as u64,
            segment_bytes: case.segment_bytes(),
        }
    }
}

/// Bytes at one level of memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Level {
    /// "L1", "L2" or "DRAM".
    pub name: &'static str,
    /// What is counted.
    pub what: &'static str,
    /// Bytes at least.
    pub least_bytes: f64,
    /// Bytes at most.
    pub most_bytes: f64,
    /// Bytes counted by the hardware.
    pub counted_bytes: Option<f64>,
    /// Operations, at 10 per channel and sample, for each byte counted, or else at most: with the fewest bytes.
    pub intensity: f64,
}

/// The three levels; `counted` are L1's, L2's and DRAM's bytes, as far as hardware counters say.
pub fn levels(amounts: &Amounts, counted: [Option<f64>; 3]) -> [Level; 3] {
    let (gathered, touched) = (amounts.gathered_bytes as f64, amounts.touched_bytes as f64);
    // Locations, weights and outputs pass through every level once, neighbours as often as they miss.
    let most = gathered + touched;
    let bounds = [
        (
            "L1",
            "registers and L1 or shared memory: neighbours",
            gathered,
            gathered,
        ),
        ("L2", "L1 and L2", touched, most),
        ("DRAM", "L2 and DRAM, nothing cached before", touched, most),
    ];
    let mut counted = counted.into_iter();
    bounds.map(|(name, what, least_bytes, most_bytes)| {
        let counted_bytes = counted.next().flatten();
        let bytes = counted_bytes.unwrap_or(least_bytes);
        Level {
            name,
            what,
            least_bytes,
            most_bytes,
            counted_bytes,
            intensity: amounts.flop as f64 / bytes.max(1.0),
        }
    })
}
