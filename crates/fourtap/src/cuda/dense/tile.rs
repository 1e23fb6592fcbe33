//! Tile sizes: the queries of a head that a block computes, and the keys it processes at a time.

/// Warps and threads of a block.
pub(super) const WARPS: u32 = 4;
pub(super) const THREADS: u32 = 32 * WARPS;

/// A block's part of the query-key matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Queries.
    pub rows: u32,
    /// Keys at a time.
    pub keys: u32,
    /// Warps, of four, that split these keys; the remaining factor splits the queries.
    pub columns: u32,
    /// Resident blocks per multiprocessor that the register count must allow.
    pub blocks: u32,
    /// Cost of a row on a busy multiprocessor, in percent of its cost in the largest tile.
    cost: u32,
}

const fn tile(rows: u32, keys: u32, columns: u32, blocks: u32, cost: u32) -> Tile {
    Tile {
        rows,
        keys,
        columns,
        blocks,
        cost,
    }
}

/// Tiles for at most that many channels, the largest first. Measured on an H200 (docs/cuda-dense.md).
const TILES: [(u32, &[Tile]); 5] = [
    (
        32,
        &[
            tile(128, 96, 1, 3, 100),
            tile(64, 128, 2, 3, 100),
            tile(32, 256, 2, 3, 100),
            tile(16, 256, 4, 3, 125),
        ],
    ),
    (
        64,
        &[
            tile(128, 128, 1, 2, 100),
            tile(64, 128, 2, 2, 100),
            tile(32, 256, 2, 2, 100),
            tile(16, 256, 4, 2, 125),
        ],
    ),
    (
        96,
        &[
            tile(128, 64, 1, 2, 100),
            tile(64, 128, 2, 2, 100),
            tile(32, 128, 2, 2, 100),
            tile(16, 256, 4, 2, 125),
        ],
    ),
    (
        128,
        &[
            tile(128, 80, 1, 2, 100),
            tile(64, 128, 2, 2, 100),
            tile(32, 128, 2, 2, 100),
            // With few queries, loading keys is the bottleneck: the more loads are in flight, the better.
            tile(16, 256, 4, 1, 125),
            tile(16, 128, 4, 3, 125),
        ],
    ),
    (
        256,
        &[
            tile(64, 64, 1, 2, 100),
            tile(32, 64, 2, 2, 120),
            tile(16, 64, 4, 2, 150),
        ],
    ),
];

/// Channels of a query, a key or a value, at most.
pub(super) const MOST_CHANNELS: usize = 256;

/// Loss of a multiprocessor with a single block, in percent: nothing else runs while its four warps wait.
const ALONE: u64 = 15;

impl Tile {
    /// The tiles for `channels`, at most [`MOST_CHANNELS`] of them; the largest first.
    pub(super) fn for_channels(channels: u32) -> &'static [Tile] {
        let found = TILES.iter().find(|(most, _)| channels <= *most);
        found.map_or(&[], |(_, tiles)| tiles)
    }

    /// The one of `tiles` with which `planes` of `rows` queries each should take least time.
    pub(super) fn choose(
        tiles: &[Tile],
        planes: u64,
        rows: u64,
        multiprocessors: u32,
    ) -> Option<Tile> {
        let multiprocessors = u64::from(multiprocessors.max(1));
        let blocks = |tile: &Tile| planes * rows.div_ceil(tile.rows.into());
        // With two rounds or more, how well the last is filled matters less than how often keys are read.
        if let Some(largest) = tiles.first()
            && blocks(largest) >= 2 * multiprocessors
        {
            return Some(*largest);
        }
        let time = |tile: &&Tile| {
            let rounds = blocks(tile).div_ceil(multiprocessors);
            let slower = if rounds == 1 { 100 + ALONE } else { 100 };
            // Of several equal ones the first, which is the largest, is taken.
            rounds * u64::from(tile.rows * tile.cost) * slower
        };
        tiles.iter().min_by_key(time).copied()
    }

    /// Shared memory per block, for heads of that many channels (multiples of 32).
    pub(super) fn shared_bytes(&self, head: u32, head_v: u32) -> u32 {
        let queries = self.rows * 2 * head.max(head_v);
        let tiles = self.keys * 2 * (head + head_v);
        // See kernels/dense/columns.cuh.
        let parts = match self.columns {
            1 => 0,
            columns => self.rows * (columns * 8 + (columns - 1) * head_v * 4),
        };
        queries + tiles.max(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(channels: u32, planes: u64, queries: u64) -> u32 {
        let tiles = Tile::for_channels(channels);
        Tile::choose(tiles, planes, queries, 132).unwrap().rows
    }

    #[test]
    fn large_problems_get_large_tiles_and_small_ones_small() {
        assert_eq!(rows(64, 64, 8192), 128);
        assert_eq!(rows(128, 32, 8192), 128);
        assert_eq!(rows(128, 16, 16_384), 128);
        assert_eq!(rows(64, 32, 1024), 128);
        assert_eq!(rows(64, 8, 2048), 64);
        assert_eq!(rows(64, 8, 1024), 32);
        assert_eq!(rows(64, 8, 512), 32);
        assert_eq!(rows(64, 8, 256), 16);
        assert_eq!(rows(256, 16, 8192), 64);
        assert_eq!(rows(256, 8, 1024), 64);
        assert_eq!(rows(128, 32, 1), 16);
    }

    #[test]
    fn there_is_a_tile_for_the_smallest_shared_memory() {
        // Compute capability 8.6, 8.9 and 12.0.
        const LEAST: u32 = 99 << 10;
        for (channels, tiles) in TILES {
            for tile in tiles {
                let fits = |other: &&Tile| {
                    other.rows == tile.rows && other.shared_bytes(channels, channels) <= LEAST
                };
                assert!(tiles.iter().any(|it| fits(&it)), "{tile:?} of {channels}");
            }
        }
    }
}
