//! How rows are distributed over blocks.

use super::arguments::{Divisor, Schedule};
use super::specialised::Gather;
use super::tuning::ForwardTuning;
use crate::cuda::device_size::DeviceSize;
use crate::msda::Sizes;
use crate::tuning::spaces::cuda::dealing;

/// How rows are distributed over blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dealing {
    /// Resident blocks of the device.
    blocks: u32,
    /// Bytes of `value` that the images being worked on may take.
    bytes: u64,
    /// One of [`dealing`], or 0.
    how: u32,
}

impl Dealing {
    /// The default.
    pub fn new(device: DeviceSize) -> Self {
        Dealing::tuned(device, &ForwardTuning::default())
    }

    /// As `tuning` says.
    pub fn tuned(device: DeviceSize, tuning: &ForwardTuning) -> Self {
        Dealing {
            blocks: device.multiprocessors.max(1) * tuning.blocks.max(1),
            bytes: u64::from(device.l2_bytes) * u64::from(tuning.l2_percent) / 100,
            how: tuning.dealing,
        }
    }

    /// The same with that many times as many bytes of `value` at a time.
    pub fn of_l2(self, times: u64) -> Self {
        Dealing {
            bytes: self.bytes * times,
            ..self
        }
    }

    /// The same for that many blocks per multiprocessor.
    pub fn of_blocks(self, blocks: u32) -> Self {
        Dealing {
            blocks: self.blocks * blocks.max(1),
            ..self
        }
    }
}

/// The rows of each block, and the number of blocks. Neighbouring rows share pixels: the rows of a block should be
/// close to each other, and all resident blocks together should not need more pixels than L2 holds.
pub(super) fn schedule(sizes: &Sizes, gather: &Gather, by: Dealing) -> (Schedule, u32) {
    let rows = (sizes.images * sizes.queries * sizes.heads) as u32;
    let at_once = gather.rows_per_block();
    let plane = sizes.queries as u32 * gather.heads_together;
    let planes_an_image = sizes.heads as u32 / gather.heads_together;
    let queries_are_pixels = sizes.queries == sizes.pixels;
    let at_a_time = by.blocks;
    let granule = gather.rows_per_warp();
    let side_by_side = match by.how {
        dealing::SIDE_BY_SIDE => true,
        dealing::NEIGHBOURS => false,
        // Whole cache lines per pixel: all multiprocessors side by side in one image, so that L2 serves them.
        _ => gather.group() >= 8 && !queries_are_pixels,
    };

    let (turn, share, blocks) = if gather.split > 1 {
        // Small: one block for each piece.
        (rows, at_once, rows.div_ceil(at_once))
    } else if rows <= at_a_time * at_once {
        // No more than a block can process at a time.
        let share = rows.div_ceil(at_a_time).next_multiple_of(granule);
        (rows, share, rows.div_ceil(share))
    } else if side_by_side {
        (at_a_time * at_once, at_once, at_a_time)
    } else {
        // Neighbouring rows on one multiprocessor, whose L1 serves them, but no more images at a time than L2 holds.
        let planes = rows / plane;
        let plane_bytes = sizes.pixels as u64
            * gather.heads_together as u64
            * gather.channels as u64
            * gather.types.value.size() as u64;
        let held = (by.bytes / plane_bytes).clamp(1, planes as u64) as u32;
        // Turns of equal size keep all blocks busy to the end.
        let even = (1..=held).rev().find(|&count| planes.is_multiple_of(count));
        let planes_a_turn = match even {
            Some(count) if 2 * count > held => count,
            _ => planes.div_ceil(planes.div_ceil(held)),
        };
        let turn = planes_a_turn * plane;
        let share = turn.div_ceil(at_a_time).next_multiple_of(granule);
        // Every block must have a row of the turn: otherwise it would take rows of the next.
        (turn, share, turn.div_ceil(share))
    };
    let schedule = Schedule {
        rows,
        turn,
        share,
        plane,
        planes_an_image,
        order: queries_are_pixels as u32,
        by_plane: Divisor::new(plane.max(1)),
        by_planes_an_image: Divisor::new(planes_an_image.max(1)),
        kept: 0,
    };
    (schedule, blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::msda::{Kind, Types};
    use crate::dtype::DType;

    /// How often each row is taken, walked as `Walk` of kernels/msda/gather.cuh does.
    fn taken(schedule: &Schedule, blocks: u32, at_once: u32) -> Vec<u32> {
        let mut taken = vec![0; schedule.rows as usize];
        for block in 0..blocks {
            let first = block * schedule.share;
            let room = schedule.share.min(schedule.turn - first);
            for mut ahead in 0..at_once {
                let mut turn = 0;
                loop {
                    while ahead >= room && turn < schedule.rows {
                        ahead -= room;
                        turn += schedule.turn;
                    }
                    let row = turn + first + ahead;
                    if turn >= schedule.rows || row >= schedule.rows {
                        break;
                    }
                    taken[row as usize] += 1;
                    ahead += at_once;
                }
            }
        }
        taken
    }

    #[test]
    fn every_row_is_taken_once() {
        let types = Types {
            value: DType::F16,
            locations: DType::F32,
            weights: DType::F32,
        };
        let tunings = [
            ForwardTuning::default(),
            ForwardTuning {
                blocks: 3,
                dealing: dealing::SIDE_BY_SIDE,
                ..ForwardTuning::default()
            },
            ForwardTuning {
                dealing: dealing::NEIGHBOURS,
                l2_percent: 200,
                ..ForwardTuning::default()
            },
        ];
        for multiprocessors in [1, 7, 46, 132] {
            for l2_bytes in [0, 100_000, 50 << 20] {
                let device = DeviceSize {
                    multiprocessors,
                    l2_bytes,
                    shared_bytes: 0,
                    has_wgmma: false,
                };
                for (images, queries, heads) in [
                    (1, 1, 1),
                    (1, 300, 8),
                    (3, 977, 8),
                    (5, 1000, 3),
                    (11, 4001, 1),
                    (2, 20_011, 2),
                    (1, 60_000, 4),
                ] {
                    for channels in [8, 32, 64, 256] {
                        for pixels in [977, 5000] {
                            let sizes = Sizes {
                                images,
                                pixels,
                                heads,
                                channels,
                                queries,
                                levels: 4,
                                points: 4,
                            };
                            let kind = Kind {
                                sampling: Default::default(),
                                types,
                                heads,
                                channels,
                                levels: 4,
                                points: 4,
                            };
                            for (split, tuning) in [1, 2, 4]
                                .into_iter()
                                .flat_map(|split| tunings.map(|it| (split, it)))
                            {
                                if kind.lanes() * split > 32 {
                                    continue;
                                }
                                let gather = kind.gather(64, split);
                                let by = Dealing::tuned(device, &tuning);
                                let (schedule, blocks) = schedule(&sizes, &gather, by);
                                let taken = taken(&schedule, blocks, gather.rows_per_block());
                                assert!(
                                    taken.iter().all(|&times| times == 1),
                                    "{sizes:?} {gather:?} on {multiprocessors}: {schedule:?}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
