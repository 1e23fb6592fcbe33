//! How fast tiles of 2x2 pixels of 32 channels come into shared memory, from random places.

use fourtap::cuda::Cuda;
use fourtap::cuda::driver::{Buffer, Swizzle, TensorElement, TensorMap, TensorMapDesc};

use super::super::Probe;
use super::copy::large_bytes;
use super::device::{ProbeDevice, Subject};
use super::pattern::{PIECE_BYTES, Pattern, mixed, scaled};
use super::sums::Sums;
use super::tma;
use crate::cuda::{Argument, Grid, Source};
use crate::error::Result;
use crate::record::{Claim, ProbeRecord, Unit};

const THREADS: u32 = 256;
const LANES: u32 = 32;
/// Tiles per warp and round.
const TILES: u32 = 8;
const CHANNELS: u32 = 32;
const CHECKED_ROUNDS: u32 = 3;
const TIMED_ROUNDS: u32 = 64;
const PATTERN: Pattern = Pattern { seed: 0x0600_0000 };

/// Pixels of a row of the image.
const WIDTH: u32 = 512;
/// An image in the L2 cache takes this share of it.
const SHARE_OF_L2: u64 = 4;

/// How tiles are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Plain,
    CpAsync,
    Tma,
}

/// What the channels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    F16,
    F32,
}

/// Where the image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImageLocation {
    L2,
    Dram,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 3] = [Method::Plain, Method::CpAsync, Method::Tma];

    fn name(self) -> &'static str {
        match self {
            Method::Plain => "plain",
            Method::CpAsync => "cpasync",
            Method::Tma => "tma",
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Method::Plain => "by loads and stores",
            Method::CpAsync => "by cp.async",
            Method::Tma => "as boxes by a tensor map",
        }
    }

    /// Rounds whose tiles are in shared memory at a time.
    fn stages(self) -> u32 {
        if self == Method::Plain { 1 } else { 2 }
    }
}

impl Channel {
    /// All of them.
    pub const ALL: [Channel; 2] = [Channel::F16, Channel::F32];

    fn element(self) -> TensorElement {
        match self {
            Channel::F16 => TensorElement::F16,
            Channel::F32 => TensorElement::F32,
        }
    }

    fn pixel_bytes(self) -> u32 {
        CHANNELS * self.element().bytes() as u32
    }
}

/// Each method, from each home; with records of both types of channels.
pub fn probes() -> Vec<Probe> {
    let mut probes = Vec::new();
    for method in Method::ALL {
        for home in [ImageLocation::L2, ImageLocation::Dram] {
            let (name, place) = match home {
                ImageLocation::L2 => ("l2", "L2"),
                ImageLocation::Dram => ("dram", "DRAM"),
            };
            let what = format!("2x2x32 tiles from {place}, {}", method.in_words());
            let subject = Subject::new(format!("tile-{}-{name}", method.name()), "tile-copy", what);
            probes.push(subject.probe_of_several(move |gpu, subject| {
                let one = |channel| {
                    let tiles = TileCopy {
                        method,
                        channel,
                        home,
                    };
                    tiles.measure(gpu, subject)
                };
                Channel::ALL.into_iter().map(one).collect()
            }));
        }
    }
    probes
}

/// Its kernel.
pub fn source(method: Method, channel: Channel) -> Source {
    let text = include_str!("../../../kernels/probe/tile.cu");
    let source = Source::new(
        "probe_tile",
        text,
        &[("METHOD", method as u32), ("PIXEL", channel.pixel_bytes())],
    );
    match method {
        Method::Tma => source.for_hopper(),
        _ => source,
    }
}

/// One of the copies.
#[derive(Clone, Copy, Debug)]
struct TileCopy {
    method: Method,
    channel: Channel,
    home: ImageLocation,
}

/// Height and width in pixels, of one kind of channels.
#[derive(Clone, Copy, Debug)]
struct Image {
    height: u32,
    channel: Channel,
}

impl Image {
    /// As large as these bytes allow.
    fn of(bytes: u64, channel: Channel) -> Self {
        let row = u64::from(WIDTH * channel.pixel_bytes());
        let height = (bytes / row).max(2) as u32;
        Image { height, channel }
    }

    fn bytes(self) -> u64 {
        u64::from(self.height) * u64::from(WIDTH * self.channel.pixel_bytes())
    }

    fn pieces_of_tile(self) -> u32 {
        4 * self.channel.pixel_bytes() / PIECE_BYTES as u32
    }

    /// Where a piece of a tile of a warp is.
    fn offset(self, warp: u32, tile: u32, piece: u32) -> u64 {
        let random = mixed(warp.wrapping_mul(0x9e37_79b9).wrapping_add(tile));
        let x = scaled(random, WIDTH - 1);
        let y = scaled(random.wrapping_mul(0x9e37_79b1), self.height - 1);
        let of_row = self.pieces_of_tile() / 2;
        let pixel = u64::from(y + piece / of_row) * u64::from(WIDTH) + u64::from(x);
        pixel * u64::from(self.channel.pixel_bytes()) + u64::from(piece % of_row) * PIECE_BYTES
    }

    /// What a thread's sum is after so many rounds.
    fn sum(self, thread: u32, rounds: u32) -> u32 {
        let (warp, lane) = (thread / LANES, thread % LANES);
        let pieces = self.pieces_of_tile();
        let mut sum = 0u32;
        for round in 0..rounds {
            for load in 0..TILES * pieces / LANES {
                // Its neighbour's.
                let piece = load * LANES + (lane ^ 1);
                let tile = round * TILES + piece / pieces;
                sum = sum.wrapping_add(PATTERN.piece(self.offset(warp, tile, piece % pieces)));
            }
        }
        sum
    }

    fn map(self, gpu: &ProbeDevice<'_>, data: &Buffer) -> Result<TensorMap> {
        let pixel = u64::from(self.channel.pixel_bytes());
        let tiled = TensorMapDesc {
            element: self.channel.element(),
            address: data.as_ptr(),
            dimensions: vec![CHANNELS.into(), WIDTH.into(), self.height.into()],
            strides: vec![pixel, u64::from(WIDTH) * pixel],
            box_sides: vec![CHANNELS, 2, 2],
            element_strides: vec![1; 3],
            swizzle: Swizzle::None,
        };
        Ok(TensorMap::encode(gpu.cuda().context(), &tiled)?)
    }
}

impl TileCopy {
    fn measure(self, gpu: &ProbeDevice<'_>, of_both: &Subject) -> Result<ProbeRecord> {
        let subject = &match self.channel {
            Channel::F16 => of_both.clone(),
            Channel::F32 => Subject {
                name: format!("{}-f32", of_both.name),
                ..of_both.clone()
            },
        };
        if let Some(reason) = tma::missing(gpu).filter(|_| self.method == Method::Tma) {
            return Ok(subject.unavailable(gpu, &reason));
        }
        let bytes = match self.home {
            ImageLocation::L2 => u64::from(gpu.facts().l2_bytes) / SHARE_OF_L2,
            ImageLocation::Dram => large_bytes(gpu)?,
        };
        let image = Image::of(bytes, self.channel);
        let data = PATTERN.buffer(gpu.stopwatch, image.bytes())?;
        let map = match self.method {
            Method::Tma => Some(image.map(gpu, &data)?),
            _ => None,
        };

        let kernel = source(self.method, self.channel).load(gpu.cuda())?;
        let tile_bytes = 4 * self.channel.pixel_bytes();
        // Tiles of every warp, and a barrier of each stage behind them.
        let of_warp = self.method.stages() * (TILES * tile_bytes + size_of::<u64>() as u32);
        let grid = Grid {
            threads: THREADS,
            shared_bytes: THREADS / LANES * of_warp,
            ..Grid::default()
        };
        let grid = kernel.filling(gpu.cuda(), grid)?;
        let sums = Sums {
            subject,
            threads: grid.blocks * THREADS,
            checked_rounds: CHECKED_ROUNDS,
            timed_rounds: TIMED_ROUNDS,
        };
        let queue = |cuda: &Cuda, rounds: u32, sums: &Buffer| {
            let arguments = [
                match &map {
                    Some(map) => Argument::Map(map),
                    None => Argument::Address(data.as_ptr()),
                },
                Argument::Word(WIDTH),
                Argument::Word(image.height),
                Argument::Word(rounds),
                Argument::Address(sums.as_ptr()),
            ];
            // SAFETY: the kernel takes an address or, of this method, a tensor map of it, three numbers and an address.
            // Tiles lie inside the image, and a number per thread is written; both buffers live until the work has been
            // waited for.
            unsafe { kernel.queue(cuda, grid, &arguments) }
        };
        let timed = sums.timed(gpu, queue, |thread, rounds| image.sum(thread, rounds))?;
        let tiles = u64::from(grid.blocks * THREADS / LANES) * u64::from(TIMED_ROUNDS * TILES);
        let moved = tiles * u64::from(tile_bytes);
        let compared = "every thread's sum";
        let mut record = subject.measured(gpu, Unit::GigabytesASecond, moved, timed, compared);
        record.claim = self.claim();
        Ok(record
            .with("buffer_bytes", image.bytes())
            .with("tile_bytes", tile_bytes))
    }

    /// What others published.
    fn claim(self) -> Option<Claim> {
        let claimed = self.method == Method::Plain
            && self.channel == Channel::F32
            && self.home == ImageLocation::L2;
        claimed.then(|| Claim {
            rate: 311.0,
            words: "published by others for another GPU".to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_lie_inside_the_image() {
        for channel in Channel::ALL {
            let image = Image::of(1 << 20, channel);
            assert!(image.bytes() <= 1 << 20);
            let last = image.pieces_of_tile() - 1;
            let (mut highest, mut rightmost) = (0, 0);
            for tile in 0..100_000 {
                let offset = image.offset(3, tile, last) + PIECE_BYTES;
                assert!(offset <= image.bytes());
                highest = highest.max(offset);
                let row = u64::from(WIDTH * channel.pixel_bytes());
                let first = image.offset(3, tile, 0);
                assert_eq!(first / row + 1, (offset - 1) / row, "a tile has two rows");
                rightmost = rightmost.max(first % row);
            }
            // The last tile there is was among them.
            assert!(highest > image.bytes() - 4096, "{highest}");
            let pixel = u64::from(channel.pixel_bytes());
            assert_eq!(rightmost, u64::from(WIDTH - 2) * pixel);
        }
    }

    #[test]
    fn the_sums_of_a_warp_cover_its_tiles() {
        for channel in Channel::ALL {
            let image = Image::of(1 << 20, channel);
            let sum =
                (LANES..2 * LANES).fold(0u32, |sum, thread| sum.wrapping_add(image.sum(thread, 2)));
            let mut expected = 0u32;
            for tile in 0..2 * TILES {
                for piece in 0..image.pieces_of_tile() {
                    expected = expected.wrapping_add(PATTERN.piece(image.offset(1, tile, piece)));
                }
            }
            assert_eq!(sum, expected, "{channel:?}");
        }
    }
}
