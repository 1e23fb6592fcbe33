//! The least work of a pass.

use fourtap::msda::Traffic;

use super::Trial;
use super::coverage::PixelCoverage;
use crate::roof::{LANES, MinimumWork};

/// Of ten operations per channel and sample, those no way to compute it can save: four multiply-adds.
const LEAST_FLOP: f64 = 0.8;

/// Of a pass whose points touch so much.
pub fn least(trial: &Trial<'_>, touched: &PixelCoverage) -> MinimumWork {
    let value = trial.problem().value();
    let elements = value.shape().elements().unwrap_or(0);
    let value_bytes = (elements * value.dtype().size()) as f64;
    let backward = trial.grad_out().is_some();
    least_of(trial.traffic(), backward, value_bytes, touched)
}

/// Pixels that no sample reads need not come from memory, and neighbours outside need not be read. Backward's model
/// counts every corner twice, read and added to; sums need not go through memory each time.
pub(super) fn least_of(
    traffic: Traffic,
    backward: bool,
    value_bytes: f64,
    touched: &PixelCoverage,
) -> MinimumWork {
    let times = if backward { 0.5 } else { 1.0 };
    MinimumWork {
        moved: traffic.compulsory_bytes as f64 - (1.0 - touched.value) * value_bytes,
        gathered: times * touched.in_bounds * traffic.gathered_bytes as f64,
        flop: times * touched.in_bounds * LEAST_FLOP * traffic.flop as f64,
        computed_by: LANES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGA: u64 = 1_000_000_000;

    fn traffic() -> Traffic {
        Traffic {
            compulsory_bytes: 4 * GIGA,
            gathered_bytes: 100 * GIGA,
            flop: 50 * GIGA,
        }
    }

    fn touched(in_bounds: f64, value: f64) -> PixelCoverage {
        PixelCoverage {
            in_bounds,
            levels: vec![],
            value,
        }
    }

    #[test]
    fn backward_must_read_and_compute_no_more_than_forward() {
        let doubled = Traffic {
            gathered_bytes: 2 * traffic().gathered_bytes,
            flop: 2 * traffic().flop,
            ..traffic()
        };
        let backward = least_of(doubled, true, 0.0, &touched(0.5, 1.0));
        let forward = least_of(traffic(), false, 0.0, &touched(0.5, 1.0));
        assert_eq!(backward, forward);
        assert_eq!(backward.gathered, 50e9);
        assert_eq!(backward.flop, 20e9);
    }

    #[test]
    fn what_no_sample_reads_need_not_move() {
        let least = least_of(traffic(), false, 2e9, &touched(1.0, 0.25));
        assert_eq!(least.moved, 4e9 - 1.5e9);
    }
}
