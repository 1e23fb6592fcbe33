//! Tile sizes: the queries of a head that a block computes, and the keys it processes at a time.

use super::specialised::AttnKind;

/// A block's part of the query-key matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Queries.
    pub rows: u32,
    /// Keys at a time.
    pub keys: u32,
    /// Warps that split these keys; the remaining factor of `warps` splits the queries.
    pub columns: u32,
    /// Resident blocks per multiprocessor that the register count must allow.
    pub blocks: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Tiles of keys and values in shared memory: 2 if the next arrives while one is used.
    pub stages: u32,
    /// Cost of an element of the query-key matrix on a busy multiprocessor, in percent of its cost in the first tile.
    cost: u32,
}

const fn tile(rows: u32, keys: u32, columns: u32, blocks: u32, cost: u32) -> Tile {
    Tile {
        rows,
        keys,
        columns,
        blocks,
        warps: 4,
        stages: 1,
        cost,
    }
}

impl Tile {
    /// With the next tile of keys and values on its way.
    const fn ahead(self) -> Tile {
        Tile { stages: 2, ..self }
    }

    const fn warps(self, warps: u32) -> Tile {
        Tile { warps, ..self }
    }
}

/// A table: tiles for at most that many channels. The first is for large problems, unless others waste less of their last
/// tiles; those whose warps split the keys are for problems too small to fill a device.
type Tiles = [(u32, &'static [Tile])];

/// Measured on an H200 (docs/cuda-dense.md).
const TILES: &Tiles = &[
    (
        32,
        &[
            tile(64, 64, 1, 6, 100).ahead(),
            // For windows of a few dozen queries and keys.
            tile(48, 48, 1, 8, 120).ahead().warps(3),
            tile(64, 128, 2, 3, 100),
            tile(32, 256, 2, 3, 100),
            tile(16, 256, 4, 3, 125),
        ],
    ),
    (
        64,
        &[
            tile(128, 128, 1, 2, 100).ahead(),
            tile(64, 64, 1, 4, 115).ahead(),
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
            // With few queries, loading keys is the bottleneck: the more loads are in flight, the better. The second is for
            // devices with little shared memory.
            tile(16, 256, 4, 1, 125),
            tile(16, 128, 4, 3, 145),
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

/// The same where a tensor masks, whose kernels need more registers.
const MASKED: &Tiles = &[
    (
        32,
        &[
            tile(64, 128, 1, 4, 100),
            tile(64, 64, 1, 5, 103).ahead(),
            tile(48, 48, 1, 8, 120).ahead().warps(3),
            tile(64, 128, 2, 3, 103),
            tile(32, 128, 2, 3, 100),
            tile(16, 256, 4, 3, 125),
        ],
    ),
    (
        64,
        &[
            tile(128, 128, 1, 2, 100),
            tile(64, 64, 1, 4, 115).ahead(),
            tile(64, 128, 2, 2, 100),
            tile(32, 128, 2, 2, 100),
            tile(16, 256, 4, 2, 125),
        ],
    ),
    (
        128,
        &[
            tile(128, 64, 1, 2, 100),
            tile(64, 64, 2, 2, 100),
            tile(32, 128, 2, 2, 100),
            tile(16, 128, 4, 3, 125),
        ],
    ),
    (
        256,
        &[
            tile(64, 32, 1, 2, 100),
            tile(32, 64, 2, 2, 120),
            tile(16, 64, 4, 2, 150),
        ],
    ),
];

/// Those of f32, whose numbers take twice the space.
const F32: &Tiles = &[
    (
        32,
        &[
            tile(64, 64, 1, 3, 100).ahead(),
            tile(64, 48, 1, 4, 110).ahead(),
            tile(32, 64, 1, 6, 110).ahead().warps(2),
        ],
    ),
    (
        64,
        &[
            tile(128, 32, 1, 1, 100).ahead(),
            tile(64, 64, 1, 2, 108).ahead(),
            tile(32, 64, 1, 4, 115).ahead().warps(2),
        ],
    ),
    (
        128,
        &[
            tile(64, 32, 1, 2, 100).ahead(),
            tile(32, 32, 1, 3, 115).ahead().warps(2),
        ],
    ),
    (
        256,
        &[tile(64, 16, 1, 1, 100), tile(32, 16, 1, 2, 115).warps(2)],
    ),
];

/// Channels of a query, a key or a value, at most.
pub(super) const MOST_CHANNELS: usize = 256;

/// Queries of a head so few that what matters is how fast keys are read, which is what tiles of so many are for.
const FEW: u32 = 32;

/// Loss of a multiprocessor with a single block, in percent: nothing else runs while its warps wait.
const ALONE: u128 = 15;

/// Cost of combining the results of blocks that share keys, in percent.
const COMBINED: u128 = 10;

/// Numbers of a head in shared memory: what the choice of a tile depends on besides sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Channels of queries and keys, a multiple of 32.
    pub key: u32,
    /// Of values.
    pub value: u32,
    /// 16-bit numbers that stand for one: 2 for f32.
    pub parts: u32,
}

impl Tile {
    /// The tiles for such heads, of at most [`MOST_CHANNELS`] channels.
    pub(super) fn for_head(head: Head, attn: AttnKind) -> &'static [Tile] {
        let all = match (head.parts, attn) {
            (2, _) => F32,
            (_, AttnKind::None) => TILES,
            _ => MASKED,
        };
        let channels = head.key.max(head.value);
        let found = all.iter().find(|(most, _)| channels <= *most);
        found.map_or(&[], |(_, tiles)| tiles)
    }

    /// The one of `tiles` with which `planes` of `rows` queries and `keys` keys each should take least time, and that time: all
    /// multiprocessors' for elements of the query-key matrix, each of which takes 10,000 in the first tile.
    pub(super) fn choose(
        tiles: &[Tile],
        of: [usize; 3],
        multiprocessors: u32,
    ) -> Option<(Tile, u128)> {
        let [_, rows, keys] = of;
        let available = u128::from(multiprocessors.max(1));
        // Of a block: whole tiles, but warps that split them leave out what they do not see.
        let work = |tile: &Tile| {
            let keys = keys.next_multiple_of((tile.keys / tile.columns) as usize);
            u128::from(tile.rows) * keys as u128 * u128::from(tile.cost)
        };
        // With two rounds or more, how well the last is filled matters less than how often keys are read.
        let largest = tiles.first()?;
        if largest.blocks_of(of) >= 2 * available {
            let candidates = tiles
                .iter()
                .filter(|tile| tile.columns == 1 || tile.rows <= FEW && rows <= tile.rows as usize);
            let timed = candidates.map(|tile| (*tile, tile.blocks_of(of) * work(tile) * 100));
            // Of several equal ones the first is taken.
            return timed.min_by_key(|(_, time)| *time);
        }
        let time = |tile: &Tile| {
            let splits = u128::from(tile.splits(of, multiprocessors));
            let rounds = (tile.blocks_of(of) * splits).div_ceil(available);
            let alone = if rounds == 1 { ALONE } else { 0 };
            let combined = if splits > 1 { COMBINED } else { 0 };
            rounds * available * work(tile) * (100 + alone + combined) / splits
        };
        let timed = tiles.iter().map(|tile| (*tile, time(tile)));
        timed.min_by_key(|(_, time)| *time)
    }

    /// Blocks of so many planes, rows and keys.
    fn blocks_of(&self, [planes, rows, _]: [usize; 3]) -> u128 {
        planes as u128 * rows.div_ceil(self.rows as usize) as u128
    }

    /// How many blocks share the keys of a tile of queries. More than one only where blocks are so few that half of the
    /// device would be idle; then enough for two per multiprocessor, or as many as it holds, but none with less than two
    /// tiles of keys, for which the combine kernel would not pay off.
    pub(super) fn splits(&self, of: [usize; 3], multiprocessors: u32) -> u32 {
        let blocks = self.blocks_of(of);
        if 2 * blocks > u128::from(multiprocessors) {
            return 1;
        }
        let wanted = u128::from(self.blocks.max(2) * multiprocessors) / blocks.max(1);
        let most = of[2].div_ceil(self.keys as usize) / 2;
        // A grid has at most 65,535 blocks in y.
        wanted.min(most as u128).clamp(1, 65_535) as u32
    }

    /// Threads per block.
    pub(super) fn threads(&self) -> u32 {
        32 * self.warps
    }

    /// Shared memory per block.
    pub(super) fn shared_bytes(&self, head: Head) -> u32 {
        let Head { key, value, parts } = head;
        // Outputs of 16 bits pass through the place of the queries.
        let widest = if parts == 1 { key.max(value) } else { key };
        let queries = self.rows * 2 * parts * widest;
        let tiles = self.stages * self.keys * 2 * parts * (key + value);
        // See kernels/dense/columns.cuh.
        let exchanged = match self.columns {
            1 => 0,
            columns => self.rows * (columns * 8 + (columns - 1) * value * 4),
        };
        queries + tiles.max(exchanged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn head(channels: u32, parts: u32) -> Head {
        Head {
            key: channels,
            value: channels,
            parts,
        }
    }

    fn chosen(channels: u32, planes: usize, queries: usize) -> [u32; 2] {
        let tiles = Tile::for_head(head(channels, 1), AttnKind::None);
        let (tile, _) = Tile::choose(tiles, [planes, queries, queries], 132).unwrap();
        [tile.rows, tile.keys]
    }

    #[test]
    fn large_problems_get_large_tiles_and_small_ones_small() {
        assert_eq!(chosen(64, 64, 8192), [128, 128]);
        assert_eq!(chosen(128, 32, 8192), [128, 80]);
        assert_eq!(chosen(128, 16, 16_384), [128, 80]);
        assert_eq!(chosen(64, 32, 1024), [128, 128]);
        assert_eq!(chosen(64, 8, 1024)[0], 32);
        assert_eq!(chosen(64, 8, 512)[0], 32);
        assert_eq!(chosen(64, 8, 256)[0], 16);
        assert_eq!(chosen(256, 16, 8192)[0], 64);
        assert_eq!(chosen(256, 8, 1024)[0], 64);
        assert_eq!(chosen(128, 32, 1)[0], 16);
    }

    #[test]
    fn few_queries_of_many_keys_are_divided_in_large_tiles() {
        let tiles = Tile::for_head(head(32, 1), AttnKind::Bits);
        let of = [32, 100, 10_000];
        let (tile, _) = Tile::choose(tiles, of, 132).unwrap();
        assert_eq!((tile.rows, tile.keys, tile.splits(of, 132)), (64, 128, 8));
    }

    #[test]
    fn many_small_problems_get_the_tile_that_they_fill() {
        assert_eq!(chosen(32, 8192, 49), [64, 64]);
        assert_eq!(chosen(32, 2048, 144), [48, 48]);
        assert_eq!(chosen(64, 8192, 49), [64, 64]);
    }

    #[test]
    fn there_is_a_tile_for_the_smallest_shared_memory() {
        // Compute capability 8.6, 8.9 and 12.0.
        const LEAST: u32 = 99 << 10;
        for (tables, parts) in [(TILES, 1), (MASKED, 1), (F32, 2)] {
            for &(channels, tiles) in tables {
                for tile in tiles {
                    let fits = |other: &&Tile| {
                        let bytes = other.shared_bytes(head(channels, parts));
                        other.rows == tile.rows && bytes <= LEAST
                    };
                    assert!(tiles.iter().any(|it| fits(&it)), "{tile:?} of {channels}");
                }
            }
        }
    }
}
