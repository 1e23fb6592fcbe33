//! How fast the copy engine brings tiles of 2x2 pixels of 32 channels into shared memory, from random places.

use fourtap::cuda::driver::{Swizzle, TensorElement, TensorMapDesc};

use super::experiment::{Experiment, Input, Needs, Room, Work};
use super::pattern::{PIECE_BYTES, mixed, piece, scaled};
use crate::cuda::{Grid, Source};
use crate::record::Unit;

const THREADS: u32 = 256;
const LANES: u32 = 32;
/// Tiles per warp and round.
const TILES: u32 = 8;
/// Rounds whose tiles are in shared memory at a time.
const STAGES: u32 = 2;
const CHANNELS: u32 = 32;
const TIMED_ROUNDS: u32 = 64;

/// Pixels of a row of the image.
const WIDTH: u32 = 512;
/// The image takes this share of the L2 cache.
const SHARE_OF_L2: u64 = 4;

/// From an image that the L2 cache holds.
pub fn tiles(element: TensorElement) -> Experiment {
    let text = include_str!("../../../kernels/probe/tile.cu");
    let pixel_bytes = CHANNELS * element.bytes() as u32;
    // Tiles of every warp, and a barrier of each stage behind them.
    let of_warp = STAGES * (TILES * 4 * pixel_bytes + size_of::<u64>() as u32);
    let block = Grid {
        shared_bytes: THREADS / LANES * of_warp,
        ..Grid::of_threads(THREADS)
    };
    let bits = 8 * element.bytes();
    let what = format!("2x2 pixels of 32 f{bits} from L2, as boxes by a tensor map");
    let kernel = Source::new("probe_tile", text, &[("PIXEL", pixel_bytes)]).for_hopper();
    let work = move |room: Room| Image::of(room.l2_bytes / SHARE_OF_L2, element).work(room.blocks);
    Experiment::new(what, kernel, block, Unit::GigabytesASecond, work).on(Needs::Hopper)
}

/// An image of 32 channels.
#[derive(Clone, Copy, Debug)]
struct Image {
    /// Rows of pixels.
    height: u32,
    element: TensorElement,
    pixel_bytes: u32,
}

impl Image {
    /// As large as these bytes allow.
    fn of(bytes: u64, element: TensorElement) -> Self {
        let pixel_bytes = CHANNELS * element.bytes() as u32;
        let row = u64::from(WIDTH * pixel_bytes);
        Image {
            height: (bytes / row).max(2) as u32,
            element,
            pixel_bytes,
        }
    }

    fn work(self, blocks: u32) -> Work {
        let pixel = u64::from(self.pixel_bytes);
        let boxes = TensorMapDesc {
            element: self.element,
            address: 0,
            dimensions: vec![CHANNELS.into(), WIDTH.into(), self.height.into()],
            strides: vec![pixel, u64::from(WIDTH) * pixel],
            box_sides: vec![CHANNELS, 2, 2],
            element_strides: vec![1; 3],
            swizzle: Swizzle::None,
        };
        let tiles = u64::from(blocks * THREADS / LANES) * u64::from(TIMED_ROUNDS * TILES);
        Work {
            blocks,
            inputs: vec![
                Input::Boxes(self.bytes(), boxes),
                Input::Word(WIDTH),
                Input::Word(self.height),
                Input::Rounds,
                Input::Output,
            ],
            words: (blocks * THREADS) as usize,
            checked_rounds: 3,
            timed_rounds: TIMED_ROUNDS,
            expected: Box::new(move |thread, rounds| self.sum(thread as u32, rounds)),
            amount: tiles * 4 * pixel,
        }
    }

    fn bytes(self) -> u64 {
        u64::from(self.height) * u64::from(WIDTH * self.pixel_bytes)
    }

    fn pieces_of_tile(self) -> u32 {
        4 * self.pixel_bytes / PIECE_BYTES as u32
    }

    /// Where a piece of a tile of a warp is.
    fn offset(self, warp: u32, tile: u32, piece: u32) -> u64 {
        let random = mixed(warp.wrapping_mul(0x9e37_79b9).wrapping_add(tile));
        let x = scaled(random, WIDTH - 1);
        let y = scaled(random.wrapping_mul(0x9e37_79b1), self.height - 1);
        let of_row = self.pieces_of_tile() / 2;
        let pixel = u64::from(y + piece / of_row) * u64::from(WIDTH) + u64::from(x);
        pixel * u64::from(self.pixel_bytes) + u64::from(piece % of_row) * PIECE_BYTES
    }

    /// What a thread's sum is after so many rounds.
    fn sum(self, thread: u32, rounds: u32) -> u32 {
        let (warp, lane) = (thread / LANES, thread % LANES);
        let pieces = self.pieces_of_tile();
        let mut sum = 0u32;
        for round in 0..rounds {
            for load in 0..TILES * pieces / LANES {
                // Its neighbour's.
                let of_round = load * LANES + (lane ^ 1);
                let tile = round * TILES + of_round / pieces;
                sum = sum.wrapping_add(piece(self.offset(warp, tile, of_round % pieces)));
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_lie_inside_the_image() {
        for element in [TensorElement::F16, TensorElement::F32] {
            let image = Image::of(1 << 20, element);
            assert!(image.bytes() <= 1 << 20);
            let last = image.pieces_of_tile() - 1;
            let mut highest = 0;
            for tile in 0..100_000 {
                let offset = image.offset(3, tile, last) + PIECE_BYTES;
                highest = highest.max(offset);
                let row = u64::from(WIDTH * image.pixel_bytes);
                let first = image.offset(3, tile, 0);
                assert_eq!(first / row + 1, (offset - 1) / row, "a tile has two rows");
            }
            // The last tile there is was among them.
            assert!(
                (image.bytes() - 4096..=image.bytes()).contains(&highest),
                "{highest}"
            );
        }
    }
}
