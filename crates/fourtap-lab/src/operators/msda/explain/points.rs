//! The sampling points a benchmark of a case would have.

use fourtap::msda::Sizes;

use super::Case;
use crate::error::{Error, Result};
use crate::explain::Case as _;
use crate::machine;
use crate::operators::msda::coverage::PixelCoverage;
use crate::operators::msda::generate;

/// Seed of the points: the one `fourtap bench` has unless told otherwise.
const SEED: u64 = 0;

/// What they touch.
pub fn touched(case: &Case) -> Result<PixelCoverage> {
    let sizes = Sizes {
        images: 1,
        ..case.sizes
    };
    let samples = sizes.samples() as u64;
    let needed = 2 * size_of::<f32>() as u64 * samples + (sizes.heads * sizes.pixels) as u64;
    let available = machine::memory_available();
    if available.is_some_and(|available| needed > available) {
        return Err(Error::Memory {
            what: format!("the points of one image of {}", case.name()),
            needed,
            available,
        });
    }
    let reference = case.workload.reference;
    let locations = generate::locations(&sizes, &case.levels, reference, case.distribution, SEED)?;
    let points = locations.elements::<f32>().as_chunks::<2>().0;
    Ok(PixelCoverage::by(
        points.iter().copied(),
        &sizes,
        &case.levels,
    ))
}
