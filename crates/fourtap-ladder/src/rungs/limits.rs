//! Limits of 32-bit counters that several families share.

use crate::plan::Shape;

/// Channels in 16 bytes of f16.
pub const VECTOR: u32 = 8;

/// A launch has no more blocks.
const MOST_BLOCKS: u64 = (1 << 31) - 1;

/// Whether all levels are one pixel wide: then no pixel has one to its right.
pub fn narrow(shape: &Shape) -> u32 {
    u32::from(shape.levels.iter().all(|level| level.width == 1))
}

/// Units of 16 bytes of an image, of which the kernels count fewer than 2^32.
pub fn units_of_image(pixels: u64, heads: u32, lanes: u32) -> Result<u64, String> {
    let units = pixels
        .saturating_mul(u64::from(heads))
        .saturating_mul(u64::from(lanes));
    // Some more are counted past the end.
    if units >= (1 << 32) - (1 << 16) {
        return Err(format!(
            "{units} times 16 bytes in an image: the rung counts in 32 bits"
        ));
    }
    Ok(units)
}

/// A legal number of blocks.
pub fn blocks(count: u64) -> Result<u32, String> {
    if count > MOST_BLOCKS {
        return Err(too_many("blocks", count));
    }
    Ok(count as u32)
}

/// That there are more than can be counted.
pub fn too_many(what: &str, count: u64) -> String {
    format!("{count} {what}: a launch counts in 31 bits")
}
